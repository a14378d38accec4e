"""Which cell runs when: declared order, each spec no faster than it may, and none held up by another's limit."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.check_types import TYPES

from keystone_action.errors import OutputError
from keystone_action.runner import scheduler
from keystone_action.runner.cell.cell import Attempt
from keystone_action.runner.journal import journal as finished_cells
from keystone_action.runner.journal.entries import JournalEntry
from keystone_action.runner.journal.journal import FinishedCells, Journal
from keystone_action.runner.model_access import Spending
from keystone_action.runner.scheduler import Groups, Schedule, not_run, run_cells
from keystone_action.scoring.fields import nothing_used
from keystone_action.scoring.results import CellResult
from keystone_action.spec.loading.loader import load
from keystone_action.spec.plan import Cell, Selection, plan

SPEC = """version: 1
id: {}
task: {{prompt: do it}}
agent: {{type: none}}
parallelism: {{replicas: {}}}
invariants: {{x: {{check: {{type: file_exists, path: x}}}}}}
"""


def cells_of(directory: Path, **replicas: int) -> list[Cell]:
    paths = [directory / f"{name}.keystone.yaml" for name in replicas]
    for path, (name, count) in zip(paths, replicas.items(), strict=True):
        path.write_text(SPEC.format(name, count))
    return list(plan([load(path, TYPES) for path in paths], Selection(params={})).cells)


def schedule(**more: Any) -> Schedule:
    return Schedule(**{"concurrency": 2, "per_spec": {}, "retries": {}, **more})


async def entry_of(cell: Cell, result: CellResult) -> JournalEntry:
    return JournalEntry(cell.loaded.spec.id, cell.loaded.sha256, result)


def run(directory: Path, cells: list[Cell], how: Schedule, run_cell: Any) -> list[str]:
    """The cells in the order in which they were announced."""
    announced: list[str] = []

    async def main() -> None:
        with anyio.fail_after(60):
            async with Journal(directory) as journal:
                finished = FinishedCells(journal, lambda cell, _: announced.append(cell.id))
                await run_cells(cells, run_cell, finished, how, entry_of)

    anyio.run(main)
    return announced


def test_a_spec_at_its_limit_does_not_hold_up_another(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, slow=2, other=1)
    other = anyio.Event()

    async def run_cell(cell: Cell) -> Attempt:
        if cell.loaded.spec.id == "other":
            other.set()
        else:
            await other.wait()
        return Attempt(not_run(cell, "a test"), "as_asked")

    announced = run(tmp_path, cells, schedule(per_spec={"slow": 1, "other": 2}), run_cell)
    assert sorted(announced) == sorted(cell.id for cell in cells)


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_limits_and_order(
    tmp_path_factory: pytest.TempPathFactory, most: int, of_a: int, of_b: int, stops: bool
) -> None:
    directory = tmp_path_factory.mktemp("run")
    cells = cells_of(directory, a=4, b=3)
    running: Counter[str] = Counter()
    begun: list[Cell] = []

    async def run_cell(cell: Cell) -> Attempt:
        spec_id = cell.loaded.spec.id
        begun.append(cell)
        running[spec_id] += 1
        assert running.total() <= most
        assert running["a"] <= of_a
        assert running["b"] <= of_b
        await anyio.lowlevel.checkpoint()
        running[spec_id] -= 1
        return Attempt(not_run(cell, "a test"), "as_asked")

    fail_fast = frozenset({"a"} if stops else ())
    how = schedule(concurrency=most, per_spec={"a": 1 if stops else of_a, "b": of_b}, fail_fast=fail_fast)
    run(directory, cells, how, run_cell)
    for spec_id in ("a", "b"):
        order = [cell.replica for cell in begun if cell.loaded.spec.id == spec_id]
        assert order == sorted(order)
    assert len(begun) + len(how.left_out) == len(cells)
    assert len(how.left_out) == (3 if stops else 0)


class CountedLimits(dict[str, int]):
    """Limits of specs that remember how often they were asked for."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def test_a_queue_of_many_specs_looks_at_each_a_few_times(tmp_path: Path) -> None:
    """Of 2,000 specs the next cell is found without a look at the others."""
    (one,) = cells_of(tmp_path, one=1)
    specs = [replace(one.loaded, spec=one.loaded.spec.model_copy(update={"id": f"s{n}"})) for n in range(2000)]
    cells = [replace(one, id=f"s{number}.r0", loaded=loaded) for number, loaded in enumerate(specs)]
    limits = CountedLimits({f"s{number}": 1 for number in range(2000)})
    queue = scheduler._Queue(cells, limits)

    async def take_all() -> list[str]:
        taken = []
        while (cell := await queue.take()) is not None:
            taken.append(cell.id)
            queue.done(cell)
        return taken

    assert anyio.run(take_all) == [cell.id for cell in cells]
    assert limits.asked < 10 * len(cells)


