"""Joining what shards left into one folder, as one run would have left it (contract, 5.4): `keystone merge`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action import __version__
from keystone_action.errors import HarnessError, UsageError
from keystone_action.runner.assemble import baseline_notice
from keystone_action.runner.baseline import beside_baseline
from keystone_action.runner.journal import journal
from keystone_action.runner.journal.entries import JournalContent, JournalEntry
from keystone_action.runner.journal.identity import (
    Identity,
    continue_identity,
    differences,
    explain_all,
    join_identities,
)
from keystone_action.runner.journal.merge import Copying, find, read_shard
from keystone_action.runner.run import Ran, make_output_directory
from keystone_action.scoring.composite import misfit
from keystone_action.scoring.shards import ShardRun, merge
from keystone_action.scoring.soundness import NO_BASELINE
from keystone_action.spec.plan import cells_digest
from keystone_action.system.run_lock import new_run_id

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.scoring.results import RunResult


def merge_shards(options: Options) -> Ran:
    """Read every shard, decide, and write journal, cells' files and services' logs (reports are the front doors' part).

    Raises UsageError and HarnessError as `scoring.merge.merge` and `shard_folders.find` do, before anything is written;
    UsageError for an output that holds results, OutputError when it can't be written.
    """
    here = options.caller.directory
    folders = find([here / place for place in options.jobs.results])
    read = [read_shard(folder) for folder in folders]
    shards = [ShardRun(_show_folder(folder, here), run) for folder, (run, _) in zip(folders, read, strict=True)]
    run = merge(shards, version=__version__, digest_of=cells_digest)
    identity = _identity(shards, [recorded for _, recorded in read])
    _refuse_other_rules(run, options)
    run = replace(run, run_id=options.caller.run_id or new_run_id())
    directory = make_output_directory(options, run.run_id)
    journal.write(directory, identity, run.run_id, _entries(run, [recorded for _, recorded in read]))
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
        if found and differences(so_far, one.identity, "merge"):
            raise _no_shards_of_one(shards, found, shard, one.identity)
        found.append(one.identity)
        so_far = continue_identity(so_far, one.identity)
    return join_identities(found)


def _no_shards_of_one(
    shards: Sequence[ShardRun], found: Sequence[Identity], shard: ShardRun, identity: Identity
) -> HarnessError:
    """With the first shard that this one does not belong to."""
    pairs = [(other, differences(one, identity, "merge")) for other, one in zip(shards, found, strict=False)]
    first, wrong = next(pair for pair in pairs if pair[1])
    return HarnessError(
        f"{first.name} and {shard.name} are no shards of one run: {explain_all(wrong, 'merge')}",
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
    copying = Copying()
    for folder, shard in shards:
        cells = folder / "cells"
        if copying.is_folder(cells):
            for cell in shard.cells:
                copying.folder(cells / cell.id, directory / "cells" / cell.id)
        index, count = shard.position
        services = directory / "services"
        copying.folder(folder / "services", services if count == 1 else services / f"shard-{index}-of-{count}")
    return copying.left_out
