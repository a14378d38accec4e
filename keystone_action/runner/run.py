"""A whole run: specs in, `RunResult` out, everything that was started stopped again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import UsageError
from keystone_action.files.git.commits import refuse_committed_link
from keystone_action.runner.assemble import Assembly, assemble, git_sha, sandbox_of
from keystone_action.runner.cell.cell import Attempt, run_cell
from keystone_action.runner.cell.grading import is_earned
from keystone_action.runner.journal.entries import JournalContent, JournalEntry
from keystone_action.runner.journal.identification import FactsReader, Identification, run_facts
from keystone_action.runner.journal.journal import FinishedCells, Journal, already_there, output_error
from keystone_action.runner.model_access import Spending
from keystone_action.runner.preflight import GatedSpecs, check_scorers, preflight, substituted_services
from keystone_action.runner.scheduler import Schedule, run_cells
from keystone_action.runner.shared_services import most_at_once
from keystone_action.runner.start import start_run
from keystone_action.runner.started_run import PlannedRun, StartedRun
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.scoring.aggregate import paid, with_money_of, with_tries_of
from keystone_action.scoring.document import RESULTS_FILE
from keystone_action.scoring.results import CellResult, RunResult
from keystone_action.spec.plan import Cell, Plan, plan
from keystone_action.system import signals
from keystone_action.system.run_lock import new_run_id
from keystone_action.system.shutdown import RunStop, cancellation, only_error

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.sandbox.processes.client import Launching


_SHOWN_NAMES = 50
_ABANDONED = "the run did not end in time: `keystone clean --run {}` removes what it may have left on the Docker engine"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run's result and the directory it was written to (by the cells so far; reports are the front doors' part)."""

    result: RunResult
    directory: Path


async def run(
    options: Options, find_specs: Callable[[], GatedSpecs], progress: Progress, stop: RunStop | None = None
) -> Ran:
    """Run the specs that are found, until `stop` asks for its end: the result then says `cancelled`.

    Raises UsageError before anything runs (bad spec or call, nothing to run, results already there), HarnessError
    when the sandbox can't be made or results can't be written.
    """
    # It takes a second interpreter as long to start as us to read specs.
    with process.starting_early() as early:
        return await _run(options, find_specs, progress, stop or RunStop(), early)


async def _run(
    options: Options,
    find_specs: Callable[[], GatedSpecs],
    progress: Progress,
    stop: RunStop,
    early: Launching | None,
) -> Ran:
    started, started_at = time.monotonic(), datetime.now(UTC)
    gated = find_specs()
    specs = gated.specs
    planned = plan(specs, options.selection)
    facilities = preflight(specs, planned, options)
    await check_scorers(specs, planned, facilities)
    run_id = options.caller.run_id or new_run_id()
    directory = make_output_directory(options, run_id)
    assembly = Assembly(
        options=options,
        specs=specs,
        plan=planned,
        run_id=run_id,
        started_at=started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        substituted=() if facilities.client is not None else substituted_services(specs, planned),
        facilities=facilities,
        spec_changes=gated.changes,
        commit=git_sha(options),
    )
    left_out: list[str] = []

    def so_far(*, abandoned: bool = False) -> Ran:
        result = assemble(assembly, cancelled=stop.requested, duration_s=time.monotonic() - started)
        notices = [*result.notices, *left_out]
        if abandoned and facilities.client is not None:
            notices.append(_ABANDONED.format(run_id))
            signals.say(f"keystone: {notices[-1]}\n".encode())
        return Ran(replace(result, notices=tuple(notices)), directory)

    try:
        with stop.stoppable():
            async with AsyncExitStack() as stack:
                journal = await stack.enter_async_context(Journal(directory, resume=options.running.resume is not None))
                recorded = journal.earlier() if options.running.resume is not None else None
                if recorded is not None:
                    assembly.run_id = recorded.run_id or run_id
                identification = Identification(
                    run_facts(options, specs, assembly.commit),
                    recorded.identity if recorded is not None else None,
                    journal,
                    assembly.run_id,
                    FactsReader(options, directory, facilities),
                )
                finished: dict[str, JournalEntry] = {}
                spending = Spending(options.running.max_cost_usd)
                before = {} if recorded is None else {entry.cell.id: entry.cell for entry in recorded.entries}
                spending.spend(sum(paid(cell) for cell in before.values()))
                if recorded is not None:
                    await identification.read(planned)  # before anything of another run is started
                    finished = earlier_cells(recorded, assembly)
                    assembly.results.update({cell_id: entry.cell for cell_id, entry in finished.items()})
                    assembly.isolated.update({cell_id: entry.sandbox for cell_id, entry in finished.items()})
                stop.so_far = so_far
                planned_run = PlannedRun(
                    options=options,
                    progress=progress,
                    specs=specs,
                    plan=planned,
                    run_id=run_id,
                    directory=directory,
                    facilities=facilities,
                )
                finished_cells = FinishedCells(journal, _announcer(assembly, progress))

                async def may_start_agent() -> None:
                    await identification.ready()
                    await finished_cells.written()

                started_run = await start_run(planned_run, spending, may_start_agent, stack, early)
                assembly.sandbox = started_run.provider
                if started_run.containers is not None:
                    stop.hurry.append(started_run.containers.hurry)
                left_out = await _run_cells(started_run, finished_cells, assembly, identification, finished, before)
    except BaseExceptionGroup as group:
        raise only_error(group) from group
    if stop.so_far is None:  # the results of what is to be resumed are not read yet, and must not be lost
        raise cancellation()
    return so_far()


