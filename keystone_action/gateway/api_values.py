"""What the APIs have in common: values out of bodies that nobody has checked, values that grow while the pieces of a
stream come in, and documents and events as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from keystone_action.evidence.trace_readers.builder import NAME_LIMIT, mapping, text
from keystone_action.gateway.api import Rendered
from keystone_action.gateway.exchange import Tokens
from keystone_action.spec.limits import MOST_COUNTED

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
    """The last value of each name counts. An empty value does not replace another one."""
    for name, value in told.items():
        if into.get(name) is None or value not in (None, "", [], {}):
            into[name] = value


def join_fields(into: Fields, told: Mapping[str, Any], depth: int = _DEPTH) -> None:
    """Texts and lists are continued, objects are joined name by name; for everything else the last value counts."""
    for name, value in told.items():
        known = into.get(name)
        if isinstance(value, dict) and depth:
            inner = into[name] = (
                known if isinstance(known, Fields) else Fields(known if isinstance(known, dict) else {})
            )
            join_fields(inner, value, depth - 1)
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
    """The JSON objects that follow one another in a text; empty where something else stands there, too. Arguments that
    begin again are a further call."""
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


_PIECE = 2_000
"""Characters of a text in one event."""
_DEEPEST = 100
"""Levels of a value that is nested too deep to be written."""


def rendered_document(value: Any) -> Rendered:
    """An answer in one piece."""
    return Rendered("application/json", (written(value).encode(),))


def rendered_stream(events: Iterable[Mapping[str, Any]], *, named: bool = False, end: bytes = b"") -> Rendered:
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
        return json.dumps(_shallow(value, _DEEPEST))


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


PIECES_LIMIT = 8 << 20
"""Characters of a text, or of the arguments of a call, after which no further piece is kept."""
_NAMES_LIMIT = 500


def whole_count(source: Mapping[str, Any], name: str) -> int | None:
    """The whole number under `name`; None where there is none, or none that can be counted with."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_COUNTED:
        return None
    return value


def without(whole: int | None, *parts: int | None) -> int | None:
    """What is left of a count without its parts, at least 0; None where it is not known."""
    return None if whole is None else max(0, whole - sum(part or 0 for part in parts))


def openai_tokens(usage: Mapping[str, Any], asked: str, answered: str) -> Tokens:
    """The counts of OpenAI's APIs, taken apart. asked, answered: the names of both counts. Some providers leave
    reasoning out of the answer's count and have it in the total only."""
    whole, output, total = (whole_count(usage, name) for name in (asked, answered, "total_tokens"))
    details = mapping(usage, f"{asked}_details")
    read, written = (whole_count(details, name) for name in ("cached_tokens", "cache_write_tokens"))
    if whole is not None and output is not None and total is not None:
        output = max(output, total - whole)
    return Tokens(without(whole, read, written), read, written, output)


def names_of(tools: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of tools, or their types where they have none; the first 500, and the beginnings of long ones."""
    names = (name[:NAME_LIMIT] for tool in tools if (name := text(tool, "name") or text(tool, "type")))
    return tuple(islice(names, _NAMES_LIMIT))


def model_of(body: Mapping[str, Any]) -> str:
    """The model that a request names."""
    return text(body, "model")[:NAME_LIMIT]


def typed_otherwise(tools: Iterable[Mapping[str, Any]], clients: tuple[str, ...]) -> tuple[str, ...]:
    """The types of the tools whose type does not begin with one of these. The provider may run what we don't know."""
    return tuple(kind[:NAME_LIMIT] for tool in tools if (kind := text(tool, "type")) and not kind.startswith(clients))


def present(body: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Those of the fields in which there is something. So is `tools` that is not a list of objects: a provider may read
    it in its own way."""
    odd = ("tools",) if body.get("tools") is not None and not _is_list_of_objects(body["tools"]) else ()
    return (*odd, *(name for name in names if body.get(name) not in (None, False, [])))


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


class Pieces:
    """A text that comes in pieces. Of a very long one only the beginning is kept."""

    def __init__(self, first: str = "") -> None:
        self._pieces: list[str] = []
        self.size = 0
        """Characters of all."""
        self.add(first)

    def add(self, piece: str) -> None:
        """The next one."""
        if piece and self.size < PIECES_LIMIT:
            self._pieces.append(piece)
        self.size += len(piece)

    def clear(self) -> None:
        """Forget what has come."""
        self._pieces.clear()
        self.size = 0

    @property
    def text(self) -> str:
        """All that was kept."""
        return "".join(self._pieces)
