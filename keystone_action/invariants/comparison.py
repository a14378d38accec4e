"""Comparing what a spec expects with a value that a database or a document holds (shared contract, 5.3).

Numbers compare by value and never with text; a boolean equals only a boolean, except where the engine has none and
uses 0 and 1; dates, times and UUIDs compare with text by what the text means (ISO 8601); null equals only null.
Pure functions; nothing in here raises for any pair of values.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

Number = int | float | Decimal

_CLOCK = re.compile(
    r"(?P<sign>-)?(?:(?P<days>\d+) days?,? )?(?P<h>\d+):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d(?:\.\d{1,6})?))?"
)
_ISO_PERIOD = re.compile(
    r"(?P<sign>-)?P(?:(?P<days>\d+(?:\.\d+)?)D)?(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?"
    r"(?:(?P<s>\d+(?:\.\d+)?)S)?)?"
)
_ISO_TYPES = (dt.date, dt.time, dt.timedelta, uuid.UUID)
_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (Decimal, "decimal"),
    (str, "text"),
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
    (dt.time, "time"),
    (dt.timedelta, "interval"),
    (uuid.UUID, "uuid"),
    ((bytes, bytearray, memoryview), "bytes"),
    (Mapping, "mapping"),
)


def equal(expected: object, found: object, *, boolean_as_number: bool = False) -> bool:
    """Whether `found` is what the spec expects.

    boolean_as_number: the engine that `found` comes from has no boolean; then true is 1 and false is 0.
    """
    if expected is None or found is None:
        return expected is None and found is None
    if isinstance(expected, bool) or isinstance(found, bool):
        return _equal_booleans(expected, found, boolean_as_number=boolean_as_number)
    if isinstance(expected, Number) or isinstance(found, Number):
        return isinstance(expected, Number) and isinstance(found, Number) and exact(expected) == exact(found)
    if isinstance(expected, Mapping) or isinstance(found, Mapping):
        if not (isinstance(expected, Mapping) and isinstance(found, Mapping)) or expected.keys() != found.keys():
            return False
        return all(equal(expected[key], found[key], boolean_as_number=boolean_as_number) for key in expected)
    if is_list(expected) or is_list(found):
        if not (is_list(expected) and is_list(found)) or len(expected) != len(found):  # type: ignore[arg-type]
            return False
        pairs = zip(expected, found, strict=True)  # type: ignore[call-overload]
        return all(equal(one, other, boolean_as_number=boolean_as_number) for one, other in pairs)
    if isinstance(expected, str):
        return _equal_text(expected, found)
    return bool(expected == found)


def _equal_booleans(expected: object, found: object, *, boolean_as_number: bool) -> bool:
    if isinstance(expected, bool) and isinstance(found, bool):
        return expected is found
    if not boolean_as_number:
        return False
    return isinstance(expected, Number) and isinstance(found, Number) and exact(expected) == exact(found)


def _equal_text(expected: str, found: object) -> bool:
    if isinstance(found, str):
        return expected == found
    meant = read_as(expected, found)
    if meant is not None:
        return bool(meant == found)
    if isinstance(found, bytes | bytearray | memoryview):
        return expected == text_form(found) or expected == f"\\x{bytes(found).hex()}"
    if isinstance(found, _ISO_TYPES):
        return False
    return expected == str(found)


def exact(number: Number) -> Decimal:
    """A number as people read it: the float 0.1 is 0.1, not its binary neighbour. NaN becomes a NaN that equals
    nothing and signals nothing."""
    if isinstance(number, float):
        return Decimal(repr(number))
    if isinstance(number, Decimal):
        return Decimal("NaN") if number.is_nan() else number
    return Decimal(number)


def read_as(text: str, like: object) -> Any:
    """What a text means as a value of the type of `like`: a date, time, timestamp, interval or UUID. None when it is
    none, or when `like` is of another type.

    A timestamp or time without an offset is read in UTC where `like` has a zone; one with an offset is nothing that a
    value without a zone could equal.
    """
    try:
        if isinstance(like, dt.datetime):
            return _in_zone_of(like, dt.datetime.fromisoformat(text))
        if isinstance(like, dt.date):
            return dt.date.fromisoformat(text)
        if isinstance(like, dt.time):
            return _in_zone_of(like, dt.time.fromisoformat(text))
        if isinstance(like, uuid.UUID):
            return uuid.UUID(text)
        if isinstance(like, dt.timedelta):
            return _interval(text)
    except (ValueError, OverflowError):
        return None
    return None


def _in_zone_of(like: Any, meant: Any) -> Any:
    if like.tzinfo is not None:
        return meant if meant.tzinfo is not None else meant.replace(tzinfo=dt.UTC)
    return meant if meant.tzinfo is None else None


def _interval(text: str) -> dt.timedelta | None:
    match = _CLOCK.fullmatch(text) or (_ISO_PERIOD.fullmatch(text) if text[-1:] not in ("P", "T") else None)
    if match is None:
        return None
    days, hours, minutes, secs = (float(match[name] or 0) for name in ("days", "h", "m", "s"))
    span = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=secs)
    return -span if match["sign"] else span


def order(expected: object, found: object) -> int | None:
    """-1, 0 or 1 as `found` is below, at or above `expected`; None where the two have no order (a number and a text,
    NaN, null, a boolean, a mapping). Text is ordered by code points; dates and the like by what the text means."""
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return None
    if isinstance(expected, Number) and isinstance(found, Number):
        left, right = exact(found), exact(expected)
        return None if left.is_nan() or right.is_nan() else (left > right) - (left < right)
    if not isinstance(expected, str):
        return None
    if isinstance(found, str):
        return (found > expected) - (found < expected)
    meant: Any = read_as(expected, found)
    if meant is None or isinstance(found, uuid.UUID):
        return None
    other: Any = found
    try:
        return bool(other > meant) - bool(other < meant)
    except TypeError:
        return None


def contains(expected: object, found: object) -> bool:
    """A text contains a text (case-sensitive), a list an element, a mapping a key. All else contains nothing."""
    if isinstance(found, Mapping):
        return isinstance(expected, str) and expected in found
    if is_list(found):
        return any(equal(expected, item) for item in found)  # type: ignore[attr-defined]
    text = text_form(found)
    return text is not None and isinstance(expected, str) and expected in text


def text_form(found: object) -> str | None:
    """The text of a value that is one, or that has one form in ISO (dates, UUIDs); None for numbers, booleans, lists,
    mappings, null and bytes that are not UTF-8."""
    if isinstance(found, str):
        return found
    if isinstance(found, bytes | bytearray | memoryview):
        try:
            return bytes(found).decode()
        except UnicodeDecodeError:
            return None
    if isinstance(found, dt.date | dt.time):
        return found.isoformat()
    if isinstance(found, uuid.UUID):
        return str(found)
    return None


def is_list(value: object) -> bool:
    """A list or tuple, not a text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def type_name(value: object) -> str:
    """The type of a value in the words of a spec: `integer`, `text`, `timestamp`, …"""
    if value is None:
        return "null"
    if is_list(value):
        return "list"
    return next((name for types, name in _NAMES if isinstance(value, types)), type(value).__name__)


