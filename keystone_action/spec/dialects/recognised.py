"""Telling which tool a file is of, by what only that tool's files have (spec.md 1.9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from keystone_action.spec.dialects.translation import Translation
    from keystone_action.spec.extends import Merged

Dialect = Literal["touchstone", "agenticassure"]
Translate = Callable[["Merged", Path, Path], "Translation"]

_SEARCHED = 1 << 20
"""Bytes of a file in which its keys are looked for when a directory is searched."""
_OWN = re.compile(rb"^[\"']?version[\"']?\s*:", re.MULTILINE)
_GRADERS = re.compile(rb"^[\"']?graders[\"']?\s*:", re.MULTILINE)
_SCENARIOS = re.compile(rb"^[\"']?scenarios[\"']?\s*:", re.MULTILINE)
_SUITE = re.compile(rb"^[\"']?suite[\"']?\s*:", re.MULTILINE)
_INPUT = re.compile(rb"(?:^|[\s{,])[\"']?input[\"']?\s*:")


def dialect_of(data: Any) -> Dialect | None:
    """The tool that a file is of; None for a Keystone spec and for what nobody knows."""
    if not isinstance(data, dict) or "version" in data:
        return None
    if "graders" in data:
        return "touchstone"
    scenarios = data.get("scenarios")
    if "suite" in data and "scenarios" in data:
        return "agenticassure"
    if isinstance(scenarios, list) and any(isinstance(item, dict) and "input" in item for item in scenarios):
        return "agenticassure"
    return None


def looks_like_one(path: Path) -> bool:
    """Whether a file found in a directory is one of another tool: by the words in it, so that one with a mistake in
    its syntax is not passed over in silence."""
    try:
        with path.open("rb") as file:
            text = file.read(_SEARCHED)
    except OSError:
        return False
    if _OWN.search(text):
        return False
    suite = _SCENARIOS.search(text) and (_INPUT.search(text) or _SUITE.search(text))
    return bool(_GRADERS.search(text) or suite)
