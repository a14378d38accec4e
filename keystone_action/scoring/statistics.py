"""What figures of few replicas and scenarios can tell, and what they can't. Pure, and without a random result.

In this order: exact tests of whether two pass rates differ by more than chance; which difference counts as worse than
the baseline (`fail-on: regression`); the interval of a composite; what repeated tries of an agent come to. Each method
names its source where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

from keystone_action.scoring.aggregate import count_graded, group_key
from keystone_action.scoring.differences import ComparedOutcome, Difference
from keystone_action.scoring.results import CellResult, CompositeInterval, Reliability, SmallestDrop, SpecResult

# Whether two pass rates differ by more than chance.
#
# The test is exact and conditional, over strata: one for each group of replicas that both runs have. Within each
# stratum all margins of the 2×2 table are taken as given. The number of passes on one side is then hypergeometric, and
# the test looks at the sum of these numbers over all strata. With one stratum this is the test of R. A. Fisher (The
# logic of inductive inference, Journal of the Royal Statistical Society 98, 1935). With one replica on each side of
# every stratum it is the exact form of Q. McNemar's test for paired outcomes (Note on the sampling error of the
# difference between correlated proportions or percentages, Psychometrika 12, 1947). For several tables: C. R. Mehta, N.
# R. Patel and R. Gray (Computing an exact confidence interval for the common odds ratio in several 2×2 contingency
# tables, Journal of the American Statistical Association 80, 1985). Above `EXACT` outcomes the normal approximation of
# N. Mantel and W. Haenszel takes over (Statistical aspects of the analysis of data from retrospective studies of
# disease, Journal of the National Cancer Institute 22, 1959), with their correction for continuity.

EXACT = 600
"""Possible sums up to which the distribution is written out."""
SIGNIFICANT = 0.05
"""A difference is called more than noise below this probability."""
_TIE = 1e-7
"""Relative: outcomes whose probabilities differ by less count as equally probable."""


class Stratum(NamedTuple):
    """Replicas of one thing on both sides: so many of so many passed."""

    passed_before: int
    total_before: int
    passed_after: int
    total_after: int


def difference_p_value(strata: Sequence[Stratum]) -> float:
    """How probable a difference at least as large as this one is, in either direction, when both sides pass equally
    often in each stratum; in (0, 1]. 1 where nothing could have differed. Exchanging the sides changes nothing.

    Raises ValueError for impossible counts.
    """
    tables = []
    for stratum in strata:
        _check_counts(stratum)
        low, high = _range(stratum)
        if low < high:
            tables.append(stratum)
    if not tables:
        return 1.0
    if sum(high - low for low, high in map(_range, tables)) > EXACT:
        return _approximate(tables)
    return _exact(tables)


def worse_p_value(stratum: Stratum) -> float:
    """How probable it is that no more pass afterwards than did, when both sides pass equally often: Fisher's exact
    test, one-sided; in (0, 1]. 1 where nothing could have differed.

    Raises ValueError for impossible counts.
    """
    _check_counts(stratum)
    low, high = _range(stratum)
    if high - low > EXACT:
        return _approximate_worse(stratum)
    ways = _ways(stratum)
    return sum(ways[stratum.passed_before - low :]) / sum(ways)


def false_alarm_rate(stratum: Stratum) -> float:
    """How often the one-sided test speaks when nothing changed, with as many passes on both sides together: below
    SIGNIFICANT, since counts are whole numbers."""
    low, high = _range(stratum)
    if high - low > EXACT:
        return SIGNIFICANT
    ways = _ways(stratum)
    whole, tail, rate = sum(ways), 0, 0.0
    for count in reversed(ways):
        tail += count
        if tail / whole >= SIGNIFICANT:
            break
        rate = tail / whole
    return rate


def _check_counts(stratum: Stratum) -> None:
    if not (0 <= stratum.passed_before <= stratum.total_before) or not (
        0 <= stratum.passed_after <= stratum.total_after
    ):
        raise ValueError(f"{stratum} is not a count of passes")


def _range(stratum: Stratum) -> tuple[int, int]:
    """The fewest and the most passes that can be on the first side, the margins given."""
    passed = stratum.passed_before + stratum.passed_after
    return max(0, passed - stratum.total_after), min(stratum.total_before, passed)


def _exact(tables: Sequence[Stratum]) -> float:
    sums = [1.0]
    for table in tables:
        sums = _convolve(sums, _hypergeometric(table))
    observed = sum(table.passed_before - _range(table)[0] for table in tables)
    limit = sums[observed] * (1 + _TIE)
    return min(1.0, math.fsum(chance for chance in sums if chance <= limit))


def _hypergeometric(table: Stratum) -> list[float]:
    ways = _ways(table)
    whole = sum(ways)
    return [way / whole for way in ways]


def _ways(table: Stratum) -> list[int]:
    """How many ways there are to each number of passes on the first side, from the fewest to the most."""
    passed = table.passed_before + table.passed_after
    low, high = _range(table)
    return [
        math.comb(table.total_before, count) * math.comb(table.total_after, passed - count)
        for count in range(low, high + 1)
    ]


def _convolve(first: Sequence[float], second: Sequence[float]) -> list[float]:
    result = [0.0] * (len(first) + len(second) - 1)
    for index, one in enumerate(first):
        for offset, other in enumerate(second):
            result[index + offset] += one * other
    return result


def _approximate(tables: Sequence[Stratum]) -> float:
    distance, variance = _moments(tables)
    return math.erfc(max(0.0, abs(distance) - 0.5) / math.sqrt(2 * variance)) or math.ulp(0.0)


def _approximate_worse(table: Stratum) -> float:
    distance, variance = _moments([table])
    return math.erfc((distance - 0.5) / math.sqrt(2 * variance)) / 2 or math.ulp(0.0)


def _moments(tables: Sequence[Stratum]) -> tuple[float, float]:
    """By how much more passed before than is expected, and the variance of that."""
    distance, variance = 0.0, 0.0
    for before, of_before, after, of_after in tables:
        total, passed = of_before + of_after, before + after
        distance += before - of_before * passed / total
        variance += of_before * of_after * passed * (total - passed) / (total * total * (total - 1))
    return distance, variance


# What counts as worse than in the baseline (contract, 5.4, `fail-on: regression`).
#
# With FEWEST_FOR_TEST or more replicas in the group on both sides, the one-sided exact test at 5 % decides by the
# number of graded results that passed; neither verdict matters then. With fewer, each flip counts: what passed there,
# or was flaky, and fails here. A replica that could not be graded there does not hide a flip if all graded ones passed.

FEWEST_FOR_TEST = 5
PASSING = ("pass", "flaky")


def is_tested(replicas_before: int, replicas_after: int) -> bool:
    """Whether the groups of both sides have enough replicas for the test, graded or not: one that could not be graded
    there must not hide a drop."""
    return min(replicas_before, replicas_after) >= FEWEST_FOR_TEST


def is_worse(counts: Stratum) -> bool:
    """Whether the test says so."""
    return worse_p_value(counts) < SIGNIFICANT


def regression_of(
    before: ComparedOutcome | None, after: ComparedOutcome | None, counts: Stratum, *, tested: bool
) -> Literal["flip", "test"] | None:
    """Why this counts as worse; None where it does not. counts: of graded results. tested: see `is_tested`."""
    if tested:
        return "test" if is_worse(counts) else None
    all_graded_passed = before == "error" and 0 < counts.passed_before == counts.total_before
    return "flip" if (before in PASSING or all_graded_passed) and after == "fail" else None


def counts_of(before: Difference, after: Difference | None = None) -> Stratum:
    """How many passed on both sides; after: of the same thing by another name."""
    there = after or before
    return Stratum(before.passed_before, before.total_before, there.passed_after, there.total_after)


# How far a composite would move if other scenarios had been chosen.
#
# A spec's composite is a mean over its cells. Cells of one scenario resemble each other, so whole scenarios are drawn
# again, each with its parameter sets and replicas (A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
# Application, 1997, 3.8). The interval is BCa, the bias-corrected and accelerated one of B. Efron (Better bootstrap
# confidence intervals, Journal of the American Statistical Association 82, 1987). Above `MOST_DRAWN` units its analytic
# form for a mean is as good and needs no draws: T. DiCiccio and B. Efron, More accurate confidence intervals in
# exponential families, Biometrika 79, 1992 (ABC). Draws are seeded by the values themselves: equal results have equal
# intervals, whatever order they came in.

FEWEST = 5
"""With fewer units a bootstrap knows too little: the page on statistics says how often intervals hold."""
MOST_DRAWN = 100
RESAMPLES = 2_000
CONFIDENCE = 0.95
_Z = 1.959963984540054


class Unit(NamedTuple):
    """What is drawn as a whole: the sum of the composites of its graded cells, and their number."""

    sum: float
    cells: int


def composite_interval(cells: Iterable[CellResult]) -> CompositeInterval | None:
    """Of the mean composite of the graded cells. None with fewer than FEWEST units; where all are alike, since nothing
    is known then of how others differ; and where each is one cell that scored 0 or 1: the interval of the pass rate is
    better for these."""
    graded = [cell for cell in cells if cell.composite is not None]
    scenarios: dict[str, list[float]] = {}
    for cell in graded:
        scenarios.setdefault(cell.scenario, []).append(cell.composite or 0.0)
    if len(scenarios) > 1:
        units = [Unit(math.fsum(found), len(found)) for found in scenarios.values()]
    elif len({group_key(cell) for cell in graded}) == 1:
        units = [Unit(cell.composite or 0.0, 1) for cell in graded]
    else:
        return None  # parameter sets are chosen one by one, so they stand for no others
    values = {one.sum / one.cells for one in units}
    if len(units) < FEWEST or len(values) == 1 or (values <= {0, 1} and len(units) == len(graded)):
        return None
    low, high = mean_interval(units)
    return CompositeInterval(
        low=low,
        high=high,
        n=len(units),
        unit="scenarios" if len(scenarios) > 1 else "replicas",
        method="bootstrap" if len(units) <= MOST_DRAWN else "abc",
    )


def mean_interval(units: Sequence[Unit]) -> tuple[float, float]:
    """The 95 % interval of the mean over all cells of the units, which must not all be alike; in [0, 1], around it."""
    ordered = sorted(units)
    mean = _mean(ordered)
    low, high = _bca(resampled_means(ordered), ordered) if len(ordered) <= MOST_DRAWN else _abc(ordered)
    return max(0.0, min(low, mean)), min(1.0, max(high, mean))


def resampled_means(units: Sequence[Unit]) -> list[float]:
    """The means of RESAMPLES draws of as many units, with replacement, in ascending order."""
    import random

    count, cells = len(units), units[0].cells
    draw, starts = random.Random(repr(units)).choices, range(0, len(units) * RESAMPLES, len(units))  # noqa: S311
    if all(one.cells == cells for one in units):  # twice as fast
        sums = draw([one.sum for one in units], k=count * RESAMPLES)
        return sorted(sum(sums[start : start + count]) / (cells * count) for start in starts)
    drawn = draw(units, k=count * RESAMPLES)
    return sorted(_mean(drawn[start : start + count]) for start in starts)


def _mean(units: Sequence[Unit]) -> float:
    return sum(one.sum for one in units) / sum(one.cells for one in units)


def _bca(means: Sequence[float], units: Sequence[Unit]) -> tuple[float, float]:
    from statistics import NormalDist

    normal = NormalDist()
    observed = _mean(units)
    below = sum(mean < observed for mean in means) + sum(mean <= observed for mean in means)
    share = min(max(below / (2 * len(means)), 1 / (2 * len(means))), 1 - 1 / (2 * len(means)))
    bias = normal.inv_cdf(share)
    acceleration = _acceleration(_left_out(units))
    return tuple(  # type: ignore[return-value]
        _quantile(means, normal.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))) for z in (-_Z, _Z)
    )


def _left_out(units: Sequence[Unit]) -> list[float]:
    """How far the mean falls when each unit in turn is left out."""
    whole, cells = sum(one.sum for one in units), sum(one.cells for one in units)
    means = [(whole - one.sum) / (cells - one.cells) for one in units]
    centre = math.fsum(means) / len(means)
    return [centre - mean for mean in means]


def _acceleration(influences: Sequence[float]) -> float:
    squares = math.fsum(one**2 for one in influences)
    return math.fsum(one**3 for one in influences) / (6 * squares**1.5) if squares else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    index = min(int(place), len(ordered) - 2)
    return ordered[index] + (place - index) * (ordered[index + 1] - ordered[index])


def _abc(units: Sequence[Unit]) -> tuple[float, float]:
    mean, cells = _mean(units), sum(one.cells for one in units) / len(units)
    influences = [(one.sum - mean * one.cells) / cells for one in units]
    error = math.sqrt(math.fsum(one**2 for one in influences)) / len(units)
    acceleration = _acceleration(influences)
    low, high = (mean + error * (w / (1 - acceleration * w) ** 2) for w in (acceleration - _Z, acceleration + _Z))
    return low, high


# What repeated tries of an agent come to: pass@k, pass^k, and the smallest drop that would show.

MOST_TRIES = 100
"""The largest k, and the most replicas that the power of the test is worked out for."""
POWER = 0.8
_STEPS = 100
"""A drop with power is found to one point in a hundred."""


def with_certainty(spec: SpecResult) -> SpecResult:
    """The decided spec, and how sure its figures are: for reports alone, no verdict asks for it. Figures that take the
    number of replicas for fixed are left out where one of its groups stopped early."""
    if any(group.not_run for group in spec.groups):
        return spec
    graded = count_graded(spec.cells)
    return replace(
        spec,
        composite_interval=composite_interval(spec.cells),
        reliability=reliability(graded),
        smallest_drop=smallest_drop(graded),
    )


def pass_at(passed: int, total: int, k: int) -> float:
    """The chance that at least one of k tries passes, where `passed` of `total` did: 1 − C(n−c, k)/C(n, k), the
    unbiased estimator of M. Chen et al. (Evaluating Large Language Models Trained on Code, arXiv:2107.03374, 2021)."""
    ways = math.comb(total, k)
    return (ways - math.comb(total - passed, k)) / ways


def pass_hat(passed: int, total: int, k: int) -> float:
    """The chance that all of k tries pass, where `passed` of `total` did: C(c, k)/C(n, k), the estimator of S. Yao et
    al. (τ-bench, arXiv:2406.12045, 2024)."""
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
        at.append(_mean_of_shares([pass_at(*group, k) for group in graded]))
        hat.append(_mean_of_shares([pass_hat(*group, k) for group in graded]))
    return Reliability(tries, len(graded), tuple(at), tuple(hat))


def _mean_of_shares(values: Sequence[float]) -> float:
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
