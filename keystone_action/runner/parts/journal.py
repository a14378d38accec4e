"""Results on disk while a run goes on: one finished cell a line, on the disk before it is announced.

A line is the cell's document (results.json's) with `spec` and `sha256` of its spec, and what isolated it, added; the
run's identity comes first (`recorded.py`). Lines are written in groups and each group is fsynced at once (the
contract allows 100 ms, 5.4): a group is what came during the last sync.

Nobody else writes here. What was removed, replaced or changed while the run goes on is noticed after each group and at
the end: results that can't be believed are none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from keystone_action.errors import KeystoneError, OutputError, UsageError
from keystone_action.files.descent import open_plain
from keystone_action.files.kept_output import write_all
from keystone_action.runner.parts.identity import Identity
from keystone_action.runner.parts.left_in_journal import JournalText, Line, without_long_texts
from keystone_action.runner.parts.recorded import (
    FILE_NAME,
    LEFT,
    READ_LIMIT,
    JournalContent,
    JournalEntry,
    entry_line,
    identity_line,
    read_lines,
)
from keystone_action.scoring.results import CellResult

_CHUNK = 1 << 20


@dataclass
class _Group:
    """Lines that are written and synced together."""

    lines: list[bytes] = field(default_factory=list)
    written: bool = False
    start: int = 0
    """Where the first of them is in the file, once they are written."""


class Journal:
    """The open journal of a run. `async with` it; `say` says what the run is, `add` returns when the cell is on the
    disk, with the cell as it should be held from then on.

    Raises OutputError when the disk is full or read-only, or when somebody else meddled with the file; UsageError when
    another run holds the directory, when results are already there, or when what is to be resumed is no journal.
    """

    def __init__(self, directory: Path, *, resume: bool = False) -> None:
        self._path = directory / FILE_NAME
        self._file = _open(self._path, resume=resume)
        self._text = JournalText(self._path, self._file)
        self._content = hashlib.sha256()
        self._size = 0
        # Some file systems of virtual machines number a file anew each time that they are asked.
        self._has_number = self._number() == _number(os.fstat(self._file))
        self._group = _Group()
        self._lock = anyio.Lock()
        self._broken: KeystoneError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._broken is None:
                with anyio.CancelScope(shield=True):
                    await self._sync(self._group)
                    await anyio.to_thread.run_sync(self._compare)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # closing alone does not, while `_text` has a copy
            os.close(self._file)

    def earlier(self) -> JournalContent:
        """What an earlier call wrote, before anything is added; a last line that a crash cut is cut off. Raises
        UsageError when that is no journal of ours."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            recorded = read_lines(self._path, file, self._text)
            self._size = recorded.length
            if recorded.cut:
                os.ftruncate(self._file, recorded.length)
            file.seek(0)
            self._content = hashlib.file_digest(file, "sha256")
        return recorded

    def say(self, identity: Identity, run_id: str) -> None:
        """What the run is, before the cells that are added from now on; on the disk with the first of them."""
        self._group.lines.append(identity_line(identity, run_id))

    async def add(self, entry: JournalEntry) -> CellResult:
        """Append one cell: see `add_all`."""
        (cell,) = await self.add_all([entry])
        return cell

    async def add_all(self, entries: Sequence[JournalEntry]) -> list[CellResult]:
        """Append cells. Those that come while another group is being synced share the next sync, and its fate.

        Each comes back without its long texts, which are read from here when they are asked for."""
        group, lines = self._group, [entry_line(entry) for entry in entries]
        before = sum(map(len, group.lines))
        group.lines += lines
        await self._sync(group)
        kept = []
        for entry, line in zip(entries, lines, strict=True):
            kept.append(without_long_texts(entry.cell, Line(self._text, group.start + before, len(line))))
            before += len(line)
        return kept

    async def _sync(self, group: _Group) -> None:
        async with self._lock:
            if not group.written and self._broken is None:
                self._group = _Group()
                group.start = self._size
                try:
                    await anyio.to_thread.run_sync(self._write, group.lines)
                    group.written = True
                except KeystoneError as error:
                    self._broken = error
        if not group.written and self._broken is not None:
            raise type(self._broken)(self._broken.message, help=self._broken.help)

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        try:
            if data:
                write_all(self._file, data)
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # half a line would make the whole unreadable for `merge`
                os.ftruncate(self._file, self._size)
            raise output_error(self._path, error) from error
        self._content.update(data)
        self._size += len(data)
        self._look()

    def _look(self) -> None:
        """Raises OutputError when the file that we write is not, or not only, the one that is there."""
        status, number = os.fstat(self._file), self._number()
        if not status.st_nlink or number is None:
            raise self._meddling_error("removed" if number is None else "replaced")
        if self._has_number and number != _number(status):
            raise self._meddling_error("replaced")
        if status.st_size != self._size:
            raise self._meddling_error("cut" if status.st_size < self._size else "written to by another program")

    def _compare(self) -> None:
        """At the end also every byte: nothing else shows what was written over. Raises OutputError."""
        self._look()
        digest, position = hashlib.sha256(), 0
        while chunk := os.pread(self._file, _CHUNK, position):
            digest.update(chunk)
            position += len(chunk)
        if digest.digest() != self._content.digest():
            raise self._meddling_error("changed")

    def _number(self) -> tuple[int, int] | None:
        try:
            return _number(self._path.lstat())
        except OSError:
            return None

    def _meddling_error(self, how: str) -> OutputError:
        return OutputError(
            f"{self._path} was {how} while the run went on: its results can't be believed",
            help="run again, and let nothing else write into the folder for results",
        )


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def write(directory: Path, identity: Identity, run_id: str, entries: Iterable[JournalEntry]) -> None:
    """A whole journal at once, on the disk when this returns. Raises as `Journal`."""
    path = directory / FILE_NAME
    with os.fdopen(_open(path, resume=False), "wb") as file:
        try:
            file.write(identity_line(identity, run_id))
            file.writelines(entry_line(entry) for entry in entries)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise output_error(path, error) from error


