"""Reading and writing recordings. A file may have been written by anybody: it is checked before it is used. It is
written whole or not at all, and never holds a secret or a key of a provider."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings.recording import (
    ANEW,
    DEPTH_LIMIT,
    FORMAT,
    LINES_LIMIT,
    MESSAGES_LIMIT,
    OF_HEADER,
    SIZE_LIMIT,
    Entry,
    Recording,
    RecordingError,
    count_messages,
    documents_of,
    give_to_owner_of,
    header_line,
    is_too_deep,
    line_of,
    lines_digest,
    make_folder,
    open_folder,
    open_recording_file,
    place_problem,
    whole_request,
    with_texts,
)
from keystone_action.gateway.recordings.request_key import Keys
from keystone_action.spec.limits import MOST_COUNTED
from keystone_action.spec.loading.author_files import POINTER, POINTER_ADVICE, is_pointer

_KEYS = {
    "a key of Anthropic": r"sk-ant-[a-z]{2,8}\d\d-[A-Za-z0-9_-]{60,}",
    "a key of OpenAI": r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}",
    "a key of Google": r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",
}
_PATTERNS = {kind: re.compile(rf"(?<![A-Za-z0-9]){pattern}") for kind, pattern in _KEYS.items()}


def planted_key(value: Any) -> str:
    """Whose key a JSON value seems to hold; empty when none."""
    found: list[str] = []

    def look(text: str) -> str:
        found.extend(kind for kind, pattern in _PATTERNS.items() if pattern.search(text))
        return text

    with_texts(value, look)
    return found[0] if found else ""


TEXT_LIMIT = 300
"""Characters of each text in the first line."""
COUNTS = ("uncached", "cache_read", "cache_write", "output")
"""Of tokens, as `exchange.Tokens` has them."""
_OF_ENTRY = {
    "conversation": (int, "a whole number"),
    "turn": (int, "a whole number"),
    "api": (str, "a text"),
    "model": (str, "a text"),
    "key": (str, "a text"),
    "with_tools": (bool, "true or false"),
    "continues": (dict, "an object"),
    "without": (list, "a list"),
    "request": (dict, "an object"),
    "status": (int, "a whole number"),
    "answer": (dict, "an object"),
    "usage": (dict, "an object"),
    "seconds": (float, "a number"),
}
_MAY_BE_LEFT_OUT = {"continues", "without"}


def read_recording(
    path: Path, *, spec_id: str | None = None, ignore: Sequence[str] = (), below: Path | None = None
) -> Recording:
    """A recording, checked: it is whole, and each key is that of its request.

    spec_id: that it must be of; None = any. ignore: `gateway.ignore`, for the keys of its entries. below: the spec's
    folder; no link on the way from there is followed. Raises RecordingError; FileNotFoundError where there is none.
    """
    return _Reader(path, _content(path, below)).recording(spec_id, ignore)


def _content(path: Path, below: Path | None) -> bytes:
    try:
        folder = open_folder(path.parent, below)
        try:
            descriptor = os.open(
                path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder
            )
        finally:
            os.close(folder)
        with open_recording_file(path, descriptor) as file:
            status = os.fstat(descriptor)
            if status.st_size > SIZE_LIMIT:
                raise _too_large(path, status.st_size)
            content = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise place_problem(path, error, "can't be read") from None
    if len(content) > SIZE_LIMIT:
        raise _too_large(path, len(content))
    return content


def _too_large(path: Path, size: int) -> RecordingError:
    return RecordingError(f"{path}: expected at most {SIZE_LIMIT:,} bytes, found {size:,}", help=ANEW)


class _Reader:
    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content = path, content
        self._line = 1

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise RecordingError(f"{self._path}:{self._line}: expected {expected}, found {found}", help=ANEW)

    def recording(self, spec_id: str | None, ignore: Sequence[str]) -> Recording:
        if not self._content:
            self._refuse("a recording", "an empty file")
        if is_pointer(self._content):
            raise RecordingError(f"{self._path}: expected a recording, found {POINTER}", help=POINTER_ADVICE)
        first, *others = _lines(self._content)
        header = self._header(self._object(first, whole=bool(others)), spec_id)
        entries = self._entries(others, header["lines"], ignore)
        if lines_digest(others) != header["sha256"]:
            raise RecordingError(
                f"{self._path}:1: expected lines with the SHA-256 that stands here, found others: the file was edited, "
                "and not in a request, which would show in the line itself",
                help=ANEW,
            )
        return Recording(
            entries=entries,
            spec=header["spec"],
            cell=header["cell"],
            product=header["product"],
            date=header["date"],
            providers=header["providers"],
        )

    def _object(self, line: bytes, *, whole: bool = True) -> dict[str, Any]:
        if not line.endswith(b"\n"):
            self._refuse("a line with its end", "the end of the file: it is cut" if whole else "a cut line")
        try:
            found = json.loads(
                line.decode("utf-8"), parse_constant=_refuse, parse_float=_float, object_pairs_hook=_unique
            )
        except UnicodeDecodeError as error:
            self._refuse("UTF-8", f"the byte 0x{line[error.start]:02x} at column {error.start + 1:,}")
        except json.JSONDecodeError as error:
            self._refuse("JSON", f"{error.msg} at column {error.colno:,}")
        except RecursionError:
            self._refuse(f"at most {DEPTH_LIMIT} lists and objects in one another", "more")
        except ValueError as error:
            self._refuse("JSON", str(error))
        if not isinstance(found, dict):
            self._refuse("an object", _kind(found))
        if is_too_deep(found):
            self._refuse(f"at most {DEPTH_LIMIT} lists and objects in one another", "more")
        return found

    def _header(self, header: dict[str, Any], spec_id: str | None) -> dict[str, Any]:
        version = header.get("keystone_recording")
        if version is None:
            self._refuse("the first line of a recording, with `keystone_recording`", "none")
        if isinstance(version, bool) or version != FORMAT:
            self._refuse(f"a recording of version {FORMAT}", f"version {_short(version)}")
        self._names(header, set(OF_HEADER), set(OF_HEADER))
        for name in ("product", "spec", "cell", "date", "sha256"):
            self._is(header, name, str, "a text")
            if len(header[name]) > TEXT_LIMIT:
                self._refuse(f"at most {TEXT_LIMIT} characters under `{name}`", f"{len(header[name]):,}")
        if not _is_date(header["date"]):
            self._refuse("a date and a time under `date`", _short(header["date"]))
        self._is(header, "lines", int, "a whole number")
        self._is(header, "providers", dict, "an object")
        if not all(isinstance(api, str) for api in header["providers"].values()):
            self._refuse("texts in `providers`", "something else")
        if spec_id is not None and header["spec"] != spec_id:
            self._refuse(f"a recording of the spec {spec_id!r}", f"one of {_short(header['spec'])}")
        return header

    def _entries(self, lines: Sequence[bytes], count: int, ignore: Sequence[str]) -> tuple[Entry, ...]:
        if len(lines) > LINES_LIMIT:
            self._refuse(f"at most {LINES_LIMIT:,} requests", f"{len(lines):,}")
        entries: list[Entry] = []
        last: dict[tuple[bool, int], Mapping[str, Any]] = {}
        whole, keys = Keys(), Keys(ignore)
        messages = 0
        for self._line, line in enumerate(lines, 2):
            document = self._object(line)
            entry = self._entry(document, last)
            messages += count_messages(entry["request"])
            if messages > MESSAGES_LIMIT:
                self._refuse(f"requests with {MESSAGES_LIMIT:,} messages in all", "more")
            found = whole.key_of(entry["api"], entry["model"], entry["request"])
            if found != entry["key"]:
                self._refuse(f"a request with the key {_short(entry['key'])}", f"one with {found}: it was edited")
            last[entry["with_tools"], entry["conversation"]] = entry["request"]
            key = keys.key_of(entry["api"], entry["model"], entry["request"]) if ignore else found
            entries.append(Entry(**{**entry, "key": key, "whole_key": found}))
        if len(lines) != count:
            self._line = 1 + min(len(lines), max(count, 0))
            self._refuse(f"{count:,} lines after the first one", f"{len(lines):,}: the file was cut or edited")
        return tuple(entries)

    def _entry(self, document: dict[str, Any], last: Mapping[tuple[bool, int], Mapping[str, Any]]) -> dict[str, Any]:
        self._names(document, set(_OF_ENTRY), set(_OF_ENTRY) - _MAY_BE_LEFT_OUT)
        for name, (kind, words) in _OF_ENTRY.items():
            if name in document:
                self._is(document, name, kind, words)
        if not 200 <= document["status"] <= 599:
            self._refuse("a status of HTTP, 200 to 599, under `status`", f"{document['status']:,}")
        self._usage(document["usage"])
        if found := planted_key(document):
            self._refuse("no key of a provider", f"what looks like {found}")
        continues, without = document.pop("continues", {}), document.pop("without", [])
        if not all(_is_count(value) for value in continues.values()) or not all(
            isinstance(one, str) for one in without
        ):
            self._refuse("counts in `continues` and names in `without`", "something else")
        before = last.get((document["with_tools"], document["conversation"]))
        if (continues or without) and before is None:
            self._refuse("the first request of a conversation whole", "one that continues another")
        try:
            document["request"] = whole_request(document["request"], continues, without, before or {})
        except ValueError as error:
            self._refuse("what follows the request before", str(error))
        return document

    def _names(self, document: Mapping[str, Any], known: set[str], needed: set[str]) -> None:
        if missing := sorted(needed - set(document)):
            self._refuse(f"the field `{missing[0]}`", "none")
        if others := sorted(set(document) - known):
            self._refuse("fields of this version only", f"`{_short(others[0])}`")

    def _is(self, document: Mapping[str, Any], name: str, kind: type, words: str) -> None:
        value = document[name]
        if kind is int:
            fits = _is_count(value)
        elif kind is float:
            fits = _is_amount(value)
        else:
            fits = isinstance(value, kind)
        if not fits:
            self._refuse(f"{words} under `{name}`", _kind(value))

    def _usage(self, usage: Mapping[str, Any]) -> None:
        for name, value in usage.items():
            if name not in {*COUNTS, "cost_usd"}:
                self._refuse("counts of tokens and `cost_usd` under `usage`", f"`{_short(name)}`")
            if value is not None and not (_is_count(value) if name in COUNTS else _is_amount(value)):
                self._refuse(f"a number of at least 0 under `usage.{name}`", _short(value))


def _lines(content: bytes) -> list[bytes]:
    """By line feeds alone: `splitlines` would part at a carriage return too."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _is_date(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_COUNTED


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_COUNTED


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"the number {number:.40}")


