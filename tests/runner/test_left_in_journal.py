"""Long texts of finished cells are held by the journal, not by our memory, and read as if nothing had happened."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import anyio
import pytest
from support.check_types import TYPES
from support.shard_runs import cell

from keystone_action.errors import OutputError
from keystone_action.runner.cell.cell import Attempt
from keystone_action.runner.journal.entries import JournalEntry, read
from keystone_action.runner.journal.identity import Identity
from keystone_action.runner.journal.journal import Journal
from keystone_action.runner.parts.finished_cells import FinishedCells
from keystone_action.runner.scheduler import Schedule, run_cells
from keystone_action.scoring.document import cell_to_document
from keystone_action.scoring.results import AgentResult, CellResult
from keystone_action.spec.loading.loader import load
from keystone_action.spec.plan import Cell, Selection, plan

LONG = "ein langer Text über vieles\n" * 2000
DETAILS = {"rows": [{"said": f"{number} ü"} for number in range(2000)]}
SPEC = """version: 1
id: spec
task: {prompt: do it}
agent: {type: none}
parallelism: {replicas: 5}
invariants: {x: {check: {type: file_exists, path: x}}}
"""
HELD = 6000
"""Characters, far less than one of the above."""


def printing(number: int, output: str, stderr: str, details: dict[str, Any]) -> CellResult:
    one = cell("spec", "one", number)
    checks = tuple(replace(check, details=details) for check in one.invariants)
    return replace(one, agent=AgentResult(3, False, 0.1, output, stderr, note="exited with 3"), invariants=checks)


def added(directory: Path, cells: list[CellResult]) -> list[CellResult]:
    """The cells as the journal hands them back, one after another and two at a time."""
    found: dict[str, CellResult] = {}

    async def main() -> None:
        async with Journal(directory) as journal:
            journal.say(Identity({}, {}), "the run")

            async def add(one: CellResult) -> None:
                found[one.id] = await journal.add(JournalEntry("spec", "0" * 64, one))

            await add(cells[0])
            async with anyio.create_task_group() as group:
                for one in cells[1:]:
                    group.start_soon(add, one)

    anyio.run(main)
    return [found[one.id] for one in cells]


def held(thing: object) -> int:
    """The bytes of all texts that a thing holds, however deep."""
    total, seen, waiting = 0, set[int](), [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one) if isinstance(one, str | bytes) else 0
        waiting += gc.get_referents(one)
    return total


MANY: dict[str, Callable[[int], CellResult]] = {
    "output": lambda number: printing(number, LONG, "", {}),
    "stderr": lambda number: printing(number, "", LONG, {}),
    "details": lambda number: printing(number, "", "", DETAILS),
    "all": lambda number: printing(number, LONG + str(number), LONG[1:], DETAILS),
}


@pytest.mark.parametrize("kind", MANY)
def test_a_cell_that_is_on_the_disk_holds_no_long_text(tmp_path: Path, kind: str) -> None:
    cells = [MANY[kind](number) for number in range(5)]
    found = added(tmp_path, cells)
    assert held(cells[0]) > 5 * HELD
    assert held(found) < HELD


@pytest.mark.parametrize("kind", MANY)
def test_every_report_reads_the_same_of_it(tmp_path: Path, kind: str) -> None:
    cells = [MANY[kind](number) for number in range(5)]
    found = added(tmp_path, cells)
    assert [cell_to_document(one) for one in found] == [cell_to_document(one) for one in cells]
    assert found == cells
    assert cells == found


def test_a_short_cell_is_held_as_it_is(tmp_path: Path) -> None:
    cells = [printing(number, "done\n", "a warning\n", {"rows": 3}) for number in range(3)]
    assert all(one is other for one, other in zip(added(tmp_path, cells), cells, strict=True))


def test_what_is_resumed_holds_no_long_text_either(tmp_path: Path) -> None:
    cells = [MANY["all"](number) for number in range(5)]
    added(tmp_path, cells)

    async def main() -> list[CellResult]:
        async with Journal(tmp_path, resume=True) as journal:
            return [entry.cell for entry in journal.earlier().entries]

    for found in (anyio.run(main), [entry.cell for entry in read(tmp_path).entries]):
        assert held(found) < HELD
        assert sorted(found, key=lambda one: one.id) == cells


def test_a_journal_that_lost_its_name_is_read_all_the_same(tmp_path: Path) -> None:
    cells = [MANY["all"](0)]
    found = added(tmp_path, cells)
    (tmp_path / "journal.jsonl").unlink()
    assert found == cells


def test_a_journal_that_was_cut_is_told(tmp_path: Path) -> None:
    [found] = added(tmp_path, [MANY["all"](0)])
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(OutputError, match="was changed after the run"):
        cell_to_document(found)


def test_whoever_is_told_of_a_cell_gets_no_long_text(tmp_path: Path) -> None:
    path = tmp_path / "spec.keystone.yaml"
    path.write_text(SPEC)
    planned = plan([load(path, TYPES)], Selection(params={}))
    told: list[CellResult] = []

    async def run_cell(one: Cell) -> Attempt:
        return Attempt(replace(MANY["all"](one.replica), id=one.id), "never")

    async def entry_of(one: Cell, result: CellResult) -> JournalEntry:
        return JournalEntry("spec", one.loaded.sha256, result)

    async def main() -> None:
        schedule = Schedule(concurrency=2, per_spec={}, retries={})
        async with Journal(tmp_path) as journal:
            finished = FinishedCells(journal, lambda _, one: told.append(one))
            await run_cells(planned.cells, run_cell, finished, schedule, entry_of)

    anyio.run(main)
    assert len(told) == 5
    assert held(told) < HELD
