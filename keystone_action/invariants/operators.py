"""The operators of an assertion: whether a value is what the spec expects, and if not, why, in words.

`matches` runs a regular expression by Python's rules, in a package whose search can be stopped at a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import Missing, wire_text
from keystone_action.invariants.comparison import contains, describe, equal, order, shown_value
from keystone_action.spec.models.fields import RegexPattern, StrictModel


class PatternTimeout(Exception):  # noqa: N818 - an outcome: the check fails
    """A pattern hit its time limit; the message is a sentence without its full stop."""


def search_pattern(pattern: str, text: str, *, deadline: float) -> bool:
    """Whether the pattern matches somewhere; `^` and `$` bind to the whole text unless it says `(?m)`.

    deadline: in `time.monotonic()` seconds. Raises PatternTimeout at the deadline, regex.error for an
    invalid pattern (the loader has refused those).
    """
    import regex

    remaining = deadline - time.monotonic()
    try:
        # concurrent=True lets other threads run meanwhile: this text may have been written to take forever.
        return regex.search(pattern, text, timeout=max(remaining, 0.001), concurrent=True) is not None
    except TimeoutError:
        raise PatternTimeout(f"the pattern {pattern!r} hit the time limit of the check") from None


OPERATORS = (
    "equals",
    "not_equals",
    "contains",
    "not_contains",
    "matches",
    "gt",
    "gte",
    "lt",
    "lte",
    "exists",
    "count",
)
_ORDERED = {
    "gt": ("more than", (1,)),
    "gte": ("at least", (0, 1)),
    "lt": ("less than", (-1,)),
    "lte": ("at most", (-1, 0)),
}


def problem_with(operator: str, operand: Any, found: Any | Missing, *, typed: bool, deadline: float) -> str | None:
    """What is wrong, without a full stop; None when the operator holds.

    found: Missing fails every operator but `exists: false`. typed: the value has types of its own (JSON); else it is
    text (or a number of ours), and a scalar of the spec is meant by its text. deadline: in `time.monotonic()` seconds.
    Raises PatternTimeout.
    """
    if operator == "exists":
        there = not isinstance(found, Missing)
        if there == operand:
            return None
        return f"expected nothing there, found {describe(found)}" if there else f"expected it to exist; {_why(found)}"
    if isinstance(found, Missing):
        return f"expected {_describe_operator(operator, operand)}; {_why(found)}"
    if operator == "count":
        return _count_problem(operand, found)
    if operator in _ORDERED:
        return _order_problem(operator, operand, found, typed=typed)
    if operator == "matches":
        if not isinstance(found, str):
            return f"expected a text that matches {operand!r}, found {describe(found)}"
        holds = search_pattern(operand, found, deadline=deadline)
    elif operator in ("equals", "not_equals"):
        holds = _operand_equals(operand, found, typed=typed) == (operator == "equals")
    else:
        if not isinstance(found, str | list | tuple | Mapping):
            return f"expected a text, list or mapping, found {describe(found)}"
        wanted = operand if typed else wire_text(operand)
        holds = contains(wanted, found) == (operator == "contains")
    return None if holds else f"expected {_describe_operator(operator, operand)}, found {describe(found)}"


def _why(found: Any) -> str:
    return found.reason if isinstance(found, Missing) else ""


def _describe_operator(operator: str, operand: Any) -> str:
    if operator in _ORDERED:
        return f"{_ORDERED[operator][0]} {_plain(operand)}"
    words = {
        "equals": "{}",
        "not_equals": "anything but {}",
        "contains": "something that contains {}",
        "not_contains": "something that does not contain {}",
        "matches": "a text that matches {}",
        "count": "{} items, keys or characters",
    }
    return words[operator].format(describe(operand) if operator in ("equals", "not_equals") else _plain(operand))


def _plain(operand: Any) -> str:
    return "null" if operand is None else shown_value(operand)


def _operand_equals(operand: Any, found: Any, *, typed: bool) -> bool:
    if typed:
        return equal(operand, found)
    if isinstance(found, bool | int | float):
        # request_count: an expression that was filled in is text.
        return equal(operand, found) or (isinstance(operand, str) and equal(_number(operand), found))
    if isinstance(operand, list) and isinstance(found, list):
        return [wire_text(item) for item in operand] == found
    return equal(wire_text(operand), found)


def _order_problem(operator: str, operand: Any, found: Any, *, typed: bool) -> str | None:
    words, signs = _ORDERED[operator]
    wanted, value = operand, found
    if isinstance(operand, str) and (not typed or isinstance(found, int | float)):
        wanted = _number(operand)
    if isinstance(found, str) and not typed:
        value = _number(found)
    sign = order(wanted, value)
    if sign in signs:
        return None
    unordered = ": the two have no order" if sign is None else ""
    return f"expected {words} {_plain(operand)}, found {describe(found)}{unordered}"


def _number(text: str) -> Any:
    """The number that a text is, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _count_problem(operand: int, found: Any) -> str | None:
    if isinstance(found, str):
        unit, size = "characters", len(found)
    elif isinstance(found, Mapping):
        unit, size = "keys", len(found)
    elif isinstance(found, list | tuple):
        unit, size = "items", len(found)
    else:
        return f"expected {operand} items, keys or characters, found {describe(found)}, which has none"
    return None if size == operand else f"expected {operand} {unit}, found {size}"


_Number = int | float | str
_NULLABLE = ("equals", "not_equals", "contains", "not_contains")


class Operators(StrictModel):
    """What must hold of one value. Every operator given must hold, at least one is."""

    equals: Any = None
    """The value that is expected; `null` is one, too.

    Example: `42`
    """
    not_equals: Any = None
    """A value that must not be found.

    Example: `null`
    """
    contains: Any = None
    """A text in the text, an element of the list, a key of the mapping.

    Example: `Ada`
    """
    not_contains: Any = None
    """The opposite; something must be there all the same.

    Example: `error`
    """
    matches: Annotated[str, RegexPattern()] | None = None
    """A regular expression that must match somewhere in the text.

    Example: `'^[0-9]+$'`
    """
    gt: _Number | None = None
    """The value must be greater.

    Example: `0`
    """
    gte: _Number | None = None
    """The value must be greater or equal.

    Example: `1`
    """
    lt: _Number | None = None
    """The value must be less.

    Example: `100`
    """
    lte: _Number | None = None
    """The value must be less or equal.

    Example: `99.5`
    """
    exists: bool | None = None
    """Whether there is a value at all.

    Example: `true`
    """
    count: Annotated[int, Field(ge=0)] | None = None
    """How many elements, keys or characters there are.

    Example: `3`
    """

    @model_validator(mode="after")
    def _has_an_operator(self) -> Self:
        if not self.operators():
            raise PydanticCustomError("missing_operator", f"expected at least one of {', '.join(OPERATORS)}")
        return self

    def operators(self) -> dict[str, Any]:
        """Operator → operand, as written; `equals: null` is one, too."""
        values = {name: getattr(self, name) for name in OPERATORS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name in _NULLABLE}
