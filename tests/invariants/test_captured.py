"""How a command ended, in words: as it was, and not as a shell would have shown something else."""

from __future__ import annotations

import pytest

from keystone_action.invariants.command_output import describe_ending, tails
from keystone_action.system.command import Capture, Completed


def completed(exit_code: int | None, signal: int | None = None, **more: object) -> Completed:
    nothing = Capture()
    return Completed(exit_code, signal, False, None, False, 0.1, nothing, nothing, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (completed(3), "ended with exit code 3"),
        (completed(126), "ended with exit code 126 (a program was found and could not be run)"),
        (completed(127), "ended with exit code 127 (a program was not found)"),
        (completed(137), "ended with exit code 137"),
        (completed(None, 9), "was ended by SIGKILL (exit code 137)"),
    ],
)
def test_only_a_signal_is_called_one(how: Completed, words: str) -> None:
    assert describe_ending(how) == words


def test_what_may_explain_a_failure_comes_last() -> None:
    assert tails(completed(1, advice="Look there.")) == "Look there."
    assert tails(completed(1)) == "It printed nothing."
