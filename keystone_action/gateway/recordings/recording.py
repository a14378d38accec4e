"""What a recording holds and how it looks on the disk: its entries, its lines, its folder, the ids in it.

The first line says what it is, each other one has an answered request. A conversation repeats all that was said before,
so a later request has only what is new: `continues` says how many messages it shares with the request before, and
`without` which fields are gone. No link is followed on the way to a folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from keystone_action.errors import HarnessError
from keystone_action.files.descent import open_directory

DEPTH_LIMIT = 200
"""Lists and objects in one another. Requests of real clients have about twenty."""


class RecordingError(HarnessError):
    """A recording can't be read, written or compared: the cell is `error` (exit 3)."""


def with_texts(value: Any, change: Callable[[str], Any], depth: int = 0) -> Any:
    """The value with each text in it changed, names in objects too. Raises RecordingError."""
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


__all__ = ["ANEW", "FORMAT", "SIZE_LIMIT", "Entry", "Recording", "RecordingError", "recording_path"]

FORMAT = 1
"""The version of the format. A recording of another one is refused."""
SIZE_LIMIT = 64 << 20
"""Bytes of a file."""
LINES_LIMIT = 20_000
"""Requests of a file."""
MESSAGES_LIMIT = 2_000_000
"""Of all requests together, each with all that was said before it."""
ANEW = "record anew with --gateway record"


@dataclass(frozen=True, slots=True)
class Entry:
    """One answered request."""

    api: str
    model: str
    key: str
    """Of the request, with `gateway.ignore` applied."""
    whole_key: str
    """Of the request, without `gateway.ignore`."""
    conversation: int
    """Counted from 0 among those with, or without, tools."""
    turn: int
    """Which answered request of the conversation it is, from 0."""
    with_tools: bool
    request: Mapping[str, Any]
    """In its normal form."""
    answer: Mapping[str, Any]
    """The document, with names for what differs from run to run."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Counts of tokens by the names of `exchange.Tokens`, and `cost_usd`. What was not known is left out."""
    seconds: float = 0.0
    status: int = 200
    """The HTTP status of the answer."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the agent of one cell asked its models, and what they answered."""

    entries: tuple[Entry, ...]
    """In the order in which the requests came."""
    spec: str
    cell: str
    product: str
    """Our version that recorded it."""
    date: str
    """In UTC, as `2026-11-23T14:05:00Z`."""
    providers: Mapping[str, str] = field(default_factory=dict)
    """The APIs of the providers, by their names."""


def recording_path(folder: Path, cell_id: str) -> Path:
    """Where the recording of a cell is, in the folder of its spec's recordings."""
    return folder / f"{cell_id}.jsonl"


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(folder: Path, below: Path | None) -> int:
    """A descriptor of the folder; the caller closes it. below: a folder above it: no link on the way from there is
    followed. Where it is None, or another folder, only the folder itself must not be a link. Raises OSError."""
    if below is None or not folder.is_relative_to(below):
        return os.open(folder, _FOLDER)
    root = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_directory(root, _relative(folder, below))
    finally:
        os.close(root)


def make_folder(folder: Path, below: Path | None) -> int:
    """As `open_folder`, but missing folders are made. They belong to the owner of the folder that they are made in."""
    start = folder
    if below is None or not folder.is_relative_to(below):
        while not os.path.lexists(start) and start != start.parent:
            start = start.parent
        here = os.open(start, _FOLDER if start == folder else _FOLDER & ~os.O_NOFOLLOW)
    else:
        start = below
        here = os.open(below, _FOLDER & ~os.O_NOFOLLOW)
    for part in folder.relative_to(start).parts:
        try:
            deeper = _enter(here, part)
        finally:
            os.close(here)
        here = deeper
    return here


def open_recording_file(path: Path, descriptor: int) -> BinaryIO:
    """The file of a descriptor, to be read. Raises RecordingError, and closes the descriptor, where it is not a regular
    file."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise RecordingError(f"{path}: expected a regular file, found another kind", help=f"remove it and {ANEW}")


def place_problem(path: Path, error: OSError, what: str) -> RecordingError:
    """Why a recording can't be reached. what: what failed ("can't be read")."""
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EXDEV}:
        return RecordingError(
            f"{path} {what}: expected folders and a file, found a link, or a file where a folder should be",
            help="put the recordings themselves there: no link is followed",
        )
    return RecordingError(f"{path} {what}: {error.strerror or error}")


