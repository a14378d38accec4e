"""Results on disk while a run goes on: one finished cell a line, on the disk before it is announced.

The run's identity comes first (`entries.py`). Lines are written in groups, and each group is fsynced at once (the
contract allows 100 ms, 5.4): a group is what came during the last sync. Nobody else writes here. What was removed,
replaced or changed while the run goes on is noticed after each group and at the end: such results can't be believed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from keystone_action.errors import KeystoneError, OutputError, UsageError
from keystone_action.files.descent import open_plain
from keystone_action.files.git.commits import refuse_committed_link
from keystone_action.files.kept_output import write_all
from keystone_action.runner.journal.entries import (
    JOURNAL_ADVICE,
    JOURNAL_FILE,
    JOURNAL_LIMIT,
    JournalContent,
    JournalEntry,
    entry_line,
    identity_line,
    read_journal_lines,
)
from keystone_action.runner.journal.identity import Identity
from keystone_action.scoring.document import RESULTS_FILE
from keystone_action.scoring.results import CellResult

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.spec.plan import Cell

_CHUNK = 1 << 20


class Journal:
    """The open journal of a run. `async with` it; `say` says what the run is, `add_all` returns when the cells are
    on the disk.

    Raises OutputError when the disk is full or read-only, or when somebody else meddled with the file; UsageError when
    another run holds the directory, when results are already there, or when what is to be resumed is not a journal.
    """

    def __init__(self, directory: Path, *, resume: bool = False) -> None:
        self._path = directory / JOURNAL_FILE
        self._file = _open(self._path, resume=resume)
        self._content = hashlib.sha256()
        self._size = 0
        # Some file systems of virtual machines number a file anew each time that they are asked.
        self._has_number = self._number() == _number(os.fstat(self._file))
        self._waiting: list[bytes] = []
        self._added = self._written = 0  # lines
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
                    await self._sync()
                    await anyio.to_thread.run_sync(self._compare)
        finally:
            os.close(self._file)

    def earlier(self) -> JournalContent:
        """What an earlier call wrote, before anything is added; a last line that a crash cut is cut off. Raises
        UsageError when that is not a journal of ours."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            recorded = read_journal_lines(self._path, file)
            self._size = recorded.length
            if recorded.cut:
                os.ftruncate(self._file, recorded.length)
            file.seek(0)
            self._content = hashlib.file_digest(file, "sha256")
        return recorded

    def say(self, identity: Identity, run_id: str) -> None:
        """What the run is, before the cells that are added from now on; on the disk with the first of them."""
        self._add(identity_line(identity, run_id))

    async def add_all(self, entries: Iterable[JournalEntry]) -> None:
        """Append cells. Those that come while another group is being synced share the next sync, and its fate."""
        self._add(*map(entry_line, entries))
        await self._sync()

    def _add(self, *lines: bytes) -> None:
        self._waiting += lines
        self._added += len(lines)

    async def _sync(self) -> None:
        """Returns once all lines that were added before are on the disk."""
        added = self._added
        async with self._lock:
            if self._waiting and self._broken is None:
                lines, self._waiting = self._waiting, []
                try:
                    await anyio.to_thread.run_sync(self._write, lines)
                    self._written += len(lines)
                except KeystoneError as error:
                    self._broken = error
        if self._written < added and self._broken is not None:
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


def write_journal(directory: Path, identity: Identity, run_id: str, entries: Iterable[JournalEntry]) -> None:
    """A whole journal at once, on the disk when this returns. Raises as `Journal`."""
    path = directory / JOURNAL_FILE
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
            file = open_plain(path, JOURNAL_LIMIT, os.O_RDWR | os.O_APPEND, advice=JOURNAL_ADVICE)
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


_MOST_WAITING = 256
"""Finished cells that are held at a time; a disk that is slower than the cells holds up the cells then."""


class FinishedCells:
    """Finished cells on their way to the disk: their lines are written while the next cells get ready.

    No cell is announced before its line is on the disk, and no agent starts while the line of a cell that finished
    before it is not: an agent may take hours, and the machine may stop meanwhile. announce: told of each cell, in the
    order of their lines, once the line is on the disk.
    """

    def __init__(self, journal: Journal, announce: Callable[[Cell, CellResult], None]) -> None:
        self._journal, self._announce = journal, announce
        self._waiting: list[tuple[Cell, JournalEntry]] = []
        self._came = anyio.Event()
        self._written = anyio.Event()
        self._closing = False
        self._added = self._done = 0

    async def add(self, cell: Cell, entry: JournalEntry) -> None:
        """Take over a cell: from here on its line will be written, also when the caller is cancelled. Returns once
        there is room for the next."""
        self._waiting.append((cell, entry))
        self._added += 1
        self._came.set()
        while len(self._waiting) >= _MOST_WAITING:
            await self._written.wait()

    async def written(self) -> None:
        """Returns once every cell that was added before is on the disk and announced."""
        added = self._added
        while self._done < added:
            await self._written.wait()

    def close(self) -> None:
        """No further cell will come: what waits is written at once, and then `run` returns."""
        self._closing = True
        self._came.set()

    async def run(self) -> None:
        """Write until `close`, also when the run is being cancelled: a finished cell is kept. Raises OutputError."""
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._closing:
                await self._came.wait()
                if self._waiting:
                    await self._write()

    async def _write(self) -> None:
        cells, self._waiting = self._waiting, []
        if not self._closing:
            self._came = anyio.Event()
        await self._journal.add_all(entry for _, entry in cells)
        for cell, entry in cells:
            self._announce(cell, entry.cell)
        self._done += len(cells)
        self._written.set()
        self._written = anyio.Event()


def make_output_directory(options: Options, run_id: str) -> Path:
    """The directory for results, made. Raises OutputError, or UsageError when results are already there, or a commit
    decides where it leads."""
    if options.running.resume is not None:
        return options.caller.directory / options.running.resume
    wanted = options.reports.output or Path(".keystone") / "runs" / run_id
    directory = options.caller.directory / wanted
    refuse_committed_link(options.caller.directory, wanted)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if options.reports.output is None:
            _hide_from_git(options.caller.directory / ".keystone")
    except OSError as error:
        raise output_error(directory, error) from error
    if (directory / RESULTS_FILE).exists():
        raise already_there(directory)
    return directory


def _hide_from_git(directory: Path) -> None:
    """Results of local runs don't belong in commits. pytest hides its cache in this way as well."""
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
