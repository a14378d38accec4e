"""`input_from`: what a check looks at, as a field that check types share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.fields import parse_field
from keystone_action.spec.models.base import InputSource

_SOURCE = InputSource()


def _input_source(source: str) -> str:
    if source in _SOURCE.fixed or "{{" in source or (source.startswith("file:") and len(source) > len("file:")):
        return source
    service, dot, field = source.partition(".")
    if not service or not dot:
        expected = f"{', '.join(_SOURCE.fixed)}, file:<path> or <service>.<field>"
        raise PydanticCustomError(
            "input_source", "expected {expected}; found {found}", {"expected": expected, "found": repr(source)}
        )
    try:
        parse_field(field)
    except ValueError as problem:
        raise PydanticCustomError("input_source", "{problem}", {"problem": str(problem)}) from None
    return source


InputFrom = Annotated[str, AfterValidator(_input_source), _SOURCE]
"""`agent_output`, `stdout`, `workspace`, `diff`, `trace`, `file:<path>` below the workspace, or `<service>.<field>` of
a mock that records."""
