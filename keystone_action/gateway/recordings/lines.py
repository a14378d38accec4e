"""The lines of a recording: the first one says what it is, each other one has an answered request.

A conversation repeats all that was said before, so of a request that is not its first a line has only what is new:
`continues` says how many messages it has in common with the request before, and `without` which fields are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from keystone_action.gateway.recordings.ids import CONVERSATIONS
from keystone_action.gateway.recordings.recording import FORMAT, Entry, Recording
from keystone_action.gateway.recordings.request_key import canonical

OF_HEADER = ("keystone_recording", "product", "spec", "cell", "date", "providers", "lines", "sha256")


def header_line(recording: Recording, lines: Iterable[bytes]) -> bytes:
    """The first line, for a recording with these others."""
    others = list(lines)
    values = (
        FORMAT,
        recording.product,
        recording.spec,
        recording.cell,
        recording.date,
        dict(recording.providers),
        len(others),
        digest_of(others),
    )
    return line_of(dict(zip(OF_HEADER, values, strict=True)))


def line_of(document: Mapping[str, Any]) -> bytes:
    """Raises ValueError for a number that JSON does not have."""
    return canonical(document).encode() + b"\n"


def digest_of(lines: Iterable[bytes]) -> str:
    """The SHA-256 of lines, ends included."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def documents_of(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """What stands in the lines of these entries."""
    last: dict[tuple[bool, int], Mapping[str, Any]] = {}
    for entry in entries:
        conversation = entry.with_tools, entry.conversation
        yield {
            "conversation": entry.conversation,
            "turn": entry.turn,
            "api": entry.api,
            "model": entry.model,
            "key": entry.whole_key,
            "with_tools": entry.with_tools,
            **_new(entry.request, last.get(conversation)),
            "status": entry.status,
            "answer": entry.answer,
            "usage": dict(entry.usage),
            "seconds": entry.seconds,
        }
        last[conversation] = entry.request


def _new(request: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a request has that the one before had not."""
    if before is None:
        return {"request": dict(request)}
    common = {name: _common(request.get(name), before.get(name)) for name in CONVERSATIONS}
    continues = {name: count for name, count in common.items() if count}
    new = {
        name: value[continues[name] :] if name in continues else value
        for name, value in request.items()
        if name in continues or name not in before or value != before[name]
    }
    gone = [name for name in before if name not in request]
    return {
        **({"continues": continues} if continues else {}),
        **({"without": gone} if gone else {}),
        "request": new,
    }


def _common(value: Any, before: Any) -> int:
    """How many messages at their beginnings are equal."""
    if not isinstance(value, list) or not isinstance(before, list):
        return 0
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(value, before, strict=False)))


def whole_request(
    new: Mapping[str, Any], continues: Mapping[str, int], without: Iterable[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """The request that a line is about. Raises ValueError where it continues more than there is."""
    gone = set(without)
    if missing := sorted(gone - set(before)):
        raise ValueError(f"`without` names {missing[0]!r}, which the request before has not")
    found = {name: value for name, value in before.items() if name not in gone} | dict(new)
    for name, count in continues.items():
        earlier, rest = before.get(name), new.get(name)
        if not isinstance(earlier, list) or not isinstance(rest, list) or len(earlier) < count:
            had = len(earlier) if isinstance(earlier, list) else 0
            raise ValueError(f"`continues` says {count:,} of {name!r}, and the request before has {had:,}")
        found[name] = [*earlier[:count], *rest]
    return found


def count_messages(request: Mapping[str, Any]) -> int:
    """How many messages, tools and the like a request has."""
    return sum(len(value) for value in request.values() if isinstance(value, list))
