"""Values that grow while the pieces of a stream come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import text

_CONSTANTS = {"role", "type", "id", "index", "signature"}
"""Texts that a stream may repeat, but never continues."""
_DEPTH = 8
"""Levels of objects that are joined name by name; deeper down the last one stands."""


class Text(list[str]):
    """The pieces of a text. Adding to a text again and again would copy it each time."""


class Items(list[Any]):
    """A list that grows."""


class Fields(dict[str, Any]):
    """An object whose values may grow. What came in is copied into it, and never changed itself."""


def settled(value: Any) -> Any:
    """The value without any of the classes above."""
    if isinstance(value, Text):
        return "".join(value)
    if isinstance(value, Items):
        return [settled(item) for item in value]
    if isinstance(value, Fields):
        return {name: settled(item) for name, item in value.items()}
    return value


def append(into: Fields, name: str, piece: str) -> None:
    """The text under `name` goes on."""
    known = into.get(name)
    if not isinstance(known, Text):
        known = into[name] = Text([known] if isinstance(known, str) else [])
    known.append(piece)


def extend(into: Fields, name: str, items: list[Any]) -> None:
    """The list under `name` goes on."""
    known = into.get(name)
    if not isinstance(known, Items):
        known = into[name] = Items(known if isinstance(known, list) else [])
    known += items


def replace(into: Fields, told: Mapping[str, Any]) -> None:
    """The last value of each name stands; one that says nothing takes no other's place."""
    for name, value in told.items():
        if into.get(name) is None or value not in (None, "", [], {}):
            into[name] = value


def join(into: Fields, told: Mapping[str, Any], depth: int = _DEPTH) -> None:
    """Texts and lists go on, objects are joined name by name, of all else the last value stands."""
    for name, value in told.items():
        known = into.get(name)
        if isinstance(value, dict) and depth:
            inner = into[name] = (
                known if isinstance(known, Fields) else Fields(known if isinstance(known, dict) else {})
            )
            join(inner, value, depth - 1)
        elif isinstance(value, list):
            extend(into, name, value)
        elif isinstance(value, str) and isinstance(known, str | Text) and name not in _CONSTANTS:
            append(into, name, value)
        else:
            replace(into, {name: value})


def kind(value: Any) -> str:
    """The `type` of an object; empty where there is none."""
    return text(value, "type") if isinstance(value, dict) else ""


def json_objects(written: str) -> list[str]:
    """The JSON objects that stand in a text one after the other; empty where something else stands there, too.
    Arguments that begin again are a further call."""
    decoder, found, start = json.JSONDecoder(), [], 0
    while start < len(written):
        if written[start].isspace():
            start += 1
            continue
        try:
            value, end = decoder.raw_decode(written, start)
        except (ValueError, RecursionError):
            return []
        if not isinstance(value, dict):
            return []
        found.append(written[start:end])
        start = end
    return found


def begins_again(piece: str) -> bool:
    """Whether a piece of a call's arguments may be the beginning of other ones."""
    return piece.lstrip().startswith("{")
