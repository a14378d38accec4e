"""Values that several APIs have alike, out of bodies that nobody has checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from keystone_action.evidence.trace_readers.builder import NAME_LIMIT, mapping, text
from keystone_action.gateway.exchange import Tokens
from keystone_action.spec.limits import MOST_COUNTED

PIECES_LIMIT = 8 << 20
"""Characters of a text, or of the arguments of a call, after which no further piece is kept."""
_NAMES_LIMIT = 500


def count(source: Mapping[str, Any], name: str) -> int | None:
    """The whole number under `name`; None where there is none that can be counted with."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_COUNTED:
        return None
    return value


def without(whole: int | None, *parts: int | None) -> int | None:
    """What is left of a count when its parts are taken out, at least 0; None when it is not known."""
    return None if whole is None else max(0, whole - sum(part or 0 for part in parts))


def openai_tokens(usage: Mapping[str, Any], asked: str, answered: str) -> Tokens:
    """The counts of OpenAI's APIs, taken apart. asked, answered: the names of both counts. Some providers with such an
    API leave reasoning out of the answer's count, and have it in the total only."""
    whole, output, total = (count(usage, name) for name in (asked, answered, "total_tokens"))
    details = mapping(usage, f"{asked}_details")
    read, written = (count(details, name) for name in ("cached_tokens", "cache_write_tokens"))
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
    """The types of the tools whose type does not begin with one of these: what we don't know, the provider may run."""
    return tuple(kind[:NAME_LIMIT] for tool in tools if (kind := text(tool, "type")) and not kind.startswith(clients))


def present(body: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Those of the names under which there is something. `tools` that are not a list of objects are something, too:
    a provider may read them in its own way."""
    odd = ("tools",) if body.get("tools") is not None and not _is_list_of_objects(body["tools"]) else ()
    return (*odd, *(name for name in names if body.get(name) not in (None, False, [])))


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


class Pieces:
    """Text that comes in pieces. Of a very long one the beginning is kept."""

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
        """As if none had come."""
        self._pieces.clear()
        self.size = 0

    @property
    def text(self) -> str:
        """Of all that were kept."""
        return "".join(self._pieces)