def test_cells_that_the_time_was_up_for_stop_nothing(tmp_path: Path) -> None:
    """They never started: that is what each says, and not that another cell of its spec did not pass."""
    cells = cells_of(tmp_path, a=3)

    async def run_cell(cell: Cell) -> Attempt:
        raise AssertionError("nothing may start")

    how = schedule(deadline=time.monotonic() - 1, fail_fast=frozenset({"a"}))
    assert run(tmp_path, cells, how, run_cell) == [cell.id for cell in cells]
    assert (how.stopped, how.left_out) == ({}, [])


def test_a_cell_that_finished_as_the_run_was_cancelled_is_kept(tmp_path: Path) -> None:
    (cell,) = cells_of(tmp_path, a=1)
    announced: list[str] = []

    async def run_cell(cell: Cell) -> Attempt:
        return Attempt(not_run(cell, "a test"), "as_asked")

    async def main() -> None:
        async with Journal(tmp_path) as journal:
            with anyio.CancelScope() as scope:

                async def cancelled_meanwhile(cell: Cell, result: CellResult) -> JournalEntry:
                    scope.cancel()
                    return await entry_of(cell, result)

                finished = FinishedCells(journal, lambda one, _: announced.append(one.id))
                await run_cells([cell], run_cell, finished, schedule(), cancelled_meanwhile)

    anyio.run(main)
    assert cell.id in (tmp_path / "journal.jsonl").read_text("utf-8")
    assert announced == [cell.id]


def test_a_cell_is_on_the_disk_when_it_is_announced(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, a=3)
    found: list[bool] = []

    async def run_cell(cell: Cell) -> Attempt:
        return Attempt(not_run(cell, "a test"), "as_asked")

    def announce(cell: Cell, _: CellResult) -> None:
        found.append(cell.id in (tmp_path / "journal.jsonl").read_text("utf-8"))

    async def main() -> None:
        async with Journal(tmp_path) as journal:
            await run_cells(cells, run_cell, FinishedCells(journal, announce), schedule(), entry_of)

    anyio.run(main)
    assert found == [True] * 3


@pytest.mark.parametrize(
    ("ended", "attempts"),
    [
        (["pass as_asked"], 1),
        (["fail as_asked"], 1),
        (["error as_asked"], 4),
        (["error never"], 1),
        (["error once"], 2),
        (["error as_asked", "error once"], 3),
        (["error once", "error as_asked"], 2),
        (["error as_asked", "error never"], 2),
        (["error once", "pass never"], 2),
    ],
)
def test_only_a_cell_in_error_is_tried_again_and_only_as_far_as_its_attempt_allows(
    tmp_path: Path, ended: list[str], attempts: int
) -> None:
    """ended: how one attempt after the other ends; those after the last end like it."""
    (cell,) = cells_of(tmp_path, a=1)
    begun: list[str] = []

    async def run_cell(cell: Cell) -> Attempt:
        verdict: Any
        rerun: Any
        verdict, rerun = ended[min(len(begun), len(ended) - 1)].split()
        begun.append(cell.id)
        error = "it broke" if verdict == "error" else None
        composite = {"pass": 1.0, "fail": 0.0}.get(verdict)
        result = replace(not_run(cell, "a test"), verdict=verdict, composite=composite, error=error)
        return Attempt(result, rerun)

    run(tmp_path, [cell], schedule(retries={"a": 3}), run_cell)
    assert len(begun) == attempts


def test_cells_that_the_money_was_spent_for_are_errors(tmp_path: Path) -> None:
    spending = Spending(0.5)
    results: dict[str, CellResult] = {}

    async def run_cell(cell: Cell) -> Attempt:
        spending.spend(0.3)
        return Attempt(replace(not_run(cell, ""), verdict="pass", composite=1.0, error=None), "as_asked")

    async def kept(cell: Cell, result: CellResult) -> JournalEntry:
        results[cell.id] = result
        return await entry_of(cell, result)

    async def main() -> None:
        async with Journal(tmp_path) as journal:
            how = schedule(concurrency=1, refusal=spending.refusal)
            finished = FinishedCells(journal, lambda *_: None)
            await run_cells(cells_of(tmp_path, a=4), run_cell, finished, how, kept)

    anyio.run(main)
    assert [result.verdict for result in results.values()] == ["pass", "pass", "error", "error"]
    assert results["a.r2"].error == "not run: stopped at $0.60 of $0.50"
    assert [result.attempts for result in results.values()] == [1, 1, 0, 0]


def test_what_all_attempts_cost_is_paid_and_no_further_one_starts(tmp_path: Path) -> None:
    spending = Spending(0.5)
    results: list[CellResult] = []

    async def run_cell(cell: Cell) -> Attempt:
        spending.spend(0.2)
        used = {**nothing_used(), "input_tokens": 7, "cost_usd": 0.15, "spent_usd": 0.15}
        return Attempt(
            replace(not_run(cell, "it broke"), usage=used, judge_usage={"cost_usd": 0.05, "requests": 1}), "as_asked"
        )

    async def kept(cell: Cell, result: CellResult) -> JournalEntry:
        results.append(result)
        return await entry_of(cell, result)

    async def main() -> None:
        async with Journal(tmp_path) as journal:
            how = schedule(concurrency=1, retries={"a": 9}, refusal=spending.refusal)
            finished = FinishedCells(journal, lambda *_: None)
            await run_cells(cells_of(tmp_path, a=1), run_cell, finished, how, kept)

    anyio.run(main)
    (result,) = results
    assert (result.attempts, result.error) == (3, "not run: it broke")
    assert result.usage["spent_usd"] == pytest.approx(0.45)
    assert (result.usage["cost_usd"], result.usage["input_tokens"]) == (0.15, 7), "of the attempt that counts"
    assert result.judge_usage == {"cost_usd": pytest.approx(0.15), "requests": 3}


