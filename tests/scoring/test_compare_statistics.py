"""The test for two pass rates, against values that others published or that can be worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.scoring import statistics
from keystone_action.scoring.statistics import Stratum, difference_p_value

STRATA = st.builds(
    lambda total, other, passed, also: Stratum(min(passed, total), total, min(also, other), other),
    *[st.integers(0, 6)] * 4,
)


def test_fishers_tea() -> None:
    """Fisher's lady with eight cups: three of four right has p = 34/70 in both directions, four of four 2/70."""
    assert difference_p_value([Stratum(3, 4, 1, 4)]) == pytest.approx(34 / 70)
    assert difference_p_value([Stratum(4, 4, 0, 4)]) == pytest.approx(2 / 70)


@pytest.mark.parametrize(("broken", "fixed"), [(1, 0), (5, 0), (8, 1), (6, 4), (10, 10), (3, 17)])
def test_single_replicas_make_it_the_exact_test_of_mcnemar(broken: int, fixed: int) -> None:
    pairs = [Stratum(1, 1, 0, 1)] * broken + [Stratum(0, 1, 1, 1)] * fixed + [Stratum(1, 1, 1, 1)] * 7
    n, k = broken + fixed, min(broken, fixed)
    expected = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert difference_p_value(pairs) == pytest.approx(expected)


@given(st.lists(STRATA, max_size=3))
def test_the_same_as_writing_every_outcome_out(strata: list[Stratum]) -> None:
    outcomes: dict[int, Fraction] = {}
    tables = [one for one in strata if one.total_before and one.total_after]
    for chosen in product(*(range(one.total_before + 1) for one in tables)):
        ways = Fraction(1)
        for count, one in zip(chosen, tables, strict=True):
            passed = one.passed_before + one.passed_after
            rest = passed - count
            if not 0 <= rest <= one.total_after:
                ways = Fraction(0)
                break
            ways *= Fraction(
                math.comb(one.total_before, count) * math.comb(one.total_after, rest),
                math.comb(one.total_before + one.total_after, passed),
            )
        outcomes[sum(chosen)] = outcomes.get(sum(chosen), Fraction(0)) + ways
    observed = outcomes[sum(one.passed_before for one in tables)]
    expected = sum(chance for chance in outcomes.values() if chance <= observed)
    assert difference_p_value(strata) == pytest.approx(float(expected), rel=1e-6)


@given(st.lists(STRATA, max_size=5))
def test_a_probability_that_does_not_know_the_sides(strata: list[Stratum]) -> None:
    exchanged = [Stratum(c, d, a, b) for a, b, c, d in strata]
    found = difference_p_value(strata)
    assert 0 < found <= 1
    assert difference_p_value(exchanged) == pytest.approx(found, rel=1e-6)
    assert difference_p_value([*strata, Stratum(3, 3, 2, 2), Stratum(0, 0, 1, 2)]) == pytest.approx(found)


@given(st.integers(0, 120), st.integers(0, 120))
def test_the_approximation_agrees_where_both_can_be_had(passed: int, other: int) -> None:
    table = [Stratum(passed, 120, other, 120)]
    if 0 < passed + other < 240:
        assert statistics._approximate(table) == pytest.approx(difference_p_value(table), abs=0.03)


def test_very_many_cells() -> None:
    many = [Stratum(1, 1, 0, 1)] * 3_000 + [Stratum(0, 1, 1, 1)] * 3_000
    assert difference_p_value(many) == pytest.approx(1.0, abs=0.02)
    assert 0 < difference_p_value([Stratum(1, 1, 0, 1)] * 9_000) < 1e-100


@pytest.mark.parametrize("wrong", [Stratum(2, 1, 0, 1), Stratum(-1, 1, 0, 1), Stratum(0, 1, 2, 1)])
def test_counts_that_are_none(wrong: Stratum) -> None:
    with pytest.raises(ValueError, match="not a count of passes"):
        difference_p_value([wrong])
