"""Results on disk while a run goes on: one finished cell a line, on the disk before it is announced.

A line is the cell's document (results.json's) with `spec` and `sha256` of its spec added. Lines are written in groups
and each group is fsynced at once (the contract allows 100 ms, 5.4): a group is what finished during the last sync.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from keystone_action.errors import OutputError, UsageError
from keystone_action.scoring.document import cell_from_document, cell_to_document
from keystone_action.scoring.results import CellResult

FILE_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal."""

    spec_id: str
    sha256: str
    cell: CellResult


class Journal:
    """The open journal of a run. `async with` it; `add` returns when the cell is on the disk.

    Raises OutputError when the disk is full or read-only, UsageError when another run holds the directory or results
    are already there.
    """

    def __init__(self, directory: Path, *, resume: bool = False) -> None:
        self._path = directory / FILE_NAME
        self._file = _open(self._path, resume=resume)
        self._waiting: list[bytes] = []
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    async def add(self, entry: Entry) -> None:
        """Append one cell. Cells that finish while another group is being synced share the next sync."""
        self._waiting.append(_line(entry))
        async with self._lock:
            if self._waiting:
                lines, self._waiting = self._waiting, []
                await anyio.to_thread.run_sync(self._write, lines)

    def _write(self, lines: list[bytes]) -> None:
        try:
            _write_all(self._file, b"".join(lines))
            os.fsync(self._file)
        except OSError as error:
            raise output_error(self._path, error) from error


def write(directory: Path, entries: Iterable[Entry]) -> None:
    """A whole journal at once, on the disk when this returns. Raises as `Journal`."""
    path = directory / FILE_NAME
    with os.fdopen(_open(path, resume=False), "wb") as file:
        try:
            file.writelines(_line(entry) for entry in entries)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise output_error(path, error) from error


def _line(entry: Entry) -> bytes:
    document = {"spec": entry.spec_id, "sha256": entry.sha256, **cell_to_document(entry.cell)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _open(path: Path, *, resume: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if resume else os.O_EXCL)
    try:
        file = os.open(path, flags, 0o644)
    except FileExistsError:
        raise already_there(path.parent) from None
    except OSError as error:
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
        help=f"choose another --output, or go on with that run: --resume {directory}",
    )


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


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


def read(directory: Path) -> Iterator[Entry]:
    """The entries of a journal in the order written; of a cell that comes twice the later counts (the caller's part).

    A last line without its end was cut by a crash and is left out. Raises UsageError for anything else that is no
    journal.
    """
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield entry_of(path, number, line)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of an earlier run") from None


def entry_of(path: Path, number: int, line: bytes) -> Entry:
    """What a line says. Raises UsageError when it is none of a journal."""
    try:
        document: dict[str, Any] = json.loads(line)
        spec_id, sha256 = document.pop("spec"), document.pop("sha256")
        return Entry(str(spec_id), str(sha256), cell_from_document(document))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        raise UsageError(f"{path}:{number} is no line of a journal: {error}") from None


def trim(directory: Path) -> None:
    """Cut a last line that a crash left without its end, so that appending starts on a line of its own."""
    path = directory / FILE_NAME
    with path.open("rb+") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