def test_no_cell_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cell starts while the line of the first is not on the disk yet."""
    cells = cells_of(tmp_path, a=2)
    second_began = threading.Event()
    fsync = os.fsync
    waited: list[bool] = []

    def slow(file: int) -> None:
        waited.append(second_began.wait(30))
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)

    async def run_cell(cell: Cell) -> Attempt:
        if cell.replica == 1:
            second_began.set()
        return Attempt(not_run(cell, "a test"), "as_asked")

    announced = run(tmp_path, cells, schedule(concurrency=1), run_cell)
    assert waited[0]
    assert announced == [cell.id for cell in cells]


def test_what_was_added_is_waited_for(tmp_path: Path) -> None:
    """As before an agent starts: all that finished before is on the disk then, and nothing later is waited for."""
    cells = cells_of(tmp_path, a=6)
    announced: list[str] = []

    async def main() -> None:
        async with Journal(tmp_path) as journal, anyio.create_task_group() as group:
            finished = FinishedCells(journal, lambda cell, _: announced.append(cell.id))
            await finished.written()
            group.start_soon(finished.run)
            try:
                for number, cell in enumerate(cells):
                    await finished.add(cell, await entry_of(cell, not_run(cell, "a test")))
                    if number == 1:
                        await anyio.lowlevel.checkpoint()  # the first two are being written, further ones wait
                    if number == 3:
                        await finished.written()
                        assert announced == [cell.id for cell in cells[:4]]
            finally:
                finished.close()

    anyio.run(main)
    assert announced == [cell.id for cell in cells]


def test_a_slow_disk_holds_up_the_cells_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished and not on the disk is held in memory, so there is a bound to it."""
    monkeypatch.setattr(finished_cells, "_MOST_WAITING", 2)
    cells = cells_of(tmp_path, a=9)
    most = 0
    begun, announced = 0, 0

    async def run_cell(cell: Cell) -> Attempt:
        nonlocal begun, most
        begun += 1
        most = max(most, begun - announced)
        return Attempt(not_run(cell, "a test"), "as_asked")

    def announce(*_: object) -> None:
        nonlocal announced
        announced += 1

    async def main() -> None:
        async with Journal(tmp_path) as journal:
            await run_cells(cells, run_cell, FinishedCells(journal, announce), schedule(concurrency=1), entry_of)

    anyio.run(main)
    assert announced == 9
    assert most <= 5, "two wait, two are being written, one is under way"


def test_a_disk_that_takes_no_line_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(tmp_path, a=50)
    begun: list[str] = []

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)

    async def run_cell(cell: Cell) -> Attempt:
        begun.append(cell.id)
        await anyio.sleep(0.01)
        return Attempt(not_run(cell, "a test"), "as_asked")

    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, cells, schedule(concurrency=2), run_cell)
    assert caught.group_contains(OutputError, match="Input/output error")
    assert len(begun) < len(cells)


def stopping_cells(directory: Path) -> list[Cell]:
    path = directory / "stops.keystone.yaml"
    text = SPEC.format("stops", "{min: 1, max: 5}")
    path.write_text(f"{text}scoring: {{replica_aggregation: any}}\n")
    return list(plan([load(path, TYPES)], Selection(params={})).cells)


def test_a_cell_that_broke_before_is_run_again_though_its_group_is_decided(tmp_path: Path) -> None:
    """What it broke at, and what it cost, must not be lost: it keeps its group in error unless it is graded now."""
    cells = stopping_cells(tmp_path)
    passed = replace(not_run(cells[1], ""), verdict="pass", composite=1.0)
    spared: list[None] = []
    groups = Groups(cells, {cells[1].id: passed}, {cells[0].id}, lambda: spared.append(None))
    assert [groups.leave_out(cell) for cell in (cells[0], *cells[2:])] == [False, True, True, True]
    assert groups.not_needed() == tuple(cell.id for cell in cells[2:])
    assert len(spared) == 3


def test_replicas_stop_when_their_group_is_decided(tmp_path: Path) -> None:
    cells, ran = stopping_cells(tmp_path), []

    async def run_cell(cell: Cell) -> Attempt:
        ran.append(cell.replica)
        return Attempt(
            replace(not_run(cell, ""), verdict="pass" if cell.replica == 1 else "fail", composite=0.0, error=None),
            "as_asked",
        )

    announced = run(tmp_path, cells, schedule(concurrency=1, groups=Groups(cells)), run_cell)
    assert ran == [0, 1]
    assert announced == [cells[0].id, cells[1].id]
