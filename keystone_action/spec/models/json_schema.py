"""What is wrong with a JSON Schema that an author wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticCustomError

from keystone_action.spec.loading.diagnostics import slip_of

_BESIDE = ("then", "else", "minContains", "maxContains", "contentSchema")
"""Keywords that others read."""
_BY_NAME = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
"""Keywords whose value has schemas by name."""
_DATA = ("enum", "const", "required", "dependentRequired")
"""Keywords whose value is not a schema, whatever it looks like."""


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself. Raises PydanticCustomError for one that is not valid, or has a misspelt keyword."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        problem = f"no JSON Schema: {where + ': ' if where else ''}{error.message[:200]}"
        raise PydanticCustomError("json_schema", "{problem}", {"problem": problem}) from None
    if misspelt := misspelt_keyword(schema):
        raise PydanticCustomError("json_schema", "{problem}", {"problem": misspelt})
    return schema


def misspelt_keyword(schema: Any) -> str:
    """A keyword that JSON Schema would pass over, so that what it asks for is never asked; empty when there is none."""
    known = _keywords(schema)
    for one in schemas_in(schema):
        for keyword in one:
            if meant := slip_of(str(keyword), known):
                return f"{keyword!r} is not a keyword of JSON Schema, so it asks for nothing; {meant!r} is one"
    return ""


def schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema, and all schemas in it."""
    known = _keywords(schema)
    waiting, seen = [schema], set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for keyword, value in one.items():
            if keyword in _BY_NAME and isinstance(value, dict):
                waiting += value.values()
            elif keyword in known and keyword not in _DATA:
                waiting.append(value)


def _keywords(schema: Any) -> set[str]:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    is_named = isinstance(schema, dict) and isinstance(schema.get("$schema"), str)
    kind = validator_for(schema, default=Draft202012Validator) if is_named else Draft202012Validator
    return {*kind.VALIDATORS, *_BESIDE, *_BY_NAME}
