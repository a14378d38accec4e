"""Whether two pass rates differ by more than chance. Pure.

The test is exact and conditional, over strata (here: one for each group of replicas that both runs have): within each
stratum all margins of the 2×2 table are taken as given, so that the number of passes of one side is hypergeometric, and
what is looked at is their sum over all strata. With one stratum it is the test of R. A. Fisher (The logic of inductive
inference, Journal of the Royal Statistical Society 98, 1935); with one replica on each side of every stratum it is the
exact form of Q. McNemar's test for paired outcomes (Note on the sampling error of the difference between correlated
proportions or percentages, Psychometrika 12, 1947). For several tables: C. R. Mehta, N. R. Patel and R. Gray
(Computing an exact confidence interval for the common odds ratio in several 2×2 contingency tables, Journal of the
American Statistical Association 80, 1985). Above `EXACT` outcomes the normal approximation of N. Mantel and W. Haenszel
(Statistical aspects of the analysis of data from retrospective studies of disease, Journal of the National Cancer
Institute 22, 1959) takes over, with their correction for continuity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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

    Raises ValueError for counts that are none.
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

    Raises ValueError for counts that are none.
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
        raise ValueError(f"{stratum} is no count of passes")


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
