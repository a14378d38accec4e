"""Which cell runs when: so many at a time, tries again after errors, and nothing new after the run's time is up."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING

import anyio

from keystone_action.runner.journal.entries import JournalEntry
from keystone_action.runner.journal.journal import FinishedCells
from keystone_action.runner.shared_services import most_at_once
from keystone_action.scoring.aggregate import outcome_of, with_money_of
from keystone_action.scoring.composite import opening_line
from keystone_action.scoring.results import CellResult, StoppingRule
from keystone_action.scoring.sequential import Aggregation, GroupTest

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.runner.cell.cell import Attempt
    from keystone_action.runner.model_access import Spending
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Cell, Plan

_SHOWN_NAMES = 50
RunCell = Callable[["Cell"], Awaitable["Attempt"]]
EntryOf = Callable[["Cell", CellResult], Awaitable[JournalEntry]]


class Groups:
    """What is known of groups of replicas that stop when they are decided."""

    def __init__(
        self,
        cells: Sequence[Cell] = (),
        finished: Mapping[str, CellResult] = MappingProxyType({}),
        again: Collection[str] = (),
        not_run: Callable[[], None] = lambda: None,
    ) -> None:
        """cells: all that are planned. finished: those of an earlier part of this run, by their ids. again: the ids of
        those that broke there: what is known of them must not be lost, so they are run again. not_run: told of each
        cell that does not have to run when its turn comes."""
        self._again = again
        self._told = not_run
        self._tests: dict[str, GroupTest] = {}
        self._waiting: dict[str, dict[str, int]] = {}  # by group and cell id: the places of those that are not finished
        for cell in cells:
            rule = stopping_rule(cell)
            if rule is not None:
                members = self._waiting.setdefault(cell.group, {})
                members[cell.id] = len(members)
                self._tests.setdefault(cell.group, GroupTest(rule, aggregation_of(cell.loaded.spec)))
        for cell in cells if self._tests else ():
            if cell.id in finished:
                self.add(cell, finished[cell.id])

    def add(self, cell: Cell, result: CellResult) -> None:
        """A cell is finished."""
        if cell.group in self._tests:
            self._tests[cell.group].add(self._waiting[cell.group].pop(cell.id), outcome_of(result))

    def leave_out(self, cell: Cell) -> bool:
        """Whether this cell does not have to run, since its group is decided without it."""
        decided = cell.id not in self._again and cell.group in self._tests and self._tests[cell.group].is_decided
        if decided:
            self._told()
        return decided

    def not_needed(self) -> tuple[str, ...]:
        """The ids of all cells that are not finished and whose groups are decided."""
        return tuple(
            name
            for group, test in self._tests.items()
            if test.is_decided
            for name in self._waiting[group]
            if name not in self._again
        )


def stopping_rule(cell: Cell) -> StoppingRule | None:
    """As results have it; None where the number of replicas is fixed."""
    rule = cell.stopping
    return None if rule is None else StoppingRule(rule.min, rule.max, rule.confidence)


def aggregation_of(spec: Spec) -> Aggregation:
    """Its rule for replicas."""
    rule = spec.scoring.replica_aggregation
    return rule if isinstance(rule, str) else rule.at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How to run cells."""

    concurrency: int
    """Cells at a time over all specs."""
    per_spec: Mapping[str, int]
    """Cells at a time by spec id, where a spec asks for fewer."""
    retries: Mapping[str, int]
    """By spec id: further tries for a cell that broke before its agent's run was complete."""
    agent_retries: Mapping[str, int] = field(default_factory=dict)
    """By spec id: further tries for a cell whose agent failed (raised, ended with another code than 0, took too
    long)."""
    deadline: float | None = None
    """Monotonic seconds after which no cell starts."""
    refusal: Callable[[], str] = str
    """Says why no further cell starts because the job's money is spent; empty while it is not."""
    fail_fast: frozenset[str] = frozenset()
    """The ids of specs that start no further cell once one of their cells does not pass."""
    stopped: dict[str, str] = field(default_factory=dict)
    """By the ids of specs that start no further cell: the id of the cell that they stopped at."""
    left_out: list[Cell] = field(default_factory=list)
    """The cells of these specs that were not run."""
    groups: Groups = field(default_factory=Groups)
    """Of replicas that stop when it is decided."""


async def run_cells(
    cells: Sequence[Cell],
    run_cell: RunCell,
    finished: FinishedCells,
    schedule: Schedule,
    entry_of: EntryOf,
) -> None:
    """Run all cells; `finished` announces each when its line is on the disk. entry_of: makes the line of a cell. Raises
    OutputError when that fails."""
    queue = _Queue(cells, schedule.per_spec)
    async with anyio.create_task_group() as writing:
        writing.start_soon(finished.run)
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(schedule.concurrency, len(cells))):
                    group.start_soon(_work, queue, run_cell, finished, schedule, entry_of)
        finally:
            finished.close()


