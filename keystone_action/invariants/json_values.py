"""JSON that others wrote, and which values are expected at which paths of it: `values: {"a.b[0]": 3}`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import descend, parse_path
from keystone_action.invariants.operators import OPERATORS, Operators, PatternTimeout, problem_with


def parse_strict(text: str) -> Any:
    """The value of a JSON text, which may begin with a byte order mark. Half surrogate pairs, which JSON can spell and
    UTF-8 can't, are replaced, because results must always be writable.

    Raises ValueError with a sentence for text that is not JSON, for NaN and the infinities, for a key that an object
    has twice, and for text that is nested too deep.
    """
    try:
        plain = text.removeprefix("\ufeff")
        return _encodable(json.loads(plain, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles))
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested deeper than that."""
    here = [value]
    for _ in range(levels + 1):
        here = [
            item
            for one in here
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not here:
            return False
    return True


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        # Which of the two counts must not depend on the parser.
        raise ValueError("a key is there twice")
    return document


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
    document = parse_strict(text)
    if is_deeper(document, DEPTH_LIMIT):
        raise ValueError(f"it is nested deeper than {DEPTH_LIMIT} levels")
    return document
