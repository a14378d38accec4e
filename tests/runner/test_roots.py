"""The run's own directories: who can enter them, and who can see what is in them."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from keystone_action.errors import SandboxError
from keystone_action.runner.cell import cell
from keystone_action.runner.roots import Roots


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_others_pass_through_and_look_into_nothing(tmp_path: Path, umask: int) -> None:
    """Users of sandboxes reach their own workspace, whose name they can neither guess nor list."""
    before = os.umask(umask)
    try:
        roots = Roots("run", tmp_path)
        made = roots.cell(cast(Any, SimpleNamespace(id="spec.r0")))
    finally:
        os.umask(before)
    assert [mode(path) for path in (roots.path, roots.cells, roots.sandboxes)] == [0o711, 0o711, 0o711]
    assert [mode(path) & 0o077 for path in (roots.private, made.private)] == [0, 0]
    assert mode(made.area) == 0o711
    assert made.area.name not in made.private.name.split(".")[0]


def test_two_attempts_at_a_cell_share_nothing(tmp_path: Path) -> None:
    roots = Roots("run", tmp_path)
    cell = cast(Any, SimpleNamespace(id="spec.r0"))
    one, other = roots.cell(cell), roots.cell(cell)
    assert not {one.private, one.area} & {other.private, other.area}
    one.remove()
    assert not one.area.exists()
    assert other.workspace.is_dir()
    roots.remove()
    assert list(tmp_path.iterdir()) == []


def test_no_place_for_them_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no temporary directory can be made"):
        Roots("run", tmp_path / "none")


def test_what_is_left_of_a_cell_is_removed_where_the_machine_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    running = cast(Any, SimpleNamespace(roots=SimpleNamespace(remove=lambda: removed.append("all"))))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        await cell.remove_roots(running)

    anyio.run(main)
    assert removed == ["all"]
