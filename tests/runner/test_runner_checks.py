"""A check that breaks is that check's error: never a pass, never the agent's failure."""

from __future__ import annotations

import errno
from typing import ClassVar

import anyio
import pytest

from keystone_action.errors import HarnessError
from keystone_action.invariants.base import Check, Outcome, passed
from keystone_action.runner.checks import _evaluate


class Raising(Check):
    type_name: ClassVar[str] = "raising"
    error: ClassVar[Exception]

    async def evaluate(self, context: object) -> Outcome:
        raise self.error


class Boasting(Check):
    type_name: ClassVar[str] = "boasting"

    async def evaluate(self, context: object) -> Outcome:
        return passed("better than perfect", score=1.5)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (ValueError("odd"), "the check itself broke: ValueError: odd"),
        (HarnessError("service db went away"), "db went"),
        (RuntimeError("can't start new thread"), "process"),
        (OSError(errno.EMFILE, "Too many open files"), "no file descriptor is left"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "no space left on this machine for /tmp/x"),
    ],
)
def test_whatever_a_check_raises_is_its_error(error, part):
    Raising.error = error
    outcome = anyio.run(_evaluate, Raising(type="raising"), None, 5.0)
    assert (outcome.status, outcome.score) == ("error", None)
    assert part in outcome.message


def test_a_score_out_of_range_is_an_error_and_not_clamped():
    outcome = anyio.run(_evaluate, Boasting(type="boasting"), None, 5.0)
    assert (outcome.status, outcome.score) == ("error", None)