def _open(path: Path, *, resume: bool) -> int:
    try:
        if resume:
            file = open_plain(path, READ_LIMIT, os.O_RDWR | os.O_APPEND, advice=LEFT)
        else:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL, 0o644)
    except FileExistsError:
        raise already_there(path.parent) from None
    except OSError as error:
        if resume and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            kinds = {errno.ELOOP: "it is a link", errno.EISDIR: "it is a folder", errno.ENXIO: "it is a socket"}
            said = kinds.get(error.errno, error.strerror)
            raise UsageError(f"{path} can't be read: {said}", help="name the folder of an earlier run") from None
        raise output_error(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UsageError(f"another run is writing into {path.parent}", help="choose another --output") from None
    return file


def already_there(directory: Path) -> UsageError:
    """The refusal to mix the results of two runs."""
    return UsageError(
        f"{directory} already holds results",
        help=f"choose another --output, or go on with that run: --resume {shlex.quote(str(directory))}",
    )


def output_error(path: Path, error: OSError) -> OutputError:
    """The sentence for results that can't be written."""
    ways = {
        errno.ENOSPC: "the disk is full: make room, or choose another --output",
        errno.EDQUOT: "the disk quota is used up: make room, or choose another --output",
        errno.EROFS: "the file system is read-only: choose another --output",
        errno.EACCES: "no permission to write there: choose another --output",
        errno.EPERM: "no permission to write there: choose another --output",
        errno.EEXIST: "there is a file of that name: choose another --output",
        errno.ENOTDIR: "part of that path is a file: choose another --output",
    }
    return OutputError(
        f"results can't be written to {path}: {error.strerror or error}", help=ways.get(error.errno or 0, "")
    )
