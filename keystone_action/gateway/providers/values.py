"""Values that several APIs have alike, out of bodies that nobody has checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.values import text
from keystone_action.spec.limits import MOST_COUNTED


def count(source: Mapping[str, Any], name: str) -> int | None:
    """The whole number under `name`; None where there is none that can be counted with."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_COUNTED:
        return None
    return value


def without(whole: int | None, *parts: int | None) -> int | None:
    """What is left of a count when its parts are taken out, at least 0; None when it is not known."""
    return None if whole is None else max(0, whole - sum(part or 0 for part in parts))


def names_of(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of tools, or their types where they have none."""
    return tuple(name for tool in tools if (name := text(tool, "name") or text(tool, "type")))
