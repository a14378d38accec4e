"""What counts as worse than in the baseline (contract, 5.4, `fail-on: regression`). Pure.

With FEWEST_FOR_TEST or more replicas in the group on both sides it is the number of graded results that passed that
decides, by the one-sided exact test at 5 %; neither verdict matters then. With fewer each flip counts: what passed
there, or was flaky, and fails here; a replica that could not be graded there hides no flip of the others, if all of
these passed.
"""

from __future__ import annotations

from typing import Literal

from keystone_action.scoring.results import Difference, Outcome
from keystone_action.scoring.statistics import SIGNIFICANT, Stratum, worse_p_value

FEWEST_FOR_TEST = 5
_PASSED = ("pass", "flaky")


def is_tested(replicas_before: int, replicas_after: int) -> bool:
    """Whether the groups of both sides have enough replicas for the test, graded or not: one that could not be graded
    there must not hide a drop."""
    return min(replicas_before, replicas_after) >= FEWEST_FOR_TEST


def is_worse(counts: Stratum) -> bool:
    """Whether the test says so."""
    return worse_p_value(counts) < SIGNIFICANT


def regression_of(
    before: Outcome | None, after: Outcome | None, counts: Stratum, *, tested: bool
) -> Literal["flip", "test"] | None:
    """Why this counts as worse; None where it does not. counts: of graded results. tested: see `is_tested`."""
    if tested:
        return "test" if is_worse(counts) else None
    all_graded_passed = before == "error" and 0 < counts.passed_before == counts.total_before
    return "flip" if (before in _PASSED or all_graded_passed) and after == "fail" else None


def counts_of(before: Difference, after: Difference | None = None) -> Stratum:
    """How many passed on both sides; after: of the same thing by another name."""
    there = after or before
    return Stratum(before.passed_before, before.total_before, there.passed_after, there.total_after)