def _float(text: str) -> float:
    """Python would read 1e999 as infinity."""
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value)) or f"the number {_short(value)}"


def _short(value: Any) -> str:
    shown = json.dumps(value) if not isinstance(value, float) or math.isfinite(value) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


_OF_ACCOUNTS = {
    *("metadata", "organization", "organization_id", "prompt_cache_key", "safety_identifier", "user", "user_id"),
}
"""Fields of answers that say whose account asked."""
_WRITABLE = "record in a checkout that this user may write to"
_ORGANIZATION = re.compile(r"\borg-[A-Za-z0-9]{24}\b")


def require_place(path: Path, below: Path) -> None:
    """Raises RecordingError where `write_recording` could not put a file: nobody should pay for what is then lost.
    Nothing is made."""
    folder = path.parent
    while folder != below and not os.path.lexists(folder):
        folder = folder.parent
    try:
        descriptor = open_folder(folder, below)
        try:
            if folder == path.parent:
                _require_plain(path, descriptor)
            if not os.access(f"/proc/self/fd/{descriptor}", os.W_OK | os.X_OK, effective_ids=True):
                raise RecordingError(f"{path} can't be written: {folder} is read-only for this user", help=_WRITABLE)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise place_problem(path, error, "can't be written") from None


def write_recording(path: Path, recording: Recording, masker: Masker | None, *, below: Path | None = None) -> None:
    """Write a recording in place of the one that is there. The old one stays when that fails.

    masker: knows all secrets and keys. below: the spec's folder; no link on the way from there is followed. Raises
    RecordingError, and no file is made, where a secret or a key stands in it, or the disk is full.
    """
    content = _lines_of(recording, masker)
    try:
        folder = make_folder(path.parent, below)
        try:
            _require_plain(path, folder)
            _replace(path.name, folder, content)
        finally:
            os.close(folder)
    except OSError as error:
        raise place_problem(path, error, "can't be written, and what was there before is unchanged") from None


