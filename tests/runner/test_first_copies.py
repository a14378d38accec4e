"""The copy of a workspace that all cells of a spec start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from support.touchstone import repository

from keystone_action.errors import HarnessError
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import CopyReport, Snapshot, copy_again, copy_tree, snapshot
from keystone_action.runner.cell import shared_copies
from keystone_action.runner.cell.shared_copies import IDLE_COPIES, FirstCopies, FirstCopy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "run.sh").write_text("echo\n")
    (source / "folder" / "run.sh").chmod(0o750)
    (source / "a.txt").write_text("a\n")
    (source / "link").symlink_to("a.txt")
    return source


def first_copy(copies: FirstCopies, source: Path, workspace: Path, key: str = "spec") -> FirstCopy:
    """As a cell lays it out in its workspace."""
    workspace.mkdir(exist_ok=True)
    return anyio.run(laid_out, copies, key, lambda place: copy_tree(source, place), workspace)


async def laid_out(copies: FirstCopies, key: str, copy: Callable[[Path], CopyReport], workspace: Path) -> FirstCopy:
    async with copies.lay_out(key, copy, workspace) as first:
        return first


def left(place: Path) -> list[str]:
    """The kinds of folders of first copies that lie there."""
    return sorted(path.name.partition("-")[0] for path in place.iterdir() if path.name.startswith(("first-", "orig")))


def test_cells_start_from_one_copy_whatever_becomes_of_the_checkout(tmp_path: Path, source: Path) -> None:
    copies = FirstCopies(tmp_path)
    first = first_copy(copies, source, tmp_path / "one")
    was = snapshot(source)
    (source / "a.txt").write_text("changed meanwhile\n")
    workspace = tmp_path / "another"
    assert first_copy(copies, source, workspace) is first
    assert first.originals == first.directory
    assert dict(snapshot(workspace)) == dict(was)
    assert first.is_still(snapshot(workspace))
    assert first_copy(copies, source, tmp_path / "third", "another").directory != first.directory


def test_cells_that_start_at_once_share_one_copy(tmp_path: Path, source: Path) -> None:
    copies, made = FirstCopies(tmp_path), list[Path]()

    def copy(place: Path) -> CopyReport:
        made.append(place)
        return copy_tree(source, place)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(8):
                workspace = tmp_path / f"workspace-{number}"
                workspace.mkdir()
                group.start_soon(laid_out, copies, "spec", copy, workspace)

    anyio.run(main)
    assert len(made) == 1
    assert all(dict(snapshot(tmp_path / f"workspace-{number}")) == dict(snapshot(source)) for number in range(8))


@pytest.mark.parametrize("change", ["a file", "a mode", "a further file", "a file less"])
def test_a_workspace_that_was_changed_before_the_agent_is_another(tmp_path: Path, source: Path, change: str) -> None:
    first = first_copy(FirstCopies(tmp_path), source, tmp_path / "workspace")
    assert first.is_still(snapshot(source))
    changes = {
        "a file": lambda: (source / "a.txt").write_text("b\n"),
        "a mode": lambda: (source / "a.txt").chmod(0o755),
        "a further file": (source / "b.txt").touch,
        "a file less": (source / "a.txt").unlink,
    }
    changes[change]()
    assert not first.is_still(snapshot(source))


def test_originals_hold_no_repository(tmp_path: Path, source: Path) -> None:
    repository(source, {"b.txt": "b\n"})
    workspace = tmp_path / "workspace"
    first = first_copy(FirstCopies(tmp_path), source, workspace)
    assert (workspace / ".git" / "HEAD").is_file()
    assert first.originals is not None
    assert set(snapshot(first.originals)) == {path for path in first.content if path != ".git"}


def test_what_can_not_be_copied_is_tried_again_by_the_next_cell(tmp_path: Path, source: Path) -> None:
    copies = FirstCopies(tmp_path)

    def broken(place: Path) -> CopyReport:
        place.mkdir()
        raise HarnessError("the disk is full")

    with pytest.raises(HarnessError):
        anyio.run(laid_out, copies, "spec", broken, tmp_path)
    assert left(tmp_path) == [], "a copy that failed takes no space"
    assert first_copy(copies, source, tmp_path / "workspace").is_still(snapshot(source))


def test_copies_that_no_cell_uses_do_not_pile_up(tmp_path: Path, source: Path) -> None:
    repository(source, {"b.txt": "b\n"})
    copies = FirstCopies(tmp_path)

    async def main() -> FirstCopy:
        (tmp_path / "used").mkdir()
        async with copies.lay_out("used", lambda place: copy_tree(source, place), tmp_path / "used") as first:
            for number in range(IDLE_COPIES + 3):
                workspace = tmp_path / f"workspace-{number}"
                workspace.mkdir()
                await laid_out(copies, f"spec {number}", lambda place: copy_tree(source, place), workspace)
            assert first.is_still(snapshot(first.directory)), "what a cell uses stays"
            assert left(tmp_path) == ["first"] * (IDLE_COPIES + 1) + ["originals"] * (IDLE_COPIES + 1)
        return first

    anyio.run(main)
    assert left(tmp_path) == ["first"] * IDLE_COPIES + ["originals"] * IDLE_COPIES


def test_a_workspace_with_too_many_entries_is_a_sentence(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(place: Path) -> Snapshot:
        raise PathUnreadable("the workspace holds more than 2 entries")

    monkeypatch.setattr(shared_copies, "snapshot", refused)
    with pytest.raises(HarnessError, match="can't start from this workspace: the workspace holds more than 2 entries"):
        first_copy(FirstCopies(tmp_path), source, tmp_path / "workspace")
    assert left(tmp_path) == []


def test_an_empty_workspace_has_no_originals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    first = first_copy(FirstCopies(tmp_path), tmp_path / "empty", tmp_path / "workspace")
    assert (first.originals, dict(first.content)) == (None, {})


def test_a_full_disk_is_a_sentence(tmp_path: Path, source: Path) -> None:
    with pytest.raises(HarnessError, match="can't be copied"):
        copy_again(source, tmp_path / "none")
