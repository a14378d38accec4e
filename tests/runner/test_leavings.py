"""What small cells leave: closed at once, removed with that of others."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from keystone_action.runner import roots as roots_module
from keystone_action.runner.roots import CellRoots, Leavings, Roots


def cells(roots: Roots, count: int) -> list[CellRoots]:
    made = [roots.cell(cast(Any, SimpleNamespace(id=f"spec.r{number}"))) for number in range(count)]
    for one in made:
        (one.workspace / "file").touch()
        (one.private / "file").touch()
    return made


def there(ended: list[CellRoots]) -> list[bool]:
    return [one.area.exists() or one.private.exists() for one in ended]


def add(ended: list[CellRoots], sizes: list[int]) -> None:
    async def main() -> None:
        waiting = Leavings()
        for one, size in zip(ended, sizes, strict=True):
            await waiting.add(one, size)

    anyio.run(main)


def test_an_ended_cell_is_closed_to_the_users_of_others(tmp_path: Path) -> None:
    """One that knows the name of the directory could pass it otherwise, where nothing but modes keeps it out."""
    (one,) = cells(Roots("run", tmp_path), 1)
    add([one], [1])
    assert stat.S_IMODE(one.area.stat().st_mode) == 0o700


def test_many_cells_are_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots_module, "_MANY", 3)
    ended = cells(Roots("run", tmp_path), 7)
    add(ended, [1] * 7)
    assert there(ended) == [False] * 6 + [True]


def test_many_bytes_are_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots_module, "_MUCH", 100)
    ended = cells(Roots("run", tmp_path), 4)
    add(ended, [99, 1, 1, 98])
    assert there(ended) == [False, False, True, True]


@pytest.mark.parametrize("bound", ["_LEAST_BYTES", "_LEAST_FILES"])
def test_nothing_waits_where_room_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    if bound == "_LEAST_FILES" and not os.statvfs(tmp_path).f_files:
        pytest.skip("this file system has no limit on files")
    ended = cells(Roots("run", tmp_path), 2)
    monkeypatch.setattr(roots_module, bound, 1 << 62)
    add(ended, [1, 1])
    assert there(ended) == [False, False]


def test_the_end_of_the_run_removes_the_rest(tmp_path: Path) -> None:
    roots = Roots("run", tmp_path)
    add(cells(roots, 2), [1, 1])
    roots.remove()
    assert list(tmp_path.iterdir()) == []
