"""Joining what shards left into one folder, as one run would have left it (contract, 5.4): `keystone merge`.

The folders are found below a folder of artifacts, read, and copied from. What is in them may be a fork's: no link is
followed, nothing blocks, and everything is bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from keystone_action import __version__
from keystone_action.errors import HarnessError, UsageError
from keystone_action.files.copies import copy_entries
from keystone_action.files.descent import open_plain
from keystone_action.runner.journal.earlier_runs import beside_baseline
from keystone_action.runner.journal.entries import (
    JOURNAL_FILE,
    JOURNAL_LIMIT,
    JournalContent,
    JournalEntry,
    read_journal_lines,
)
from keystone_action.runner.journal.identity import (
    Identity,
    continue_identity,
    explain_differences,
    identity_differences,
    join_identities,
)
from keystone_action.runner.journal.journal import make_output_directory, output_error, write_journal
from keystone_action.runner.results import baseline_notice
from keystone_action.runner.run import Ran
from keystone_action.scoring.composite import misfit
from keystone_action.scoring.document import RESULTS_FILE, require_schema_version, run_from_document
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.shards import ShardRun, merge
from keystone_action.scoring.soundness import NO_BASELINE
from keystone_action.spec.plan import cells_digest
from keystone_action.system.run_lock import new_run_id

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.scoring.results import RunResult

COPIED_FILE_LIMIT = 64 << 20
COPIED_BYTES_LIMIT = 8 << 30
COPIED_ENTRIES_LIMIT = 1_000_000
"""For all cells' files together; COPIED_FILE_LIMIT is for one file. What is above the limits is left out, and said."""

_DEPTH = 4
_FOLDERS_LIMIT = 100_000


