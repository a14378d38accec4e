"""The operators of an assertion as fields of a spec."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.invariants.values.operators import OPERATORS
from keystone_action.spec.models.base import RegexPattern, StrictModel

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
