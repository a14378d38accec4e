"""The copy of a workspace that all cells of a spec start from."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.touchstone import repository

from keystone_action.errors import HarnessError
from keystone_action.files.workspace import CopyReport, copy_again, copy_tree, snapshot
from keystone_action.runner.cell.shared_copies import FirstCopies, FirstCopy


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
    return anyio.run(copies.lay_out, key, lambda place: copy_tree(source, place), workspace)


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
                group.start_soon(copies.lay_out, "spec", copy, workspace)

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
        anyio.run(copies.lay_out, "spec", broken, tmp_path)
    assert first_copy(copies, source, tmp_path / "workspace").is_still(snapshot(source))


def test_an_empty_workspace_has_no_originals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    first = first_copy(FirstCopies(tmp_path), tmp_path / "empty", tmp_path / "workspace")
    assert (first.originals, dict(first.content)) == (None, {})


def test_a_full_disk_is_a_sentence(tmp_path: Path, source: Path) -> None:
    with pytest.raises(HarnessError, match="can't be copied"):
        copy_again(source, tmp_path / "none")
