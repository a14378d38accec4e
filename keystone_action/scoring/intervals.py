"""How far a composite would move if other scenarios had been chosen. Pure, and without a random result.

A spec's composite is a mean over its cells. Cells of one scenario resemble each other, so whole scenarios are drawn
again, each with its parameter sets and replicas (A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
Application, 1997, 3.8). The interval is BCa, the bias-corrected and accelerated one of B. Efron (Better bootstrap
confidence intervals, Journal of the American Statistical Association 82, 1987). Above `MOST_DRAWN` units its analytic
form for a mean is as good and needs no draws: T. DiCiccio and B. Efron, More accurate confidence intervals in
exponential families, Biometrika 79, 1992 (ABC).

Draws are seeded by the values themselves: equal results have equal intervals, whatever order they came in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keystone_action.scoring.aggregate import group_key
from keystone_action.scoring.results import CellResult, CompositeInterval

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
