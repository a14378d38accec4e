"""Telling which tool a file is of, by what only that tool's files have (spec.md 1.9)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

Dialect = Literal["touchstone", "agenticassure"]

_SEARCHED = 1 << 20
"""Bytes of a file in which its keys are looked for when a directory is searched."""
_TOP_KEY = re.compile(rb"^(?:\{\s*)?[\"']?([A-Za-z_][\w-]*)[\"']?\s*:", re.MULTILINE)
_INPUT = re.compile(rb"(?:^|[\s{,])[\"']?input[\"']?\s*:")
_OF_SUITES = {"scenarios", "suite"}
_OF_CASES = {"task", "matrix"}
"""Keys that, both at the top of a file, no other file has: a case that lacks its graders is one all the same."""


def dialect_of(data: Any) -> Dialect | None:
    """The tool that a file is of; None for a Keystone spec and for what nobody knows."""
    if not isinstance(data, dict) or "version" in data:
        return None
    if "graders" in data or data.keys() >= _OF_CASES:
        return "touchstone"
    if data.keys() >= _OF_SUITES or (data and data.keys() <= _OF_SUITES):
        return "agenticassure"
    scenarios = data.get("scenarios")
    if isinstance(scenarios, list) and any(isinstance(item, dict) and "input" in item for item in scenarios):
        return "agenticassure"
    return None


def looks_like_one(path: Path) -> bool:
    """Whether a file found in a directory is one of another tool: by the words in it, so that one with a mistake, in
    its syntax or in what it lacks, is not passed over in silence."""
    try:
        with path.open("rb") as file:
            text = file.read(_SEARCHED)
    except OSError:
        return False
    keys = {found.decode() for found in _TOP_KEY.findall(text)}
    if not keys or "version" in keys:
        return False
    if "graders" in keys or keys >= _OF_CASES:
        return True
    return keys <= _OF_SUITES or ("scenarios" in keys and ("suite" in keys or bool(_INPUT.search(text))))