def describe(value: object, *, limit: int = 200) -> str:
    """A value with its type, for messages: `42 (integer)`, `'42' (text)`; cut after `limit` characters."""
    if value is None:
        return "null"
    shown = shown_value(value)
    return f"{shown if len(shown) <= limit else shown[: limit - 1] + '…'} ({type_name(value)})"


def shown_value(value: object) -> str:
    """A value without its type: text in quotes, everything else in the form that a spec would write."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, bytes | bytearray | memoryview):
        text = text_form(value)
        return f"\\x{bytes(value).hex()}" if text is None else repr(text)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown_value(item)}" for key, item in value.items()) + "}"
    if is_list(value):
        return "[" + ", ".join(shown_value(item) for item in value) + "]"  # type: ignore[attr-defined]
    return str(text_form(value) or value)


def json_value(value: object) -> Any:
    """A value as JSON can hold it, for results.json: what JSON has no form for becomes its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if is_list(value):
        return [json_value(item) for item in value]  # type: ignore[attr-defined]
    return shown_value(value) if isinstance(value, bytes | bytearray | memoryview) else str(text_form(value) or value)


def line_ends(one: bytes, other: bytes) -> tuple[str, str] | None:
    """The line ends of two contents that differ in nothing else, as in `("LF", "CRLF")` or, at the end of the content,
    `("1 at the end", "none at the end")`. None where they are equal or differ in more."""
    plain, bare = (content.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for content in (one, other))
    if one == other or plain.rstrip(b"\n") != bare.rstrip(b"\n"):
        return None
    return (_ends(one), _ends(other)) if plain == bare else (_count_last(plain), _count_last(bare))


def _ends(content: bytes) -> str:
    windows = content.count(b"\r\n")
    counts = {"LF": content.count(b"\n") - windows, "CRLF": windows, "CR": content.count(b"\r") - windows}
    return " and ".join(name for name, count in counts.items() if count)


def _count_last(content: bytes) -> str:
    count = len(content) - len(content.rstrip(b"\n"))
    return f"{count or 'none'} at the end"
