"""JSON values, walked by their texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keystone_action.errors import HarnessError

DEPTH_LIMIT = 200
"""Lists and objects in one another. Requests of real clients have about twenty."""


class RecordingError(HarnessError):
    """A recording can't be read, written or compared: the cell is `error` (exit 3)."""


def with_texts(value: Any, change: Callable[[str], Any], depth: int = 0) -> Any:
    """The value with each text in it changed, names of objects too. Raises RecordingError."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        check_depth(depth)
        return {change(name): with_texts(item, change, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        check_depth(depth)
        return [with_texts(item, change, depth + 1) for item in value]
    return value


def check_depth(depth: int) -> None:
    """Raises RecordingError where a value is nested too deep for us."""
    if depth >= DEPTH_LIMIT:
        raise RecordingError(f"a request or an answer has more than {DEPTH_LIMIT} lists and objects in one another")


def is_too_deep(value: Any) -> bool:
    """Whether a line of a recording has more than DEPTH_LIMIT lists and objects in one another."""
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