def find_shard_folders(places: Sequence[Path]) -> list[Path]:
    """Every folder with results in or below the places, in order of their names.

    A download of artifacts has one folder for each, or their files directly when there is only one. Folders whose
    names start with a dot are not looked into (`.git`, and `.keystone` with earlier runs). Raises UsageError when a
    place is not a folder, or when there are no results at all.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise UsageError(
                f"{place} is not a folder" if place.exists() else f"there is no folder {place}",
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
        if any(entry.name in (RESULTS_FILE, JOURNAL_FILE) for entry in entries):
            yield folder
        elif depth < _DEPTH:
            deeper = (one for one in reversed(entries) if not one.name.startswith("."))
            waiting += [(folder / one.name, depth + 1) for one in deeper if one.is_dir(follow_symlinks=False)]


def read_shard_folder(folder: Path) -> tuple[RunResult, JournalContent]:
    """A shard's results, and its journal, which must agree on the cells.

    Raises UsageError for results of another version of the format, HarnessError for what is missing, cut or
    contradicts itself.
    """
    try:
        with _open_regular_file(folder, RESULTS_FILE) as file:
            document = json.load(file)
    except FileNotFoundError:
        raise HarnessError(
            f"{folder} has a journal, but no {RESULTS_FILE}: that run was killed before its end",
            help="run that job again",
        ) from None
    except (ValueError, RecursionError) as error:
        raise HarnessError(
            f"{folder / RESULTS_FILE} is not a JSON document: {error}", help="run that job again"
        ) from None
    if not isinstance(document, dict):
        raise HarnessError(f"{folder / RESULTS_FILE} holds no results", help="run that job again")
    try:
        require_schema_version(document)
    except UsageError as error:
        raise UsageError(f"{folder / RESULTS_FILE}: {error.message}", help=error.help) from None
    try:
        run = run_from_document(document)
    except UsageError as error:
        raise HarnessError(f"{folder / RESULTS_FILE}: {error.message}", help="run that job again") from None
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
                    f"{folder / JOURNAL_FILE} is cut: it lacks cells that {RESULTS_FILE} has, such as {cell.id[:200]}",
                    help="run that job again",
                )
            if found.sha256 != spec.sha256 or found.cell != cell:
                raise HarnessError(
                    f"{folder}: {RESULTS_FILE} and {JOURNAL_FILE} contradict each other about the cell {cell.id[:200]}",
                    help="run that job again",
                )


def _journal(folder: Path) -> JournalContent:
    path = folder / JOURNAL_FILE
    try:
        with _open_regular_file(folder, JOURNAL_FILE) as file:
            recorded = read_journal_lines(path, file)
    except FileNotFoundError:
        raise HarnessError(
            f"{folder} has {RESULTS_FILE}, but no {JOURNAL_FILE}", help="upload the whole folder"
        ) from None
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
        descriptor = open_plain(path, JOURNAL_LIMIT)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HarnessError(f"{path} can't be read: {error.strerror}", help="links are not followed") from None
    except UsageError as error:
        raise HarnessError(error.message, help="run that job again") from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


@dataclass
class ShardCopy:
    """Copies folders of shards into ours."""

    left_out: int = 0
    """How many files were not copied: links, special files, unreadable ones, and what is above the limits."""
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
            kept = status.st_size <= COPIED_FILE_LIMIT and self._bytes + status.st_size <= COPIED_BYTES_LIMIT
        kept = kept and self._entries < COPIED_ENTRIES_LIMIT
        self._entries += 1
        self._bytes += status.st_size if kept else 0
        self.left_out += not kept
        return not kept


def merge_shards(options: Options) -> Ran:
    """Read every shard, decide, and write journal, cells' files and services' logs (reports are the front doors' part).

    Raises UsageError and HarnessError as `scoring.shards.merge` and `find_shard_folders` do, before anything is
    written; UsageError for an output that holds results, OutputError when it can't be written.
    """
    here = options.caller.directory
    folders = find_shard_folders([here / place for place in options.jobs.results])
    read = [read_shard_folder(folder) for folder in folders]
    shards = [ShardRun(_show_folder(folder, here), run) for folder, (run, _) in zip(folders, read, strict=True)]
    run = merge(shards, version=__version__, digest_of=cells_digest)
    identity = _identity(shards, [recorded for _, recorded in read])
    _refuse_other_rules(run, options)
    run = replace(run, run_id=options.caller.run_id or new_run_id())
    directory = make_output_directory(options, run.run_id)
    write_journal(directory, identity, run.run_id, _entries(run, [recorded for _, recorded in read]))
    left_out = _copy(list(zip(folders, shards, strict=True)), directory)
    if left_out:
        notice = f"{left_out} of the shards' files were left out: no plain files, not readable, or too large"
        run = replace(run, notices=(*run.notices, notice))
    return Ran(_beside_baseline(run, options), directory)


def _identity(shards: Sequence[ShardRun], recorded: Sequence[JournalContent]) -> Identity:
    """That of all shards. Raises HarnessError when they are not parts of one run."""
    found: list[Identity] = []
    so_far = Identity()
    for shard, one in zip(shards, recorded, strict=True):
        if one.identity is None:
            raise HarnessError(f"the journal in {shard.name} does not say what it is of", help="run that job again")
        if found and identity_differences(so_far, one.identity, "merge"):
            raise _no_shards_of_one(shards, found, shard, one.identity)
        found.append(one.identity)
        so_far = continue_identity(so_far, one.identity)
    return join_identities(found)


def _no_shards_of_one(
    shards: Sequence[ShardRun], found: Sequence[Identity], shard: ShardRun, identity: Identity
) -> HarnessError:
    """With the first shard that this one does not belong to."""
    pairs = [(other, identity_differences(one, identity, "merge")) for other, one in zip(shards, found, strict=False)]
    first, wrong = next(pair for pair in pairs if pair[1])
    return HarnessError(
        f"{first.name} and {shard.name} are not shards of one run: {explain_differences(wrong, 'merge')}",
        help="join shards of one run only, as their jobs left them",
    )


def _entries(run: RunResult, recorded: Sequence[JournalContent]) -> Iterator[JournalEntry]:
    """The journal's lines of the cells that were joined, in their order."""
    isolated = {entry.cell.id: entry.sandbox for one in recorded for entry in one.entries}
    for spec in run.specs:
        for cell in spec.cells:
            yield JournalEntry(spec.id, spec.sha256, cell, isolated[cell.id])


def _beside_baseline(run: RunResult, options: Options) -> RunResult:
    """All cells are here now: what the shards said of their own parts goes."""
    notice = baseline_notice(options)
    notices = [one for one in run.notices if not one.startswith(NO_BASELINE)]
    return beside_baseline(replace(run, notices=(*notices, *filter(None, [notice]))), options.earlier.baseline_run)


def _show_folder(folder: Path, directory: Path) -> str:
    top = directory.resolve()
    return str(folder.relative_to(top)) if folder.is_relative_to(top) and folder != top else str(folder)


def _refuse_other_rules(run: RunResult, options: Options) -> None:
    """Cells were judged where they ran: a stricter rule that only this call has would judge nothing."""
    threshold = options.verdict.threshold
    for spec in run.specs:
        if threshold is not None and spec.pass_threshold != threshold:
            raise UsageError(
                f"the threshold {threshold:g} is given, but the shards judged {spec.id} by {spec.pass_threshold:g}",
                help="give the threshold to the jobs that run the shards",
            )
        for cell in (one for one in spec.cells if one.verdict == "pass"):
            skipped = [check.name for check in cell.invariants if check.status == "skip" and check.on_skip != "ignore"]
            if options.verdict.fail_on_skipped and skipped:
                raise UsageError(
                    f"fail-on-skipped is given, but the shards let {cell.id} pass without {skipped[0]}",
                    help="give fail-on-skipped to the jobs that run the shards",
                )
            if options.verdict.fail_on_stale and (why := misfit(cell.trace)):
                raise UsageError(
                    f"fail-on-stale is given, but the shards let {cell.id} pass: {why}",
                    help="give fail-on-stale to the jobs that run the shards",
                )


def _copy(shards: Sequence[tuple[Path, ShardRun]], directory: Path) -> int:
    """Files of cells and logs of services; how many files were left out. Names are those of cells, which were looked
    at, and numbers of ours."""
    copying = ShardCopy()
    for folder, shard in shards:
        cells = folder / "cells"
        if copying.is_folder(cells):
            for cell in shard.cells:
                copying.folder(cells / cell.id, directory / "cells" / cell.id)
        index, count = shard.position
        services = directory / "services"
        copying.folder(folder / "services", services if count == 1 else services / f"shard-{index}-of-{count}")
    return copying.left_out
