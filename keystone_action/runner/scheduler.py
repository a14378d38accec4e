"""Which cell runs when: so many at a time, tries again after errors, and nothing new after the run's time is up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from keystone_action.runner.journal import Entry, Journal
from keystone_action.scoring.results import CellResult

if TYPE_CHECKING:
    from keystone_action.plan import Cell

RunCell = Callable[["Cell"], Awaitable[CellResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How to run. concurrency: cells at a time over all specs; per_spec: by spec id, where a spec asks for fewer.
    retries: by spec id, tries more for a cell in error. deadline: monotonic seconds after which no cell starts."""

    concurrency: int
    per_spec: Mapping[str, int]
    retries: Mapping[str, int]
    deadline: float | None = None


async def run_cells(
    cells: Sequence[Cell],
    run_cell: RunCell,
    journal: Journal,
    schedule: Schedule,
    announce: Callable[[Cell, CellResult], None],
) -> None:
    """Run all cells; each is announced when its line is on the disk. Raises OutputError when that fails."""
    waiting = iter(cells)
    limits = {spec_id: anyio.CapacityLimiter(count) for spec_id, count in schedule.per_spec.items()}
    async with anyio.create_task_group() as group:
        for _ in range(min(schedule.concurrency, len(cells))):
            group.start_soon(_work, waiting, run_cell, journal, schedule, limits, announce)


async def _work(
    waiting: Iterator[Cell],
    run_cell: RunCell,
    journal: Journal,
    schedule: Schedule,
    limits: Mapping[str, anyio.CapacityLimiter],
    announce: Callable[[Cell, CellResult], None],
) -> None:
    for cell in waiting:
        limiter = limits.get(cell.loaded.spec.id)
        if limiter is None:
            result = await _attempts(cell, run_cell, schedule)
        else:
            async with limiter:
                result = await _attempts(cell, run_cell, schedule)
        # A finished cell is kept even when the run is being cancelled.
        with anyio.CancelScope(shield=True):
            await journal.add(Entry(cell.loaded.spec.id, cell.loaded.sha256, result))
        announce(cell, result)


async def _attempts(cell: Cell, run_cell: RunCell, schedule: Schedule) -> CellResult:
    """A cell whose verdict is `error` is tried again; a failed agent never is."""
    result = not_run(cell, "the run's time was up before this cell could start")
    for attempt in range(1, schedule.retries.get(cell.loaded.spec.id, 0) + 2):
        if schedule.deadline is not None and time.monotonic() >= schedule.deadline:
            return result
        result = replace(await run_cell(cell), attempts=attempt)
        if result.verdict != "error":
            return result
    return result


def not_run(cell: Cell, why: str) -> CellResult:
    """The result of a cell that never started: an error, since nothing was graded."""
    return CellResult(
        id=cell.id,
        scenario=cell.scenario.id,
        params=dict(cell.params),
        replica=cell.replica,
        verdict="error",
        composite=None,
        duration_s=0.0,
        error=f"not run: {why}",
        agent=None,
        invariants=(),
        reason=f"not run: {why}",
        attempts=0,
    )
