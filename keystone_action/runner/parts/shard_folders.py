"""The result folders of shards, as other jobs left them: found below a folder of artifacts, read, and copied from.

What is in them may be a fork's: no link is followed, nothing blocks, and everything is bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from keystone_action.errors import HarnessError, UsageError
from keystone_action.files.copies import copy_entries
from keystone_action.files.descent import open_plain
from keystone_action.runner.parts.journal import output_error
from keystone_action.runner.parts.recorded import FILE_NAME, READ_LIMIT, JournalContent, read_lines
from keystone_action.scoring.document import require_schema_version, run_from_document
from keystone_action.scoring.results import RunResult

RESULTS = "results.json"
FILE_LIMIT = 64 << 20
COPY_LIMIT = 8 << 30
ENTRIES_LIMIT = 1_000_000
"""Of all cells' files together; of one file, as many bytes as FILE_LIMIT. What is above them is left out, and said."""

_DEPTH = 4
_FOLDERS_LIMIT = 100_000


def find(places: Sequence[Path]) -> list[Path]:
    """Every folder with results in or below the places, in order of their names.

    A download of artifacts has one folder for each, or their files directly when there is only one. Folders whose
    names start with a dot are not looked into (`.git`, and `.keystone` with earlier runs). Raises UsageError when a
    place is no folder, or when there are no results at all.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise UsageError(
                f"{place} is no folder" if place.exists() else f"there is no folder {place}",
                help="name the folders with the results of shards, or the one that their artifacts were downloaded to",
            )
        below = list(_search(place.resolve()))
        found.update(dict.fromkeys(below))
        if not below:
            raise UsageError(
                f"there are no results in {place}",
                help="download the artifacts of all shards there, each into a folder of its own",
            )
    return list(found)


def _search(top: Path) -> Iterator[Path]:
    waiting, seen = [(top, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        seen += 1
        if seen > _FOLDERS_LIMIT:
            raise UsageError(f"there are more than {_FOLDERS_LIMIT:,} folders in {top}", help="name the shards' own")
        try:
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise HarnessError(f"{folder} can't be read: {error.strerror}") from None
        if any(entry.name in (RESULTS, FILE_NAME) for entry in entries):
            yield folder
        elif depth < _DEPTH:
            deeper = (one for one in reversed(entries) if not one.name.startswith("."))
            waiting += [(folder / one.name, depth + 1) for one in deeper if one.is_dir(follow_symlinks=False)]


def read_shard(folder: Path) -> tuple[RunResult, JournalContent]:
    """A shard's results, and its journal, which must agree on the cells.

    Raises UsageError for results of another version of the format, HarnessError for what is missing, cut or
    contradicts itself.
    """
    try:
        with _open_regular_file(folder, RESULTS) as file:
            document = json.load(file)
    except FileNotFoundError:
        raise HarnessError(
            f"{folder} has a journal, but no {RESULTS}: that run was killed before its end", help="run that job again"
        ) from None
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"{folder / RESULTS} is no JSON document: {error}", help="run that job again") from None
    if not isinstance(document, dict):
        raise HarnessError(f"{folder / RESULTS} holds no results", help="run that job again")
    try:
        require_schema_version(document)
    except UsageError as error:
        raise UsageError(f"{folder / RESULTS}: {error.message}", help=error.help) from None
    try:
        run = run_from_document(document)
    except UsageError as error:
        raise HarnessError(f"{folder / RESULTS}: {error.message}", help="run that job again") from None
    recorded = _journal(folder)
    _agree(folder, run, recorded)
    return run, recorded


def _agree(folder: Path, run: RunResult, recorded: JournalContent) -> None:
    """The journal has each cell of the results as they do; it may have more, of an earlier call (`--resume`)."""
    # By spec and cell; of a cell that was tried again the last.
    journal = {(entry.spec_id, entry.cell.id): entry for entry in recorded.entries}
    for spec in run.specs:
        for cell in spec.cells:
            found = journal.get((spec.id, cell.id))
            if found is None:
                raise HarnessError(
                    f"{folder / FILE_NAME} is cut: it lacks cells that {RESULTS} has, such as {cell.id[:200]}",
                    help="run that job again",
                )
            if found.sha256 != spec.sha256 or found.cell != cell:
                raise HarnessError(
                    f"{folder}: {RESULTS} and {FILE_NAME} contradict each other about the cell {cell.id[:200]}",
                    help="run that job again",
                )


def _journal(folder: Path) -> JournalContent:
    path = folder / FILE_NAME
    try:
        with _open_regular_file(folder, FILE_NAME) as file:
            recorded = read_lines(path, file)
    except FileNotFoundError:
        raise HarnessError(f"{folder} has {RESULTS}, but no {FILE_NAME}", help="upload the whole folder") from None
    except UsageError as error:
        raise HarnessError(error.message, help="run that job again") from None
    if recorded.cut:
        raise HarnessError(f"{path} is cut: its last line has no end", help="run that job again")
    return recorded


@contextmanager
def _open_regular_file(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """A regular file that is not a link, of a size that can be read. Raises FileNotFoundError, HarnessError."""
    path = folder / name
    try:
        descriptor = open_plain(path, READ_LIMIT)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HarnessError(f"{path} can't be read: {error.strerror}", help="links are not followed") from None
    except UsageError as error:
        raise HarnessError(error.message, help="run that job again") from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


@dataclass
class Copying:
    """Copies folders of shards into ours. left_out: how many files were not copied: links, special files, unreadable
    ones, and what is above the limits."""

    left_out: int = 0
    _bytes: int = field(default=0, init=False)
    _entries: int = field(default=0, init=False)

    def folder(self, source: Path, target: Path) -> None:
        """Nothing where there is no such folder. Raises OutputError when ours can't be written."""
        if not self.is_folder(source):
            return
        try:
            target.mkdir(parents=True, exist_ok=True)
            copied = copy_entries(source, target, leave_out=self._leave_out)
        except OSError as error:
            raise output_error(target, error) from error
        self.left_out += len(copied.unreadable)

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder; what is there in its place, a link above all, is left out."""
        try:
            found = stat.S_ISDIR(path.lstat().st_mode)
        except OSError:
            return False
        self.left_out += not found
        return found

    def _leave_out(self, path: str, status: os.stat_result) -> bool:
        kept = stat.S_ISDIR(status.st_mode) and path.count("/") < _DEPTH
        if stat.S_ISREG(status.st_mode):
            kept = status.st_size <= FILE_LIMIT and self._bytes + status.st_size <= COPY_LIMIT
        kept = kept and self._entries < ENTRIES_LIMIT
        self._entries += 1
        self._bytes += status.st_size if kept else 0
        self.left_out += not kept
        return not kept
