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

    equals: Any = Field(default=None, description="The value that is expected; `null` is one, too.")
    not_equals: Any = Field(default=None, description="A value that must not be found.")
    contains: Any = Field(default=None, description="A text in the text, an element of the list, a key of the mapping.")
    not_contains: Any = Field(default=None, description="The opposite; something must be there all the same.")
    matches: Annotated[str, RegexPattern()] | None = Field(
        default=None, description="A regular expression that must match somewhere in the text."
    )
    gt: _Number | None = Field(default=None, description="The value must be greater.")
    gte: _Number | None = Field(default=None, description="The value must be greater or equal.")
    lt: _Number | None = Field(default=None, description="The value must be less.")
    lte: _Number | None = Field(default=None, description="The value must be less or equal.")
    exists: bool | None = Field(default=None, description="Whether there is a value at all.")
    count: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="How many elements, keys or characters there are."
    )

    @model_validator(mode="after")
    def _has_an_operator(self) -> Self:
        if not self.operators():
            raise PydanticCustomError("missing_operator", f"expected at least one of {', '.join(OPERATORS)}")
        return self

    def operators(self) -> dict[str, Any]:
        """Operator → operand, as written; `equals: null` is one, too."""
        values = {name: getattr(self, name) for name in OPERATORS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None or name in _NULLABLE}
