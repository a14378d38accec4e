"""What repeated tries of an agent come to: pass@k, pass^k, and the smallest drop that would show. Pure.

pass@k is the chance that at least one of k tries passes, by the unbiased estimator of M. Chen et al. (Evaluating Large
Language Models Trained on Code, arXiv:2107.03374, 2021): of n tries of which c passed, 1 − C(n−c, k)/C(n, k). pass^k is
the chance that all k pass, by that of S. Yao et al. (τ-bench, arXiv:2406.12045, 2024): C(c, k)/C(n, k).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from keystone_action.scoring.results import Reliability, SmallestDrop
from keystone_action.scoring.statistics import SIGNIFICANT, Stratum, worse_p_value

MOST_TRIES = 100
"""The largest k, and the most replicas that the power of the test is worked out for."""
POWER = 0.8
_STEPS = 100
"""A drop with power is found to one point in a hundred."""


def pass_at(passed: int, total: int, k: int) -> float:
    """The chance that at least one of k tries passes, where `passed` of `total` did."""
    ways = math.comb(total, k)
    return (ways - math.comb(total - passed, k)) / ways


def pass_hat(passed: int, total: int, k: int) -> float:
    """The chance that all of k tries pass, where `passed` of `total` did."""
    return math.comb(passed, k) / math.comb(total, k)


def reliability(groups: Iterable[tuple[int, int]]) -> Reliability | None:
    """Of groups of replicas as (passed, graded). None where no group was repeated; one without a graded replica is left
    out."""
    graded = [group for group in groups if group[1]]
    tries = min((total for _, total in graded), default=0)
    if tries < 2:
        return None
    at, hat = [], []
    for k in range(1, min(tries, MOST_TRIES) + 1):
        at.append(_mean([pass_at(*group, k) for group in graded]))
        hat.append(_mean([pass_hat(*group, k) for group in graded]))
    return Reliability(tries, len(graded), tuple(at), tuple(hat))


def _mean(values: Sequence[float]) -> float:
    return min(math.fsum(values) / len(values), 1.0)


def smallest_drop(groups: Iterable[tuple[int, int]]) -> SmallestDrop | None:
    """Of groups of replicas as (passed, graded). None where no group was repeated, or nothing passed."""
    graded = [group for group in groups if group[1]]
    replicas = min((total for _, total in graded), default=0)
    if replicas < 2 or not any(passed for passed, _ in graded):
        return None
    passed = graded[0][0] if len(graded) == 1 else replicas
    most = most_that_shows(passed, replicas)
    return SmallestDrop(
        replicas=replicas,
        rate=passed / replicas,
        drop=None if most is None else (passed - most) / replicas,
        drop_with_power=drop_with_power(passed / replicas, replicas) if replicas <= MOST_TRIES else None,
    )


def most_that_shows(passed: int, replicas: int) -> int | None:
    """With how many passes, at most, a second run of as many replicas counts as worse; None where not even none do."""
    low, high = -1, passed  # the test speaks at low, unless that is −1, and does not at high
    while high - low > 1:
        middle = (low + high) // 2
        if worse_p_value(Stratum(passed, replicas, middle, replicas)) < SIGNIFICANT:
            low = middle
        else:
            high = middle
    return None if low < 0 else low


def detection(before: float, after: float, replicas: int) -> float:
    """How probable it is that the test speaks, with these true pass rates and so many replicas on each side."""
    chances = _binomial(before, replicas)
    so_few = _cumulated(_binomial(after, replicas))
    limits = _limits(replicas)
    return math.fsum(chance * so_few[limit] for chance, limit in zip(chances, limits, strict=True) if limit is not None)


def drop_with_power(rate: float, replicas: int) -> float | None:
    """The smallest change of the true rate, to a hundredth, that the test finds with the probability POWER."""
    low, high = 0, math.floor(rate * _STEPS + 1e-9)
    if detection(rate, max(0.0, rate - high / _STEPS), replicas) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = detection(rate, rate - middle / _STEPS, replicas) >= POWER
        low, high = (low, middle) if found else (middle, high)
    return high / _STEPS


@cache
def _limits(replicas: int) -> tuple[int | None, ...]:
    return tuple(most_that_shows(passed, replicas) for passed in range(replicas + 1))


def _binomial(rate: float, total: int) -> list[float]:
    return [math.comb(total, count) * rate**count * (1 - rate) ** (total - count) for count in range(total + 1)]


def _cumulated(chances: Sequence[float]) -> list[float]:
    return [min(1.0, math.fsum(chances[: index + 1])) for index in range(len(chances))]
