"""What is expected at which path of a JSON document, as a field of a spec: `values: {"a.b[0]": 3}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.fields import descend, parse_path
from keystone_action.invariants.values import strict_json
from keystone_action.invariants.values.operator_fields import Operators
from keystone_action.invariants.values.operators import OPERATORS, problem_with
from keystone_action.invariants.values.patterns import PatternTimeout

SIZE_LIMIT = 8 << 20
"""Bytes (of a text: characters) of a document that is looked at."""
DEPTH_LIMIT = 100


def _path(text: str) -> str:
    try:
        parse_path(text)
    except ValueError as problem:
        raise PydanticCustomError("path", "{problem}", {"problem": str(problem)}) from None
    return text


def _value(value: Any) -> Any:
    """A mapping of nothing but operators asks for them; any other value is to be equalled."""
    if not isinstance(value, dict) or value.keys().isdisjoint(OPERATORS):
        return value
    others = sorted(str(key) for key in value.keys() - set(OPERATORS))
    if others:
        raise PydanticCustomError(
            "operators",
            "{others} beside operators; to compare with a whole mapping write it under equals",
            {"others": ", ".join(map(repr, others))},
        )
    return Operators.model_validate(value, by_alias=True, by_name=False)


Expected = Annotated[Operators | Any, BeforeValidator(_value)]
"""A value that is to be equalled, or operators that are to hold."""
Values = dict[Annotated[str, AfterValidator(_path)], Expected]
"""By path."""


def operators_of(expected: Any) -> Mapping[str, Any]:
    """Operator → operand of an `Expected`."""
    return expected.operators() if isinstance(expected, Operators) else {"equals": expected}


def problems_of(expected: Any, found: Any, *, typed: bool, deadline: float) -> Iterator[str]:
    """What is wrong with one value; nothing when it is as expected. See `operators.problem_with`."""
    for operator, operand in operators_of(expected).items():
        try:
            problem = problem_with(operator, operand, found, typed=typed, deadline=deadline)
        except PatternTimeout as late:
            problem = str(late)
        if problem is not None:
            yield problem


def wrong_values(values: Mapping[str, Any], document: Any, deadline: float) -> Iterator[str]:
    """What is wrong at which path of a document, without full stops. deadline: in `time.monotonic()` seconds."""
    for path, expected in values.items():
        found = descend(document, parse_path(path), "the document")
        for problem in problems_of(expected, found, typed=True, deadline=deadline):
            yield f"{path}: {problem}"


def read_document(text: str) -> Any:
    """JSON that somebody else wrote. Raises ValueError with a sentence when it is malformed, too large or too deep."""
    if len(text) > SIZE_LIMIT:
        raise ValueError(f"it has {len(text):,} characters; at most {SIZE_LIMIT:,} are read")
    document = strict_json.parse(text)
    if strict_json.is_deeper(document, DEPTH_LIMIT):
        raise ValueError(f"it is nested deeper than {DEPTH_LIMIT} levels")
    return document
