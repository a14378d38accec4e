"""Audit logs that a call left: every line of every test's run is valid by the published schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA_PATH = Path(__file__).parents[2] / "docs" / "audit.schema.json"


def audit_lines(output: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of all cells; of one kind only their details."""
    lines = [json.loads(line) for path in sorted(output.glob("cells/*/audit.jsonl")) for line in _lines(path)]
    return lines if kind is None else [line["details"] for line in lines if line["type"] == kind]


def require_valid_audit(output: Path) -> None:
    """Of lines that are alike in the types of their values the first is validated: a mock can have a hundred thousand
    of them. Raises ValidationError, or ValueError for what is not a line."""
    seen = set()
    for path in output.glob("cells/*/audit.jsonl"):
        for text in _lines(path):
            line = json.loads(text)
            likeness = _likeness(line)
            if likeness not in seen:
                seen.add(likeness)
                validator().validate(line)


def _lines(path: Path) -> Iterator[str]:
    with path.open("r", encoding="utf-8") as lines:
        yield from lines


def _likeness(value: Any) -> object:
    if isinstance(value, dict):
        return tuple((key, value[key] if key == "type" else _likeness(one)) for key, one in sorted(value.items()))
    if isinstance(value, list):
        return frozenset(map(_likeness, value))
    return value if isinstance(value, bool) else type(value)


@functools.cache
def validator() -> Any:
    """For a line."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA_PATH.read_text("utf-8")))