def _lines_of(recording: Recording, masker: Masker | None) -> bytes:
    entries = [replace(entry, answer=_without_account(entry.answer)) for entry in recording.entries]
    lines, size = [], 0
    for number, document in enumerate(documents_of(entries), 1):
        _require_no_secret(document, number, masker)
        if is_too_deep(document):
            raise RecordingError(
                f"request {number:,} of {recording.cell}: it and its answer have more than {DEPTH_LIMIT} lists and"
                " objects in one another, which could not be read again"
            )
        try:
            lines.append(line_of(document))
        except ValueError as error:
            raise RecordingError(f"request {number:,} of {recording.cell} is not JSON: {error}") from None
        size += len(lines[-1])
        if size > SIZE_LIMIT:
            raise RecordingError(
                f"request {number:,} of {recording.cell}: a recording may have {SIZE_LIMIT:,} bytes, and up to here it "
                f"has {size:,}",
                help="record a shorter task, or use --gateway live",
            )
    return b"".join([header_line(recording, lines), *lines])


def _without_account(answer: Mapping[str, Any]) -> dict[str, Any]:
    """With nothing in place of what says whose account it was: clients may expect the fields themselves."""
    return {
        name: ({} if isinstance(value, dict) else None) if name in _OF_ACCOUNTS else value
        for name, value in answer.items()
    }


def _require_no_secret(document: Mapping[str, Any], number: int, masker: Masker | None) -> None:
    """Raises RecordingError, which says where it stands and not what it is."""
    for place, text in _texts(document, ""):
        found = planted_key(text) or ("an organization's id" if _ORGANIZATION.search(text) else "")
        if found or (masker is not None and masker.finds(text)):
            raise RecordingError(
                f"request {number:,}, {place}: expected no secrets, found {found or 'the value of one'} in a form that "
                "no name can stand for",
                help="nothing was recorded; keep it out of what the agent reads and prints",
            )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """All texts of a value, names of fields too, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield f"a name in {place}" if place else "a name", name
            yield from _texts(item, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{place}[{index}]")


def _require_plain(path: Path, folder: int) -> None:
    try:
        there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(there.st_mode):
        kind = "a link" if stat.S_ISLNK(there.st_mode) else "something else"
        raise RecordingError(f"{path}: expected a regular file, found {kind}", help="remove it")


def _replace(name: str, folder: int, content: bytes) -> None:
    temporary = f".{name[:200]}.{os.urandom(8).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            give_to_owner_of(folder, descriptor)
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    with contextlib.suppress(OSError):  # it is there, and only a crash of the machine could undo it
        os.fsync(folder)
