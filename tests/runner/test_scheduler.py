"""Which cell runs when: declared order, each spec no faster than it may, and none held up by another's limit."""

from __future__ import annotations

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

from keystone_action.plan import Cell, Selection, plan
from keystone_action.runner import scheduler
from keystone_action.runner.journal import Journal
from keystone_action.runner.recorded import Entry
from keystone_action.runner.scheduler import Schedule, not_run, run_cells
from keystone_action.scoring.results import CellResult
from keystone_action.spec.loader import load

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


async def entry_of(cell: Cell, result: CellResult) -> Entry:
    return Entry(cell.loaded.spec.id, cell.loaded.sha256, result)


def run(directory: Path, cells: list[Cell], how: Schedule, run_cell: Any) -> list[str]:
    """The cells in the order in which they were announced."""
    announced: list[str] = []

    async def main() -> None:
        with anyio.fail_after(60):
            async with Journal(directory) as journal:
                await run_cells(cells, run_cell, journal, how, lambda cell, _: announced.append(cell.id), entry_of)

    anyio.run(main)
    return announced


def test_a_spec_at_its_limit_does_not_hold_up_another(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, slow=2, other=1)
    other = anyio.Event()

    async def run_cell(cell: Cell) -> CellResult:
        if cell.loaded.spec.id == "other":
            other.set()
        else:
            await other.wait()
        return not_run(cell, "a test")

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

    async def run_cell(cell: Cell) -> CellResult:
        spec_id = cell.loaded.spec.id
        begun.append(cell)
        running[spec_id] += 1
        assert running.total() <= most
        assert running["a"] <= of_a
        assert running["b"] <= of_b
        await anyio.lowlevel.checkpoint()
        running[spec_id] -= 1
        return not_run(cell, "a test")

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