class _Queue:
    """Cells in declared order, each spec's no faster than it may: one that is at its limit holds up no other.

    limits: by spec id, cells at a time."""

    def __init__(self, cells: Sequence[Cell], limits: Mapping[str, int]) -> None:
        self._waiting: dict[str, deque[tuple[int, Cell]]] = {}
        for number, cell in enumerate(cells):
            self._waiting.setdefault(cell.loaded.spec.id, deque()).append((number, cell))
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._freed = anyio.Event()
        # Specs that may start a cell, by the number of their next one; each spec at most once.
        self._ready = [(waiting[0][0], spec_id) for spec_id, waiting in self._waiting.items()]
        heapify(self._ready)

    async def take(self) -> Cell | None:
        """The next cell that may run, once there is one; None when none is left."""
        while self._waiting:
            if self._ready:
                return self._pop(heappop(self._ready)[1])
            await self._freed.wait()
        return None

    def _pop(self, spec_id: str) -> Cell:
        waiting = self._waiting[spec_id]
        _, cell = waiting.popleft()
        if not waiting:
            del self._waiting[spec_id]
        self._running[spec_id] += 1
        if self._may_run(spec_id):
            heappush(self._ready, (self._waiting[spec_id][0][0], spec_id))
        return cell

    def _may_run(self, spec_id: str) -> bool:
        return spec_id in self._waiting and self._running[spec_id] < self._limits.get(spec_id, sys.maxsize)

    def done(self, cell: Cell) -> None:
        """Another of its spec may run."""
        spec_id = cell.loaded.spec.id
        was_full = not self._may_run(spec_id)
        self._running[spec_id] -= 1
        if was_full and self._may_run(spec_id):
            heappush(self._ready, (self._waiting[spec_id][0][0], spec_id))
        self._freed.set()
        self._freed = anyio.Event()


async def _work(
    queue: _Queue,
    run_cell: RunCell,
    finished: FinishedCells,
    schedule: Schedule,
    entry_of: EntryOf,
) -> None:
    while (cell := await queue.take()) is not None:
        if cell.loaded.spec.id in schedule.stopped:
            schedule.left_out.append(cell)
            queue.done(cell)
            continue
        if schedule.groups.leave_out(cell):
            queue.done(cell)
            continue
        result = await _attempts(cell, run_cell, schedule)
        _stop(cell, result, schedule)
        schedule.groups.add(cell, result)
        queue.done(cell)
        await finished.add(cell, await entry_of(cell, result))


def _stop(cell: Cell, result: CellResult, schedule: Schedule) -> None:
    spec_id = cell.loaded.spec.id
    # A cell that the run's time was up for never started, nor do those after it: that is what they say themselves.
    if spec_id in schedule.fail_fast and result.verdict != "pass" and result.attempts:
        schedule.stopped.setdefault(spec_id, cell.id)


async def _attempts(cell: Cell, run_cell: RunCell, schedule: Schedule) -> CellResult:
    """A cell that broke is tried again as far as its attempt allows, and one whose agent failed where its spec asks for
    that; neither a score that is too low nor a check that broke is. What became of earlier attempts is said with the
    last one's result."""
    result = not_run(cell, _refusal(schedule))
    spec_id = cell.loaded.spec.id
    left = {"error": schedule.retries.get(spec_id, 0), "agent": schedule.agent_retries.get(spec_id, 0)}
    earlier: tuple[str, ...] = ()
    while not _refusal(schedule):
        attempt = len(earlier) + 1
        ran = await run_cell(cell)
        found = ran.result
        if attempt > 1:
            found = with_money_of(found, result)
        result = replace(found, attempts=attempt, notices=(*earlier, *found.notices))
        kind = "error" if result.verdict == "error" else "agent" if _agent_failed(result) else ""
        if kind == "error" and ran.rerun != "as_asked":  # also for what later attempts break at
            left["error"] = min(left["error"], 1) if ran.rerun == "once" else 0
        if not left.get(kind):
            break
        left[kind] -= 1
        earlier = (*earlier, f"attempt {attempt}: {_why(result)}")
    return result


def _refusal(schedule: Schedule) -> str:
    """Why no further cell may start; empty while one may."""
    if schedule.deadline is not None and time.monotonic() >= schedule.deadline:
        return "the run's time was up before this cell could start"
    return schedule.refusal()


def _agent_failed(result: CellResult) -> bool:
    agent = result.agent
    return agent is not None and not agent.ended_well


def _why(result: CellResult) -> str:
    agent = result.agent
    return opening_line(result.reason if result.verdict == "error" or agent is None else agent.note or result.reason)


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


def make_schedule(
    planned: Plan,
    options: Options,
    finished: Mapping[str, CellResult],
    refusal: Callable[[], str] = str,
    again: Collection[str] = (),
    not_run: Callable[[], None] = lambda: None,
) -> tuple[Schedule, list[str]]:
    """How the cells are run, and what people should know of it. again, not_run: see `Groups`."""
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
        groups=Groups(planned.cells, finished, again, not_run),
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
