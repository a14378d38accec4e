"""Intervals, pass@k, pass^k and the smallest drop: what must hold whatever the results are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shard_runs import cell, spec, whole

from keystone_action.scoring.aggregate import decide_spec
from keystone_action.scoring.document import run_from_document, run_to_document
from keystone_action.scoring.results import CellResult, SpecResult
from keystone_action.scoring.statistics import (
    FEWEST,
    MOST_DRAWN,
    MOST_TRIES,
    POWER,
    SIGNIFICANT,
    Stratum,
    Unit,
    composite_interval,
    detection,
    drop_with_power,
    false_alarm_rate,
    mean_interval,
    most_that_shows,
    pass_at,
    pass_hat,
    reliability,
    smallest_drop,
    with_certainty,
    worse_p_value,
)

UNITS = st.lists(
    st.builds(lambda share, cells: Unit(share * cells, cells), st.floats(0, 1), st.integers(1, 5)),
    min_size=FEWEST,
    max_size=20,
).filter(lambda found: len({round(one.sum / one.cells, 9) for one in found}) > 1)
COUNTS = st.integers(1, 30).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))


@given(UNITS, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_an_interval_is_around_its_mean_and_the_order_does_not_matter(found: list[Unit], random: Random) -> None:
    mean = sum(one.sum for one in found) / sum(one.cells for one in found)
    low, high = mean_interval(found)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1
    assert mean_interval(random.sample(found, len(found))) == (low, high)


def scored(*scores: float | None, replicas: int = 1, model: str = "") -> list[CellResult]:
    """A scenario for each score."""
    return [
        replace(
            cell("alpha", f"s{number}", replica, "error" if score is None else "pass", model=model), composite=score
        )
        for number, score in enumerate(scores)
        for replica in range(replicas)
    ]


def test_an_interval_of_scenarios_and_of_replicas() -> None:
    found = composite_interval(scored(1.0, 0.9, 0.2, 1.0, 0.7, None, replicas=2))
    assert found is not None
    assert (found.n, found.unit, found.method) == (5, "scenarios", "bootstrap")
    assert found.low < 0.76 < found.high
    alone = [replace(one, scenario="one") for one in scored(1.0, 0.5, 1.0, 0.0, 1.0, 1.0)]
    found = composite_interval(alone)
    assert found is not None
    assert (found.n, found.unit) == (6, "replicas")
    many = composite_interval(scored(*[n % 7 / 7 for n in range(MOST_DRAWN + 1)]))
    assert many is not None
    assert (many.n, many.method) == (MOST_DRAWN + 1, "abc")


@pytest.mark.parametrize(
    "cells",
    [
        [],
        scored(0.5),
        scored(0.5, 0.7, 0.9, 1.0),
        scored(0.5, 0.7, 0.9, 1.0, None, None),
        scored(*[1.0] * 40),
        scored(*[1.0] * 30, *[0.0] * 10),
        [replace(one, scenario="one") for model in "abcdef" for one in scored(len(model) / 2, model=model)],
    ],
)
def test_where_nothing_is_known_of_others_nothing_is_said(cells: list[CellResult]) -> None:
    assert composite_interval(cells) is None


def test_replicas_are_not_taken_for_scenarios() -> None:
    """Ten replicas that all end like the first tell of one scenario, not of ten."""
    scores = [1.0, 1.0, 0.0, 0.9, 0.0, 1.0]
    once, often = composite_interval(scored(*scores)), composite_interval(scored(*scores, replicas=10))
    assert once is not None
    assert often is not None
    assert (often.low, often.high) == (pytest.approx(once.low, abs=0.07), pytest.approx(once.high, abs=0.07))


@given(COUNTS)
def test_more_tries_help_one_to_pass_and_hinder_all(group: tuple[int, int]) -> None:
    passed, total = group
    at = [pass_at(passed, total, k) for k in range(1, total + 1)]
    hat = [pass_hat(passed, total, k) for k in range(1, total + 1)]
    assert at[0] == pytest.approx(passed / total)
    assert hat[0] == pytest.approx(passed / total)
    assert at == sorted(at)
    assert hat == sorted(hat, reverse=True)
    assert all(0 <= low <= high <= 1 for low, high in zip(hat, at, strict=True))
    failed = [pass_hat(total - passed, total, k) for k in range(1, total + 1)]
    assert at == pytest.approx([1 - one for one in failed])


def test_reliability_is_a_mean_over_groups() -> None:
    found = reliability([(5, 5), (1, 5), (0, 0), (3, 6)])
    assert found is not None
    assert (found.replicas, found.groups) == (5, 3)
    assert found.pass_at_k[0] == found.pass_hat_k[0] == pytest.approx((1 + 0.2 + 0.5) / 3)
    assert found.pass_at_k[1] == pytest.approx((1 + 0.4 + 0.8) / 3)
    assert found.pass_hat_k[1] == pytest.approx((1 + 0 + 0.2) / 3)
    assert reliability([(1, 1), (3, 5)]) is None
    assert reliability([]) is None
    many = reliability([(150, 200)])
    assert many is not None
    assert len(many.pass_at_k) == len(many.pass_hat_k) == MOST_TRIES


def test_the_unbiased_estimators_are() -> None:
    """The mean over all outcomes of five tries is what three tries of this agent come to."""
    from math import comb

    rate = 0.6
    chances = [comb(5, c) * rate**c * (1 - rate) ** (5 - c) for c in range(6)]
    assert sum(one * pass_at(c, 5, 3) for c, one in enumerate(chances)) == pytest.approx(1 - 0.4**3)
    assert sum(one * pass_hat(c, 5, 3) for c, one in enumerate(chances)) == pytest.approx(0.6**3)


@pytest.mark.parametrize(
    ("passed", "replicas", "most", "with_power"),
    [
        (3, 3, None, None),
        (4, 4, 0, 0.95),
        (5, 5, 1, 0.84),
        (4, 5, 0, None),
        (3, 5, None, None),
        (10, 10, 6, 0.49),
        (30, 30, 25, 0.22),
    ],
)
def test_the_smallest_drop_that_would_show(passed: int, replicas: int, most: int | None, with_power: float) -> None:
    found = smallest_drop([(passed, replicas)])
    assert found is not None
    assert most_that_shows(passed, replicas) == most
    assert found.drop == (None if most is None else pytest.approx((passed - most) / replicas))
    assert (found.replicas, found.rate, found.drop_with_power) == (replicas, passed / replicas, with_power)


def test_of_several_groups_the_smallest_and_one_that_passed_counts() -> None:
    found = smallest_drop([(3, 5), (10, 10), (0, 0)])
    assert found is not None
    assert (found.replicas, found.rate, found.drop) == (5, 1.0, 0.8)
    assert smallest_drop([(1, 1), (10, 10)]) is None


@given(st.integers(2, 30), st.data())
def test_nothing_smaller_shows_and_all_that_is_larger_does(replicas: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, replicas))
    most = most_that_shows(passed, replicas)
    for after in range(replicas + 1):
        shows = worse_p_value(Stratum(passed, replicas, after, replicas)) < SIGNIFICANT
        assert shows == (most is not None and after <= most)


@given(st.integers(2, 25), st.integers(0, 100))
@settings(deadline=None)
def test_a_drop_with_power_is_found_so_often_and_a_smaller_one_is_not(replicas: int, percent: int) -> None:
    rate = percent / 100
    drop = drop_with_power(rate, replicas)
    if drop is None:
        assert detection(rate, 0.0, replicas) < POWER
    else:
        assert detection(rate, max(0.0, rate - drop), replicas) >= POWER
        assert detection(rate, rate - drop + 0.01, replicas) < POWER


@given(COUNTS, COUNTS)
def test_the_one_sided_test(before: tuple[int, int], after: tuple[int, int]) -> None:
    one = Stratum(*before, *after)
    p = worse_p_value(one)
    assert 0 < p <= 1
    if after[0] < after[1]:
        assert worse_p_value(one._replace(passed_after=after[0] + 1)) >= p
    as_failures = Stratum(after[1] - after[0], after[1], before[1] - before[0], before[1])
    assert worse_p_value(as_failures) == pytest.approx(p)
    assert 0 <= false_alarm_rate(one) < SIGNIFICANT
    assert false_alarm_rate(one) >= (p if p < SIGNIFICANT else 0)


@pytest.mark.parametrize("wrong", [Stratum(2, 1, 0, 1), Stratum(-1, 1, 0, 1), Stratum(0, 1, 2, 1)])
def test_counts_that_are_none(wrong: Stratum) -> None:
    with pytest.raises(ValueError, match="not a count of passes"):
        worse_p_value(wrong)


def many_cells(count: int, replicas: int) -> SpecResult:
    random = Random(4)
    cells = [
        replace(one, composite=random.random())
        for scenario in range(count // replicas)
        for one in (cell("alpha", f"s{scenario}", replica, "pass") for replica in range(replicas))
    ]
    return spec("alpha", cells)


@pytest.mark.parametrize("replicas", [1, 100, 10_000])
@pytest.mark.slow
def test_of_ten_thousand_cells_no_more_than_a_hundred_units_are_drawn(replicas: int) -> None:
    found = many_cells(10_000, replicas)
    again = with_certainty(decide_spec(found, found.cells))
    assert again == found
    assert again.composite_interval is not None
    expected = {
        1: (10_000, "scenarios", "abc"),
        100: (100, "scenarios", "bootstrap"),
        10_000: (10_000, "replicas", "abc"),
    }
    interval = again.composite_interval
    assert (interval.n, interval.unit, interval.method) == expected[replicas]


def test_results_with_all_of_it_are_read_back_and_older_ones_too() -> None:
    run = whole([many_cells(40, 5)])
    (found,) = run.specs
    assert None not in (found.composite_interval, found.reliability, found.smallest_drop)
    document = run_to_document(run)
    assert run_from_document(document) == run
    for name in ("composite_interval", "reliability", "smallest_drop"):
        del document["specs"][0][name]
    del document["specs"][0]["pass_rate"]["n"]
    (older,) = run_from_document(document).specs
    assert older.reliability is None
    assert with_certainty(decide_spec(older, older.cells)) == found


@pytest.mark.slow
def test_intervals_hold_as_often_as_the_page_says() -> None:
    """The draws are seeded: the table is that of this very simulation."""
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text("utf-8")
    sizes, held = (
        re.findall(r"(\d+)", line) for line in re.findall(r"^\| (?:scenarios|held) \|.*$", page, re.MULTILINE)
    )
    for size, percent in zip(map(int, sizes), map(int, held), strict=True):
        random, hits = Random(7), 0
        for _ in range(300):
            low, high = mean_interval([Unit(random.betavariate(4, 1), 1) for _ in range(size)])
            hits += low <= 0.8 <= high
        assert round(hits / 3) == percent, size
