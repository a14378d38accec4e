"""Documents and events as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keystone_action.gateway.exchange import Rendered

_PIECE = 2_000
"""Characters of a text in one event."""
_DEPTH = 100
"""Levels of a value that is nested too deep to be written."""


def document(value: Any) -> Rendered:
    """An answer in one piece."""
    return Rendered("application/json", (written(value).encode(),))


def stream(events: Iterable[Mapping[str, Any]], *, named: bool = False, end: bytes = b"") -> Rendered:
    """An answer as server-sent events. named: each with an `event` line, which says its type. end: what stands after
    the last one."""
    pieces = [_event(event, text_of(event.get("type")) if named else "") for event in events]
    return Rendered("text/event-stream; charset=utf-8", (*pieces, *([end] if end else [])))


def _event(event: Mapping[str, Any], name: str) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {written(event)}\n\n".encode()


def written(value: Any) -> str:
    """The value as JSON: ASCII only, so that no client takes a character for the end of a line."""
    try:
        return json.dumps(value)
    except RecursionError:
        return json.dumps(_shallow(value, _DEPTH))


def _shallow(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {name: _shallow(item, depth - 1) for name, item in value.items()} if depth else None
    if isinstance(value, list):
        return [_shallow(item, depth - 1) for item in value] if depth else None
    return value


def split(value: str) -> Iterator[str]:
    """The text in pieces, as a model writes it; an empty one is one piece."""
    yield from (value[start : start + _PIECE] for start in range(0, max(1, len(value)), _PIECE))


def text_of(value: Any) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""