async def _run_cells(
    run: StartedRun,
    finished_cells: FinishedCells,
    assembly: Assembly,
    identification: Identification,
    finished: Mapping[str, JournalEntry],
    before: Mapping[str, CellResult],
) -> list[str]:
    """Run what is not finished; the sentences for cells that were left out. before: the results of an earlier call."""
    options, progress, planned = run.planned.options, run.planned.progress, run.planned.plan
    spending = run.spending
    cells = [cell for cell in planned.cells if cell.id not in finished]
    progress.started(
        cells=len(planned.cells), finished=len(finished), output=run.planned.directory, notices=assembly.notices()
    )

    async def run_one(cell: Cell) -> Attempt:
        return await run_cell(cell, run)

    async def entry_of(cell: Cell, result: CellResult) -> JournalEntry:
        await identification.of(cell)
        spec = cell.loaded.spec
        if cell.id in before:
            result = with_tries_of(with_money_of(result, before[cell.id]), before[cell.id])
        assembly.results[cell.id] = result  # if the next cell hangs, the results have it though it was not announced
        return JournalEntry(spec.id, cell.loaded.sha256, result, sandbox_of(assembly, spec))

    schedule, notices = make_schedule(planned, options, assembly.results, spending.refusal)
    async with anyio.create_task_group() as group:
        if options.running.resume is None:
            group.start_soon(identification.read, planned)
        await run_cells(cells, run_one, finished_cells, schedule, entry_of)
    found = [*notices, *fail_fast_notices(schedule), *budget_notices(spending, assembly.results.values())]
    for notice in found:
        progress.note(notice)
    return found


def _announcer(assembly: Assembly, progress: Progress) -> Callable[[Cell, CellResult], None]:
    def announce(cell: Cell, result: CellResult) -> None:
        assembly.results[cell.id] = result
        assembly.isolated[cell.id] = sandbox_of(assembly, cell.loaded.spec)
        progress.cell(cell.loaded.spec.id, result)

    return announce


