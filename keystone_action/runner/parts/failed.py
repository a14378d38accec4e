"""Reading which cells of an earlier run did not pass: what `--failed` runs again."""

from __future__ import annotations

import shlex
from pathlib import Path

from keystone_action.errors import KeystoneError, UsageError
from keystone_action.runner.baseline import FILE, read_results
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.shards import MOST_CELLS, ShardRun
from keystone_action.spec.plan import FailedCells

_AS_LEFT = "name results of a run as it left them"


def read_failed(path: Path, shown: str) -> FailedCells:
    """The cells of the results in a file or folder that failed, ended in error, or did not run. shown: the place as the
    caller named it.

    Raises UsageError when there are no such results, and when every cell passed: there is nothing to run then.
    """
    try:
        run = read_results(path, "results file")
    except UsageError as error:
        if _was_killed(path):
            hint = f"that run was killed before it wrote its results: `--resume {shlex.quote(shown)}` goes on with it"
            raise UsageError(error.message, help=hint) from None
        if newest := _newest_run(path):
            named = shlex.quote(f"{shown}/{newest}")
            raise UsageError(error.message, help=f"the newest run there is `--failed {named}`") from None
        raise
    if run.plan is not None and not 0 <= run.plan.cells <= MOST_CELLS:
        damage = "its plan has a number of cells that no run has"
        raise UsageError(f"the results in {shown} are damaged: {damage}", help=_AS_LEFT)
    shard = _shard(run, shown)
    verdicts = {cell.id: cell.verdict for spec in run.specs for cell in spec.cells}
    planned = 0 if run.plan is None else len(run.plan.positions) if run.plan.shard else run.plan.cells
    found = FailedCells(
        run_id=run.run_id,
        failed=tuple(name for name, verdict in verdicts.items() if verdict != "pass"),
        passed=frozenset(name for name, verdict in verdicts.items() if verdict == "pass"),
        unfinished=len(verdicts) < planned or not verdicts,
        chosen=run.plan.chosen if run.plan else (),
        shard=shard,
        digest=run.plan.digest if run.plan else "",
    )
    if not found.failed and not found.unfinished:
        raise UsageError(f"every cell passed in {shown}; nothing to run again", help="leave --failed out to run all")
    return found


def _was_killed(folder: Path) -> bool:
    try:
        return (folder / "journal.jsonl").is_file() and not (folder / FILE).exists()
    except OSError:
        return False


def _newest_run(folder: Path) -> str:
    """The name of the newest run whose results are in a folder of runs; "" where there is none."""
    try:
        runs = [file.parent for file in folder.glob(f"*/{FILE}") if file.is_file()]
        return max(runs, key=lambda run: run.stat().st_mtime_ns).name if runs else ""
    except OSError:  # it is advice: what can't be looked at is left out of it
        return ""


def _shard(run: RunResult, shown: str) -> tuple[int, int]:
    try:
        return (1, 1) if run.plan is None else ShardRun(shown, run).position
    except KeystoneError as error:
        raise UsageError(error.message, help=_AS_LEFT) from None
