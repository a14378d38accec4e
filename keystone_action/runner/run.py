"""A whole run: specs in, `RunResult` out, everything that was started stopped again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import UsageError
from keystone_action.runner.cell.cell import Attempt, run_cell
from keystone_action.runner.cell.grading import is_earned
from keystone_action.runner.journal.entries import JournalContent, JournalEntry
from keystone_action.runner.journal.identification import FactsReader, Identification, run_facts
from keystone_action.runner.journal.journal import FinishedCells, Journal, make_output_directory
from keystone_action.runner.model_access import Spending
from keystone_action.runner.preflight import GatedSpecs, check_scorers, preflight
from keystone_action.runner.results import Begun, ResultsSoFar
from keystone_action.runner.scheduler import budget_notices, fail_fast_notices, make_schedule, run_cells
from keystone_action.runner.start import start_run
from keystone_action.runner.started_run import PlannedRun, StartedRun
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.scoring.aggregate import paid, with_money_of, with_tries_of
from keystone_action.scoring.results import CellResult, RunResult
from keystone_action.spec.plan import Cell, plan
from keystone_action.system import signals
from keystone_action.system.run_lock import new_run_id
from keystone_action.system.shutdown import RunStop, cancellation, only_error

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.sandbox.processes.client import Launching
    from keystone_action.spec.loading.loaded_spec import LoadedSpec


_ABANDONED = "the run did not end in time: `keystone clean --run {}` removes what it may have left on the Docker engine"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run's result and the directory it was written to (by the cells so far; reports are the front doors' part)."""

    result: RunResult
    directory: Path


async def run_specs(
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
    begun = Begun()
    gated = find_specs()
    planned = await _plan_run(options, gated.specs, progress)
    results = ResultsSoFar(planned, gated.changes, begun)

    def so_far(*, abandoned: bool = False) -> Ran:
        if abandoned and planned.facilities.client is not None:
            notice = _ABANDONED.format(planned.run_id)
            results.add_notices([notice])
            signals.say(f"keystone: {notice}\n".encode())
        return Ran(results.assemble(cancelled=stop.requested), planned.directory)

    try:
        with stop.stoppable():
            async with AsyncExitStack() as stack:
                await _run_planned(planned, results, so_far, stop, stack, early)
    except BaseExceptionGroup as group:
        raise only_error(group) from group
    if stop.so_far is None:  # the results of what is to be resumed are not read yet, and must not be lost
        raise cancellation()
    return so_far()


async def _plan_run(options: Options, specs: Sequence[LoadedSpec], progress: Progress) -> PlannedRun:
    planned = plan(specs, options.selection)
    facilities = preflight(specs, planned, options)
    await check_scorers(specs, planned, facilities)
    run_id = options.caller.run_id or new_run_id()
    return PlannedRun(
        options=options,
        progress=progress,
        specs=specs,
        plan=planned,
        run_id=run_id,
        directory=make_output_directory(options, run_id),
        facilities=facilities,
    )


async def _run_planned(
    planned: PlannedRun,
    results: ResultsSoFar,
    so_far: Callable[..., Ran],
    stop: RunStop,
    stack: AsyncExitStack,
    early: Launching | None,
) -> None:
    """Open the journal, take over what an earlier call finished, start what cells share, and run the cells."""
    options = planned.options
    resumes = options.running.resume is not None
    journal = await stack.enter_async_context(Journal(planned.directory, resume=resumes))
    recorded = journal.earlier() if resumes else None
    if recorded is not None and recorded.run_id:
        results.go_on_with(recorded.run_id)
    identification = Identification(
        run_facts(options, planned.specs, results.commit),
        recorded.identity if recorded is not None else None,
        journal,
        results.run_id,
        FactsReader(options, planned.directory, planned.facilities),
    )
    before = {} if recorded is None else {entry.cell.id: entry.cell for entry in recorded.entries}
    spending = Spending(options.running.max_cost_usd)
    spending.spend(sum(paid(cell) for cell in before.values()))
    if recorded is not None:
        await identification.read(planned.plan)  # before anything of another run is started
        for entry in earlier_cells(recorded, planned):
            results.take_over(entry)
        results.again = before.keys() - results.cells.keys()
    stop.so_far = so_far
    finished = FinishedCells(journal, lambda cell, result: planned.progress.cell(cell.loaded.spec.id, result))

    async def may_start_agent() -> None:
        await identification.ready()
        await finished.written()

    run = await start_run(planned, spending, may_start_agent, stack, early)
    results.sandboxes_are(run.provider)
    if run.containers is not None:
        stop.hurry.append(run.containers.hurry)
    await _run_cells(run, finished, results, identification, before)


async def _run_cells(
    run: StartedRun,
    finished: FinishedCells,
    results: ResultsSoFar,
    identification: Identification,
    before: Mapping[str, CellResult],
) -> None:
    """Run what is not finished. before: the results of an earlier call."""
    planned, progress = run.planned, run.planned.progress
    cells = [cell for cell in planned.plan.cells if cell.id not in results.cells]
    progress.started(
        cells=len(planned.plan.cells),
        finished=len(results.cells),
        output=planned.directory,
        notices=results.notices(),
    )

    async def run_one(cell: Cell) -> Attempt:
        return await run_cell(cell, run)

    async def entry_of(cell: Cell, result: CellResult) -> JournalEntry:
        await identification.of(cell)
        if cell.id in before:
            result = with_tries_of(with_money_of(result, before[cell.id]), before[cell.id])
        return results.add(cell, result)

    schedule, notices = make_schedule(
        planned.plan, planned.options, results.cells, run.spending.refusal, results.again, progress.not_run
    )
    async with anyio.create_task_group() as group:
        if planned.options.running.resume is None:
            group.start_soon(identification.read, planned.plan)
        await run_cells(cells, run_one, finished, schedule, entry_of)
    found = [*notices, *fail_fast_notices(schedule), *budget_notices(run.spending, results.cells.values())]
    for notice in found:
        progress.note(notice)
    results.add_notices(found)


def earlier_cells(recorded: JournalContent, planned: PlannedRun) -> Iterator[JournalEntry]:
    """The cells that `--resume` finds finished: graded, and wanted. Cells in error run again.

    Raises UsageError for a cell of another spec, and for one whose checks don't come to its verdict.
    """
    cells = {entry.cell.id: entry for entry in recorded.entries}
    for cell in planned.plan.cells:
        entry = cells.get(cell.id)
        if entry is None or entry.cell.verdict == "error":
            continue
        if entry.sha256 != cell.loaded.sha256:
            raise UsageError(
                f"the journal is damaged: the line of {cell.id} is of a spec with the sha256 {entry.sha256[:12]}…, and"
                f" {cell.loaded.path} has {cell.loaded.sha256[:12]}…",
                help="start a new run without --resume",
            )
        if not is_earned(entry.cell, cell.loaded, planned.options):
            raise UsageError(
                f"the journal is damaged: {cell.id} is said to have passed, which its checks do not come to",
                help="start a new run without --resume",
            )
        yield entry
