"""When a group of replicas is decided, so that no further one has to run (contract, 5.8). Pure.

A test that looks at each new replica must not count as if it had looked once: whoever looks often enough finds what
chance made. The method kept here is a confidence sequence: an interval after each replica, all of which hold the true
pass rate together with the promised confidence, however often somebody looks and whenever they stop. It is the mixture
martingale of H. Robbins (Statistical methods related to the law of the iterated logarithm, Annals of Mathematical
Statistics 41, 1970) for coin tosses, with J. Ville's inequality (1939): of a true rate p, the ratio

    B(s + ½, f + ½) / B(½, ½) / (p^s · (1 − p)^f)        after s passes and f failures

ever reaches 1/α with a probability of at most α.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal

from keystone_action.scoring.results import PassRate, StoppingRule

Aggregation = Literal["all", "any", "majority", "mean"] | int
"""The rule for replicas; a number k is `{at_least: k}`."""
Outcome = bool | None
"""Whether a replica passed; None when it could not be graded, which says nothing of the agent."""
_HALVINGS = 60


class GroupTest:
    """What is known of a group of replicas, and whether a further one has to run.

    The test reads replicas in the order of their numbers and waits for the first that is still running: quick ones must
    not be overrepresented. What no further replica could change is decided in whatever order it came.
    """

    def __init__(self, rule: StoppingRule, aggregation: Aggregation) -> None:
        self._rule, self._aggregation = rule, aggregation
        self._passed = self._failed = 0
        self._waiting: dict[int, Outcome] = {}  # finished, and behind one that is still running
        self._next = self._read = self._passes = 0
        self._separated = False

    def add(self, place: int, outcome: Outcome) -> None:
        """A replica is finished. place: among those of the group, from 0. Each is added once."""
        self._passed += outcome is True
        self._failed += outcome is False
        self._waiting[place] = outcome
        while self._next in self._waiting:
            self._look(self._waiting.pop(self._next))
            self._next += 1

    def _look(self, outcome: Outcome) -> None:
        if outcome is None or self._aggregation in ("all", "any", "mean"):
            return
        self._read += 1
        self._passes += outcome
        needed = self._aggregation
        rate = needed / self._rule.max if isinstance(needed, int) else 0.5
        if self._read >= self._rule.min and not self._separated:
            failures = self._read - self._passes
            self._separated = _excludes(self._passes, failures, rate, 1 - self._rule.confidence)

    @property
    def is_decided(self) -> bool:
        """Whether no further replica has to run."""
        if self._passed + self._failed < self._rule.min:
            return False
        match self._aggregation:
            case "all":
                return self._failed > 0
            case "any":
                return self._passed > 0
            case "mean":
                return False
            case "majority":
                needed = self._rule.max // 2 + 1
            case number:
                needed = number
        return self._separated or self._passed >= needed or self._failed > self._rule.max - needed


def is_decided(rule: StoppingRule, aggregation: Aggregation, outcomes: Iterable[Outcome]) -> bool:
    """Whether these replicas decide their group, all of them finished, in the order of their numbers."""
    test = GroupTest(rule, aggregation)
    for place, outcome in enumerate(outcomes):
        test.add(place, outcome)
    return test.is_decided


def meets(aggregation: Aggregation, passed: int, total: int, most: int) -> bool:
    """Whether the replicas that ran keep the rule (not `mean`, which is about scores). most: how many could have run:
    of fewer, the same share is asked for."""
    if isinstance(aggregation, int):
        return passed * most >= aggregation * total
    return {"all": passed == total, "any": passed >= 1, "majority": passed * 2 > total}[aggregation]


def _excludes(passed: int, failed: int, rate: float, error: float) -> bool:
    """Whether the ratio of this rate has reached 1/error."""
    impossible = (rate <= 0 and passed > 0) or (rate >= 1 and failed > 0)
    if impossible:
        return True
    likelihood = (passed * math.log(rate) if passed else 0.0) + (failed * math.log1p(-rate) if failed else 0.0)
    return _log_mixture(passed, failed) - likelihood >= -math.log(error)


def _log_mixture(passed: int, failed: int) -> float:
    """ln(B(s + ½, f + ½) / B(½, ½)); B(½, ½) is π."""
    halves = math.lgamma(passed + 0.5) + math.lgamma(failed + 0.5) - math.lgamma(passed + failed + 1)
    return halves - math.log(math.pi)


def rate_interval(passed: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The rates that are not excluded after so many replicas: an interval that may be looked at after each of them."""
    failed, error = total - passed, 1 - confidence
    observed = passed / total
    return (
        0.0 if passed == 0 else _edge(passed, failed, error, outside=0.0, inside=observed),
        1.0 if failed == 0 else _edge(passed, failed, error, outside=1.0, inside=observed),
    )


def _edge(passed: int, failed: int, error: float, *, outside: float, inside: float) -> float:
    """By bisection: the ratio falls from either end of [0, 1] to the observed rate."""
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if _excludes(passed, failed, middle, error):
            outside = middle
        else:
            inside = middle
    return outside


def stopped_pass_rate(groups: Sequence[tuple[int, int]]) -> PassRate | None:
    """The share of graded replicas that passed, over groups that may have stopped early, with a 95 % interval for the
    mean of their true rates, each weighted by its replicas. groups: (passed, graded).

    With several groups each interval holds with 1 − 0.05 ÷ their number, so that all hold at once with 95 %.
    None when nothing was graded.
    """
    graded = [group for group in groups if group[1]]
    total = sum(count for _, count in graded)
    if not total:
        return None
    edges = [rate_interval(passed, count, 1 - 0.05 / len(graded)) for passed, count in graded]
    low, high = (
        math.fsum(edge[side] * count for edge, (_, count) in zip(edges, graded, strict=True)) / total for side in (0, 1)
    )
    value = float(Fraction(sum(passed for passed, _ in graded), total))
    return PassRate(value, max(0.0, min(value, low)), min(1.0, max(value, high)), total)
