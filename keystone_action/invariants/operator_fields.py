"""The operators of an assertion as fields of a spec."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.invariants.operators import OPERATORS
from keystone_action.spec.base import RegexPattern, StrictModel

_Number = int | float | str
_NULLABLE = ("equals", "not_equals", "contains", "not_contains")


class Operators(StrictModel):
    """What must hold of one value. Every operator given must hold, at least one is."""

    equals: Any = None
    not_equals: Any = None
    contains: Any = None
    not_contains: Any = None
    matches: Annotated[str, RegexPattern()] | None = None
    gt: _Number | None = None
    gte: _Number | None = None
    lt: _Number | None = None
    lte: _Number | None = None
    exists: bool | None = None
    count: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_an_operator(self) -> Self:
        if not self.operators():
            raise PydanticCustomError("missing_operator", f"expected at least one of {', '.join(OPERATORS)}")
        return self

    def operators(self) -> dict[str, Any]:
        """Operator → operand, as written; `equals: null` is one, too."""
        values = {name: getattr(self, name) for name in OPERATORS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name in _NULLABLE}
