"""Counts of test cases, and the outcome that follows from them by the rules of spec.md 5.3."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from keystone_action.files.paths import name_paths
from keystone_action.invariants.check import Outcome, failed, passed
from keystone_action.invariants.command_output import describe_ending, full_log, seconds, tails
from keystone_action.system.command import Completed

SHOWN = 1000
"""Names of cases that did not pass, as they are kept."""
TOLERANCE = 1e-9
_NAMES_SHOWN = 5


class BadReport(Exception):  # noqa: N818 - an outcome: the check fails
    """A report can't be read; the message is the end of a sentence that begins with its name."""


@dataclass(slots=True)
class CaseCounts:
    """How many cases of test runs ended how."""

    passed: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    """Names of cases in failures and errors, at most SHOWN."""
    passed_names: list[str] = field(default_factory=list)
    """Names of all cases that passed; only JUnit reports give them."""
    lost: list[str] = field(default_factory=list)
    """Files of tests that could not be run to their end: nobody knows how many tests they have."""

    @property
    def counted(self) -> int:
        """How many decide: all but the skipped ones."""
        return self.passed + self.failures + self.errors

    @property
    def fraction(self) -> float:
        """The share that passed; 0 when nothing was counted."""
        return self.passed / self.counted if self.counted else 0.0

    def __add__(self, other: CaseCounts) -> CaseCounts:
        return CaseCounts(
            self.passed + other.passed,
            self.failures + other.failures,
            self.errors + other.errors,
            self.skipped + other.skipped,
            (self.failed + other.failed)[:SHOWN],
            self.passed_names + other.passed_names,
            (self.lost + other.lost)[:SHOWN],
        )


def stop_outcome(completed: Completed, limit: float, **details: Any) -> Outcome | None:
    """The failure of a run that did not end by itself; None when it did."""
    if completed.timed_out:
        why = f"The tests were stopped at their time limit of {seconds(limit)}."
    elif completed.limit is not None:
        why = f"The tests were stopped at a limit: {completed.limit}."
    else:
        return None
    return failed(f"{why}\n{tails(completed)}", log=full_log(completed), **details)


def by_counts(counts: CaseCounts, completed: Completed, threshold: float, **details: Any) -> Outcome:
    """Score = the share that passed. Nothing counted, a file whose tests nobody knows, and success with a non-zero exit
    code earn nothing."""
    log = full_log(completed)
    details = {
        "passed": counts.passed,
        "failed": counts.failures,
        "errors": counts.errors,
        "skipped": counts.skipped,
        "exit_code": completed.shell_code,
        **details,
    }
    if counts.lost:
        lost = name_paths(counts.lost)
        message = f"{_tally(counts)}, and the tests of {lost} could not all be run, so their share is not known."
        return failed(f"{message}{_join_names(counts.failed)}\n{tails(completed)}", log=log, **details)
    if not counts.counted:
        skipped = f" ({counts.skipped} skipped)" if counts.skipped else ""
        return failed(f"No test was run{skipped}.\n{tails(completed)}", log=log, **details)
    if counts.passed == counts.counted and completed.shell_code != 0:
        message = f"{_tally(counts)}, but the command {describe_ending(completed)}; expected 0."
        return failed(f"{message}\n{tails(completed)}", log=log, **details)
    score = counts.fraction
    if counts.failed:
        details["failing"] = counts.failed[:100]
    if score >= threshold - TOLERANCE:
        return passed(f"{_tally(counts)}.", score=score, log=log, **details)
    expected = "all of them" if threshold == 1 else f"a share of at least {threshold:g}"
    return failed(
        f"{_tally(counts)}, expected {expected}.{_join_names(counts.failed)}\n{tails(completed)}",
        score=score,
        log=log,
        **details,
    )


def by_exit_code(completed: Completed, why: str, **details: Any) -> Outcome:
    """Pass or fail by the exit code alone; why: the sentence that says so."""
    details = {"exit_code": completed.shell_code, **details}
    if completed.shell_code == 0 and not completed.not_found:
        return passed(f"The command ended with exit code 0. {why}", log=full_log(completed), **details)
    message = f"The command {describe_ending(completed)}, expected 0. {why}\n{tails(completed)}"
    return failed(message, log=full_log(completed), **details)


def by_confirmed_exit_code(counts: CaseCounts, completed: Completed, why: str, **details: Any) -> Outcome:
    """As by_exit_code, but a run without tests that passed is not a success: something ended it with 0, but it was
    not the tests."""
    if completed.shell_code != 0 or (counts.counted and counts.passed == counts.counted):
        return by_exit_code(completed, why, **details)
    found = _tally(counts) if counts.counted else "no test was run"
    message = f"The command ended with exit code 0, but {found}.\n{tails(completed)}"
    return failed(message, log=full_log(completed), exit_code=0, **details)


def _tally(counts: CaseCounts) -> str:
    parts = [(counts.failures, "failed"), (counts.errors, "in error"), (counts.skipped, "skipped, not counted")]
    rest = ", ".join(f"{number} {word}" for number, word in parts if number)
    tests = "test" if counts.counted == 1 else "tests"
    return f"{counts.passed} of {counts.counted} {tests} passed" + (f" ({rest})" if rest else "")


def _join_names(names: Collection[str]) -> str:
    if not names:
        return ""
    shown = [name if len(name) <= 200 else name[:199] + "…" for name in list(names)[:_NAMES_SHOWN]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f" Not passed: {', '.join(shown)}{more}."
