"""Comparing expected with found values: the rules of the contract as examples, and as properties."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.invariants.comparison import contains, describe, equal, json_value, order, text_form

UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=2))
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (None, None),
        (0, 0),
        (1, 1.0),
        (1, Decimal("1.00")),
        (0.1, Decimal("0.1")),
        (0.1, 0.1),
        (12.5, Decimal("12.50")),
        (2**70, Decimal(2**70)),
        (float("inf"), Decimal("Infinity")),
        (True, True),
        (False, False),
        ("a", "a"),
        ("", ""),
        ("2026-01-31", dt.date(2026, 1, 31)),
        ("2026-01-31T12:00:00", dt.datetime(2026, 1, 31, 12)),
        ("2026-01-31 12:00:00", dt.datetime(2026, 1, 31, 12)),
        ("2026-01-31", dt.datetime(2026, 1, 31)),
        ("2026-01-31T12:00:00Z", dt.datetime(2026, 1, 31, 14, tzinfo=EAST)),
        ("2026-01-31T14:00:00+02:00", dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00", dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("12:30", dt.time(12, 30)),
        ("12:30:00.5", dt.time(12, 30, 0, 500_000)),
        ("01:30:00", dt.timedelta(hours=1, minutes=30)),
        ("-01:30:00", -dt.timedelta(hours=1, minutes=30)),
        ("838:59:59", dt.timedelta(hours=838, minutes=59, seconds=59)),
        ("2 days 03:00:00", dt.timedelta(days=2, hours=3)),
        ("P1DT2H", dt.timedelta(days=1, hours=2)),
        ("PT90S", dt.timedelta(seconds=90)),
        (str(ID), ID),
        (str(ID).upper(), ID),
        (ID.hex, ID),
        ("hi", b"hi"),
        ("\\x6869", b"hi"),
        ("hi", memoryview(b"hi")),
        ([1, "a", None], [1.0, "a", None]),
        ([1, 2], (Decimal(1), 2)),
        ({"a": [1, {"b": True}]}, {"a": [1.0, {"b": True}]}),
        ([], []),
    ],
)
def test_equal(expected: object, found: object) -> None:
    assert equal(expected, found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (None, 0),
        (0, None),
        (None, ""),
        (None, False),
        ("0", 0),
        (0, "0"),
        ("12.5", Decimal("12.5")),
        (1, True),
        (True, 1),
        (False, 0),
        (True, "true"),
        ("true", True),
        (0.1, Decimal("0.1000000000000000055511151231257827")),
        (float("nan"), float("nan")),
        (float("nan"), Decimal("NaN")),
        (1, Decimal("sNaN")),
        ("a", "A"),
        ("a", "a "),
        ("2026-01-30", dt.date(2026, 1, 31)),
        ("2026-01-31T00:00:00", dt.date(2026, 1, 31)),
        ("yesterday", dt.date(2026, 1, 31)),
        (20260131, dt.date(2026, 1, 31)),
        ("2026-01-31T12:00:00Z", dt.datetime(2026, 1, 31, 12)),
        ("P", dt.timedelta(0)),
        ("PT", dt.timedelta(0)),
        ("not-a-uuid", ID),
        ("hi", b"ho"),
        ("[1]", [1]),
        ([1], 1),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, [["a", 1]]),
        ([True], [1]),
    ],
)
def test_not_equal(expected: object, found: object) -> None:
    assert not equal(expected, found)


@pytest.mark.parametrize(("expected", "found"), [(True, 1), (False, 0), (True, Decimal(1)), ([True], [1])])
def test_where_an_engine_has_no_boolean_zero_and_one_stand_for_it(expected: object, found: object) -> None:
    assert equal(expected, found, boolean_as_number=True)
    assert not equal(expected, found)


@pytest.mark.parametrize(("expected", "found"), [(True, 2), (False, 1), (True, "1"), (True, None)])
def test_and_nothing_else_does(expected: object, found: object) -> None:
    assert not equal(expected, found, boolean_as_number=True)


@pytest.mark.parametrize(
    ("expected", "found", "sign"),
    [
        (1, 2, 1),
        (2, 1, -1),
        (1, Decimal("1.0"), 0),
        (0.3, Decimal("0.3"), 0),
        (1e308, float("inf"), 1),
        ("a", "b", 1),
        ("2026-01-01", dt.date(2025, 12, 31), -1),
        ("2026-01-01T00:00:00Z", dt.datetime(2026, 1, 1, tzinfo=UTC), 0),
        ("12:00", dt.time(13), 1),
        ("01:00:00", dt.timedelta(minutes=59), -1),
    ],
)
def test_order(expected: object, found: object, sign: int) -> None:
    assert order(expected, found) == sign


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (1, "2"),
        ("1", 2),
        (1, None),
        (1, True),
        (1, float("nan")),
        (1, Decimal("sNaN")),
        (1, [2]),
        ("x", dt.date(2026, 1, 1)),
        ("2026-01-01T00:00:00Z", dt.datetime(2026, 1, 1)),
        (str(ID), ID),
        ("a", b"b"),
    ],
)
def test_no_order(expected: object, found: object) -> None:
    assert order(expected, found) is None


@pytest.mark.parametrize(
    ("expected", "found", "holds"),
    [
        ("ell", "hello", True),
        ("ELL", "hello", False),
        ("2026", dt.date(2026, 1, 1), True),
        ("ell", b"hello", True),
        (1, [1.0, 2], True),
        (3, [1, 2], False),
        ("a", {"a": 1}, True),
        (1, {"1": 1}, False),
        ("5", 15, False),
        (5, "15", False),
        ("x", None, False),
        ("x", b"\xffx", False),
        ("r", True, False),
    ],
)
def test_contains(expected: object, found: object, holds: bool) -> None:
    assert contains(expected, found) is holds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (0, "0 (integer)"),
        ("0", "'0' (text)"),
        (True, "true (boolean)"),
        (0.5, "0.5 (number)"),
        (Decimal("0.50"), "0.50 (decimal)"),
        (dt.date(2026, 1, 1), "2026-01-01 (date)"),
        (dt.datetime(2026, 1, 1), "2026-01-01T00:00:00 (timestamp)"),
        (ID, f"{ID} (uuid)"),
        (b"\xff", "\\xff (bytes)"),
        ([1, "a", None], "[1, 'a', None] (list)"),
        ({"a": [True]}, "{a: [true]} (mapping)"),
        ("x" * 500, "'" + "x" * 198 + "… (text)"),
    ],
)
def test_describe_shows_the_value_with_its_type(value: object, text: str) -> None:
    assert describe(value) == text


scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(max_size=20)
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
values = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)


def has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, list):
        return any(has_nan(item) for item in value)
    return (isinstance(value, float) and math.isnan(value)) or (isinstance(value, Decimal) and value.is_nan())


@given(values)
def test_everything_but_nan_equals_itself(value: Any) -> None:
    assert equal(value, value) is not has_nan(value)


@given(values, values)
def test_nothing_raises_and_answers_agree(expected: Any, found: Any) -> None:
    sign = order(expected, found)
    assert sign in (None, -1, 0, 1)
    if sign in (-1, 1):
        assert not equal(expected, found)
    assert isinstance(contains(expected, found), bool)
    describe(found)
    json.dumps(json_value(found), allow_nan=False)


@given(st.integers() | st.floats() | st.decimals(), st.text())
def test_a_number_never_equals_text(number: Any, text: str) -> None:
    assert not equal(str(number), number)
    assert not equal(text, number)
    assert not equal(number, text)


@given(st.booleans(), st.integers() | st.floats())
def test_a_boolean_never_equals_a_number(boolean: bool, number: Any) -> None:
    assert not equal(boolean, number)
    assert not equal(number, boolean)


@given(st.dates() | st.datetimes() | st.datetimes(timezones=st.just(UTC)) | st.times() | st.uuids())
def test_what_has_an_iso_form_equals_it(value: Any) -> None:
    text = text_form(value)
    assert text is not None
    assert equal(text, value)


@given(st.integers(), st.integers())
def test_integers_compare_by_value_in_every_type(one: int, other: int) -> None:
    assert equal(one, Decimal(other)) is (one == other)
    assert order(one, Decimal(other)) == (other > one) - (other < one)