def make_schedule(
    planned: Plan, options: Options, finished: Mapping[str, CellResult], refusal: Callable[[], str] = str
) -> tuple[Schedule, list[str]]:
    """How the cells are run, and what people should know of it."""
    loaded = {cell.loaded.spec.id: cell.loaded for cell in planned.cells}
    specs = {spec_id: one.spec for spec_id, one in loaded.items()}
    fail_fast = frozenset(spec_id for spec_id, one in loaded.items() if one.fail_fast)
    whole: list[str] = []
    if options.cells.shard is not None:
        # Shards run at once, and `keystone merge` wants every cell of each.
        whole = [f"fail_fast of {spec_id} is for runs without shards: all its cells are run" for spec_id in fail_fast]
        fail_fast = frozenset()
    asked = {
        # A run that stops at the first failure runs one cell after the other, even if the call allows more.
        spec_id: 1 if spec_id in fail_fast else most_at_once(spec, options)
        for spec_id, spec in specs.items()
    }
    schedule = Schedule(
        concurrency=max(asked.values(), default=1),
        per_spec=asked if len(set(asked.values())) > 1 else {},
        retries={
            spec_id: spec.scoring.retry_errors if options.running.retry_errors is None else options.running.retry_errors
            for spec_id, spec in specs.items()
        },
        agent_retries={spec_id: one.agent_retries for spec_id, one in loaded.items()},
        deadline=None if options.running.timeout is None else time.monotonic() + options.running.timeout,
        refusal=refusal,
        fail_fast=fail_fast,
        stopped=stopped_before(planned, finished, fail_fast),
    )
    return schedule, sorted(whole)


def stopped_before(planned: Plan, finished: Mapping[str, CellResult], fail_fast: Collection[str]) -> dict[str, str]:
    """Specs that an earlier part of this run stopped, with the cell at which: `--resume` goes on from there."""
    found: dict[str, str] = {}
    for cell in planned.cells:
        result = finished.get(cell.id)
        if cell.loaded.spec.id in fail_fast and result is not None and result.verdict != "pass":
            found.setdefault(cell.loaded.spec.id, cell.id)
    return found


def fail_fast_notices(schedule: Schedule) -> list[str]:
    """What was left out by `fail_fast`, by name: neither passed nor failed."""
    notices = []
    for spec_id, at in schedule.stopped.items():
        names = [cell.id for cell in schedule.left_out if cell.loaded.spec.id == spec_id]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        if names:
            listed = ", ".join(names[:_SHOWN_NAMES])
            notices.append(f"fail_fast: {at} did not pass, so these were not run: {listed}{more}")
    return notices


def budget_notices(spending: Spending, results: Collection[CellResult]) -> list[str]:
    """What people should know of a run with a limit of money: what it stopped, and what it could not count."""
    if spending.limit is None:
        return []
    notices = []
    left = sum(result.attempts == 0 for result in results)
    if left and (why := spending.refusal()):
        notices.append(f"max-cost-usd: {why}; not run: {left:,} of {len(results):,} cells")
    if unknown := sum(
        result.usage.get("spent_usd", 0) is None or result.judge_usage.get("cost_usd", 0) is None for result in results
    ):
        notices.append(f"max-cost-usd: what {unknown:,} of {len(results):,} cells cost is unknown, and is not counted")
    return notices


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


def earlier_cells(recorded: JournalContent, assembly: Assembly) -> dict[str, JournalEntry]:
    """The cells that `--resume` finds finished: graded, and wanted. Cells in error run again.

    Raises UsageError for a cell of another spec, and for one whose checks don't come to its verdict.
    """
    cells = {entry.cell.id: entry for entry in recorded.entries}
    found: dict[str, JournalEntry] = {}
    for cell in assembly.plan.cells:
        entry = cells.get(cell.id)
        if entry is None or entry.cell.verdict == "error":
            continue
        if entry.sha256 != cell.loaded.sha256:
            raise UsageError(
                f"the journal is damaged: the line of {cell.id} is of a spec with the sha256 {entry.sha256[:12]}…, and"
                f" {cell.loaded.path} has {cell.loaded.sha256[:12]}…",
                help="start a new run without --resume",
            )
        if not is_earned(entry.cell, cell.loaded, assembly.options):
            raise UsageError(
                f"the journal is damaged: {cell.id} is said to have passed, which its checks do not come to",
                help="start a new run without --resume",
            )
        found[cell.id] = entry
    return found
