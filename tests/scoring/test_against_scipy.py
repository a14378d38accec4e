"""Each figure beside scipy's: tests, intervals, estimators. scipy is not part of the product."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import scipy  # which imports its parts when they are asked for
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.scoring import statistics as intervals
from keystone_action.scoring import statistics as replicas
from keystone_action.scoring.aggregate import wilson
from keystone_action.scoring.statistics import Stratum, Unit, difference_p_value, worse_p_value

TABLES = st.builds(
    lambda total, other, passed, also: Stratum(passed % (total + 1), total, also % (other + 1), other),
    *[st.integers(1, 40)] * 2,
    *[st.integers(0, 40)] * 2,
)


def table(one: Stratum) -> list[list[int]]:
    return [
        [one.passed_before, one.total_before - one.passed_before],
        [one.passed_after, one.total_after - one.passed_after],
    ]


@given(TABLES)
def test_fishers_exact_test_in_both_forms(one: Stratum) -> None:
    assert worse_p_value(one) == pytest.approx(scipy.stats.fisher_exact(table(one), "greater").pvalue, rel=1e-9)
    assert difference_p_value([one]) == pytest.approx(scipy.stats.fisher_exact(table(one)).pvalue, rel=1e-6)


@pytest.mark.parametrize(("before", "after"), [(500, 480), (700, 700), (640, 700), (350, 290)])
def test_the_approximation_for_very_many_replicas(before: int, after: int) -> None:
    one = Stratum(before, 1_000, after, 1_000)
    if min(before + after, 2_000 - before - after) > 600:
        assert worse_p_value(one) == pytest.approx(scipy.stats.fisher_exact(table(one), "greater").pvalue, abs=0.005)


@given(st.integers(1, 2_000), st.floats(0, 1))
@settings(max_examples=settings().max_examples // 2)
def test_the_interval_of_wilson(total: int, share: float) -> None:
    passed = round(share * total)
    theirs = scipy.stats.binomtest(passed, total).proportion_ci(method="wilson")
    ours = wilson(passed, total)
    assert (ours.low, ours.high, ours.n) == (
        pytest.approx(theirs.low, abs=1e-12),
        pytest.approx(theirs.high, abs=1e-12),
        total,
    )


# SciPy overflows for a share next to the smallest number there is.
SHARES = st.floats(0, 1).map(lambda share: round(share, 9))


@given(SHARES, SHARES, st.integers(2, 12))
@settings(max_examples=settings().max_examples // 2, deadline=None)
def test_the_power_of_the_test_by_every_outcome(before: float, after: float, count: int) -> None:
    outcomes = np.arange(count + 1)
    chances = np.outer(scipy.stats.binom.pmf(outcomes, count, before), scipy.stats.binom.pmf(outcomes, count, after))
    expected = sum(
        chances[a, b]
        for a in outcomes
        for b in outcomes
        if scipy.stats.fisher_exact([[a, count - a], [b, count - b]], "greater").pvalue < 0.05
    )
    assert replicas.detection(before, after, count) == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_that_of_drawing_without_putting_back(total: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, total)), data.draw(st.integers(1, total))
    drawn = scipy.stats.hypergeom(total, passed, k)
    assert replicas.pass_at(passed, total, k) == pytest.approx(1 - drawn.pmf(0), abs=1e-9)
    assert replicas.pass_hat(passed, total, k) == pytest.approx(drawn.pmf(k), abs=1e-9)


def units(seed: int, count: int, *, cells: int = 0) -> list[Unit]:
    """Scenarios of different difficulty; cells: of each, else each has its own number."""
    random = Random(seed)
    found = []
    for _ in range(count):
        own = cells or random.randint(1, 4)
        rate = random.betavariate(3, 1)
        found.append(Unit(math.fsum(float(random.random() < rate) for _ in range(own)), own))
    return sorted(found)


def mean_of(sums: np.ndarray, cells: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.sum(sums, axis=axis) / np.sum(cells, axis=axis)


@pytest.mark.parametrize("cells", [0, 1, 3])
@pytest.mark.parametrize("count", [8, 12, 40])
def test_the_interval_of_a_mean_is_bca_by_the_draws_it_made(count: int, cells: int) -> None:
    """scipy is given our draws, so that nothing of it is chance."""
    found = units(count, count, cells=cells)
    columns = [np.array(column, dtype=float) for column in zip(*found, strict=True)]
    draws = SimpleNamespace(bootstrap_distribution=np.array(intervals.resampled_means(found)))
    theirs = scipy.stats.bootstrap(
        columns, mean_of, n_resamples=0, bootstrap_result=draws, paired=True, method="BCa", vectorized=True
    ).confidence_interval
    low, high = intervals.mean_interval(found)
    assert (low, high) == (pytest.approx(max(0, theirs.low), abs=1e-6), pytest.approx(min(1, theirs.high), abs=1e-6))


@pytest.mark.parametrize("count", [12, 40, 100])
def test_the_draws_are_draws(count: int) -> None:
    """Of another generator: what differs is the error of 2,000 draws."""
    found = units(3, count)
    columns = [np.array(column, dtype=float) for column in zip(*found, strict=True)]
    theirs = scipy.stats.bootstrap(
        columns, mean_of, n_resamples=20_000, paired=True, method="BCa", vectorized=True, rng=np.random.default_rng(5)
    ).confidence_interval
    low, high = intervals.mean_interval(found)
    width = theirs.high - theirs.low
    assert abs(low - theirs.low) < width / 12
    assert abs(high - theirs.high) < width / 12


@pytest.mark.parametrize("cells", [0, 1])
@pytest.mark.parametrize("count", [101, 400])
def test_the_analytic_form_is_the_limit_of_the_draws(count: int, cells: int) -> None:
    found = units(9, count, cells=cells)
    columns = [np.array(column, dtype=float) for column in zip(*found, strict=True)]
    theirs = scipy.stats.bootstrap(
        columns, mean_of, n_resamples=20_000, paired=True, method="BCa", vectorized=True, rng=np.random.default_rng(5)
    ).confidence_interval
    low, high = intervals.mean_interval(found)
    width = theirs.high - theirs.low
    assert abs(low - theirs.low) < width / 20
    assert abs(high - theirs.high) < width / 20
