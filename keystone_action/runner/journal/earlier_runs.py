"""Results of earlier runs: what a run is compared with (contract, 5.4), and the cells that `--failed` runs again."""

from __future__ import annotations

import errno
import json
import shlex
from dataclasses import replace
from pathlib import Path

from keystone_action.errors import KeystoneError, UsageError
from keystone_action.files.descent import read_plain
from keystone_action.scoring.aggregate import by_group, group_name
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.document import RESULTS_FILE, run_from_document
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.shards import MOST_CELLS, ShardRun
from keystone_action.scoring.soundness import Baseline, baseline_of
from keystone_action.spec.loading.author_files import POINTER, POINTER_ADVICE, is_pointer
from keystone_action.spec.plan import FailedCells

RESULTS_LIMIT = 256 << 20
"""Bytes of one results file."""
_HELP = "name results.json of an earlier run, or the folder that holds it"


def read_baseline(path: Path, source: str = "") -> Baseline:
    """The results in a file or a folder. source: where they are from, in words; the path when empty. Raises as
    `read_results`, and UsageError for results that nothing can be compared with."""
    return baseline_of(read_run_results(path, "baseline"), source or str(_file_at(path)))


def read_run_results(path: Path, what: str) -> RunResult:
    """The results in a file or a folder. what: how messages call them.

    The file is never followed through a link, and no special file is waited for. Raises UsageError for a file that
    is missing, is not results, has another version of the format, or is too large.
    """
    path = _file_at(path)
    document = _document(path, what)
    try:
        return run_from_document(document)
    except UsageError as error:
        raise UsageError(f"the {what} {path}: {error.message}", help=error.help) from None


def _file_at(path: Path) -> Path:
    try:
        return path / RESULTS_FILE if path.is_dir() and not path.is_symlink() else path
    except OSError:  # a folder that is closed to us, or a name that is too long: reading it says so
        return path


def _document(path: Path, what: str) -> dict[str, object]:
    try:
        content = read_plain(path, RESULTS_LIMIT)
    except UsageError as error:
        raise UsageError(f"the {what} {error.message}", help=_HELP) from None
    except FileNotFoundError:
        raise UsageError(f"there is no {what} {path}", help=_HELP) from None
    except OSError as error:
        why = "it is a link, which is not followed" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the {what} {path} can't be read: {why}", help=_HELP) from None
    if is_pointer(content):
        raise UsageError(f"the {what} {path} is {POINTER}", help=POINTER_ADVICE)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the {what} {path} is not a JSON document: {error}", help=_HELP) from None
    if not isinstance(document, dict):
        raise UsageError(f"the {what} {path} holds no results; expected a JSON object", help=_HELP)
    return document


def beside_baseline(run: RunResult, baseline: Baseline | None) -> RunResult:
    """The run with what changed since the baseline."""
    if baseline is None:
        return run
    compared = replace(run, baseline=compare_runs(baseline.run, run, source=baseline.source))
    if baseline.changed is None:
        return compared
    known = baseline.changed if run.spec_changes is None else run.spec_changes
    workflows = dict.fromkeys((*baseline.changed.workflows, *known.workflows))
    return replace(compared, spec_changes=replace(known, workflows=tuple(workflows)))


_AS_LEFT = "name results of a run as it left them"


def read_failed_cells(path: Path, shown: str) -> FailedCells:
    """The cells of the results in a file or folder that failed, ended in error, or did not run. shown: the place as the
    caller named it.

    Raises UsageError when there are no such results, and when every cell passed: there is nothing to run then.
    """
    try:
        run = read_run_results(path, "results file")
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
    not_run = () if run.plan is None else run.plan.not_run
    open_groups = {
        group_name(members[0].id)
        for spec in run.specs
        for group, members in zip(spec.groups, by_group(spec.cells), strict=False)
        if group.verdict in ("fail", "error")
    }
    # What did not have to run since others failed has to, once those pass.
    spared = [name for name in not_run if group_name(name) not in open_groups]
    found = FailedCells(
        run_id=run.run_id,
        failed=(
            *(name for name, verdict in verdicts.items() if verdict != "pass"),
            *(name for name in not_run if group_name(name) in open_groups),
        ),
        settled=frozenset((*spared, *(name for name, verdict in verdicts.items() if verdict == "pass"))),
        unfinished=len(verdicts) + len(not_run) < planned or not verdicts,
        chosen=run.plan.chosen if run.plan else (),
        shard=shard,
        digest=run.plan.digest if run.plan else "",
    )
    if not found.failed and not found.unfinished:
        raise UsageError(f"every cell passed in {shown}; nothing to run again", help="leave --failed out to run all")
    return found


def _was_killed(folder: Path) -> bool:
    try:
        return (folder / "journal.jsonl").is_file() and not (folder / RESULTS_FILE).exists()
    except OSError:
        return False


def _newest_run(folder: Path) -> str:
    """The name of the newest run whose results are in a folder of runs; "" where there is none."""
    try:
        runs = [file.parent for file in folder.glob(f"*/{RESULTS_FILE}") if file.is_file()]
        return max(runs, key=lambda run: run.stat().st_mtime_ns).name if runs else ""
    except OSError:  # it is advice: what can't be looked at is left out of it
        return ""


def _shard(run: RunResult, shown: str) -> tuple[int, int]:
    try:
        return (1, 1) if run.plan is None else ShardRun(shown, run).position
    except KeystoneError as error:
        raise UsageError(error.message, help=_AS_LEFT) from None