def _enter(above: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:  # another cell was faster
        return os.open(name, _FOLDER, dir_fd=above)
    made = os.open(name, _FOLDER, dir_fd=above)
    give_to_owner_of(above, made)
    return made


def give_to_owner_of(folder: int, descriptor: int) -> None:
    """Give what we made to the owner of the folder that it is in. Only root can do that. Raises OSError."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _relative(folder: Path, below: Path) -> str:
    relative = folder.relative_to(below).as_posix()
    return "" if relative == "." else relative


CONVERSATIONS = ("messages", "input", "contents")
"""Where requests have their conversation: Anthropic and OpenAI's chat, OpenAI's Responses, Gemini."""
_NAMES = {
    "id",
    "call_id",
    "item_id",
    "message_id",
    "previous_response_id",
    "response_id",
    "responseId",
    "tool_call_id",
    "tool_use_id",
}
_FREE = {
    "action",
    "args",
    "arguments",
    "input",
    "input_schema",
    "instructions",
    "metadata",
    "operation",
    "output",
    "parameters",
    "response",
    "result",
    "text",
    "tools",
    "usage",
}
"""What models, tools and people said stands under these names: an `id` in there is theirs."""


def ids_in(document: Any) -> list[str]:
    """The ids in an assembled answer of any API, each once, in the order in which they stand there."""
    return list(dict.fromkeys(_answer_ids(document)))


def _answer_ids(document: Any) -> Iterator[str]:
    for one in document if isinstance(document, list) else [document]:
        if isinstance(one, dict):
            yield from _ids(one)
            # The items of an answer of the Responses API; elsewhere `output` is what a tool gave back.
            yield from _ids(one.get("output"))


def ids_of_request(body: Mapping[str, Any]) -> list[str]:
    """The ids in a request's conversation, each once, in the order in which they stand there."""
    return list(dict.fromkeys(one for name in CONVERSATIONS for one in _ids(body.get(name))))


def with_ids(body: Mapping[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    """A request with other ids in its conversation."""
    return {name: _replaced(value, new) if name in CONVERSATIONS else value for name, value in body.items()}


def _ids(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict):
        check_depth(depth)
        for name, item in value.items():
            if name in _NAMES and isinstance(item, str):
                yield item
            elif name not in _FREE and isinstance(item, dict | list):
                yield from _ids(item, depth + 1)
    elif isinstance(value, list):
        check_depth(depth)
        yield from (one for item in _nested(value) for one in _ids(item, depth + 1))


def _replaced(value: Any, new: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, new) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: new.get(item, item)
        if name in _NAMES and isinstance(item, str)
        else item
        if name in _FREE
        else _replaced(item, new)
        for name, item in value.items()
    }


def _nested(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if isinstance(value, dict | list))


OF_HEADER = ("keystone_recording", "product", "spec", "cell", "date", "providers", "lines", "sha256")


def header_line(recording: Recording, lines: Iterable[bytes]) -> bytes:
    """The first line of a recording with these other lines."""
    others = list(lines)
    values = (
        FORMAT,
        recording.product,
        recording.spec,
        recording.cell,
        recording.date,
        dict(recording.providers),
        len(others),
        lines_digest(others),
    )
    return line_of(dict(zip(OF_HEADER, values, strict=True)))


def line_of(document: Mapping[str, Any]) -> bytes:
    """One line. Raises ValueError for a number that JSON does not have."""
    return canonical(document).encode() + b"\n"


_SURROGATE = re.compile("[\ud800-\udfff]")


def canonical(value: Any, **options: Any) -> str:
    """JSON as a recording has it, in UTF-8. Halves of surrogate pairs are escaped: UTF-8 has none."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def lines_digest(lines: Iterable[bytes]) -> str:
    """The SHA-256 of lines, ends included."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def documents_of(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """The contents of the lines of these entries."""
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
    """What a request has that the one before did not have."""
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
    """The whole request of a line. Raises ValueError where the line continues more than there is."""
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
