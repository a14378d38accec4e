"""Writing a recording: whole or not at all, and nothing in it that nobody may know."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings.lines import documents_of, header_line, line_of
from keystone_action.gateway.recordings.places import give_to_owner_of, make_folder, open_folder, place_problem
from keystone_action.gateway.recordings.planted import planted_key
from keystone_action.gateway.recordings.recording import SIZE_LIMIT, Recording, RecordingError
from keystone_action.gateway.recordings.walking import DEPTH_LIMIT, is_too_deep

_OF_ACCOUNTS = {
    "metadata",
    "organization",
    "organization_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
    "user_id",
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
    content = _content(recording, masker)
    try:
        folder = make_folder(path.parent, below)
        try:
            _require_plain(path, folder)
            _replace(path.name, folder, content)
        finally:
            os.close(folder)
    except OSError as error:
        raise place_problem(path, error, "can't be written, and what was there before is unchanged") from None


def _content(recording: Recording, masker: Masker | None) -> bytes:
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
    return {name: _nothing(value) if name in _OF_ACCOUNTS else value for name, value in answer.items()}


def _nothing(value: Any) -> Any:
    return {} if isinstance(value, dict) else None


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
