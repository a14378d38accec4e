"""Precision, recall, F1 and order of tool calls, against definitions that are slow and plain."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.invariants.types.tool_correctness import align

SMALL = st.integers(0, 4).flatmap(
    lambda expected: st.tuples(st.just(expected), st.lists(st.integers(0, (1 << expected) - 1), max_size=5))
)
MANY = st.integers(1, 70).flatmap(
    lambda expected: st.tuples(st.just(expected), st.lists(st.integers(0, (1 << expected) - 1), max_size=40))
)


def most_matched(expected: int, calls: list[int]) -> int:
    """By trying every way to hand out calls."""
    slots = [*range(len(calls)), *[None] * expected]
    return max(
        sum(call is not None and calls[call] >> index & 1 for index, call in enumerate(way))
        for way in itertools.permutations(slots, expected)
    )


def longest_common(expected: int, calls: list[int]) -> int:
    """By the definition of the longest common subsequence."""

    @cache
    def longest(index: int, call: int) -> int:
        if index == expected or call == len(calls):
            return 0
        if calls[call] >> index & 1:
            return 1 + longest(index + 1, call + 1)
        return max(longest(index + 1, call), longest(index, call + 1))

    return longest(0, 0)


@given(SMALL)
def test_as_many_are_matched_as_can_be(case: tuple[int, list[int]]) -> None:
    expected, calls = case
    found = align(expected, calls)
    assert found.matched == most_matched(expected, calls)
    assert found.matched + len(found.missing) == expected


@given(MANY)
def test_the_order_is_the_longest_common_subsequence(case: tuple[int, list[int]]) -> None:
    expected, calls = case
    found = align(expected, calls)
    assert found.in_order == longest_common(expected, calls)
    assert found.in_order <= found.matched <= min(expected, len(calls))


@given(MANY)
def test_scores_are_what_their_names_say(case: tuple[int, list[int]]) -> None:
    found = align(*case)
    assert 0 <= found.precision <= 1
    assert 0 <= found.recall <= 1
    if found.precision + found.recall:
        harmonic = 2 * found.precision * found.recall / (found.precision + found.recall)
        assert found.f1 == pytest.approx(harmonic)
    else:
        assert found.f1 == 0
    assert 0 <= found.f1 * found.order <= 1
    assert found.exact(ordered=False) is (found.f1 == 1.0)


def test_a_hundred_thousand_calls_that_all_fit() -> None:
    found = align(50, [(1 << 50) - 1] * 100_000)
    assert (found.matched, found.in_order, found.missing) == (50, 50, ())
