"""The copy of a workspace that all cells of a spec start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from keystone_action.errors import HarnessError
from keystone_action.files.workspace import CopyReport, copy_again, copy_tree, snapshot
from keystone_action.runner.sharing.first_copies import FirstCopies


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "run.sh").write_text("echo\n")
    (source / "folder" / "run.sh").chmod(0o750)
    (source / "a.txt").write_text("a\n")
    (source / "link").symlink_to("a.txt")
    return source


def test_cells_start_from_one_copy_whatever_becomes_of_the_checkout(tmp_path: Path, source: Path) -> None:
    copies = FirstCopies(tmp_path)
    first = copies.of_spec("spec", lambda place: copy_tree(source, place))
    was = snapshot(source)
    (source / "a.txt").write_text("changed meanwhile\n")
    again = copies.of_spec("spec", lambda place: copy_tree(source, place))
    assert again is first
    assert first.directory is not None
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    copy_again(first.directory, workspace)
    assert dict(snapshot(workspace)) == dict(was)
    assert first.is_still(snapshot(workspace))
    assert copies.of_spec("another", lambda place: copy_tree(source, place)).directory != first.directory


@pytest.mark.parametrize("change", ["a file", "a mode", "a further file", "a file less"])
def test_a_workspace_that_was_changed_before_the_agent_is_another(tmp_path: Path, source: Path, change: str) -> None:
    first = FirstCopies(tmp_path).of_spec("spec", lambda place: copy_tree(source, place))
    assert first.is_still(snapshot(source))
    changes = {
        "a file": lambda: (source / "a.txt").write_text("b\n"),
        "a mode": lambda: (source / "a.txt").chmod(0o755),
        "a further file": (source / "b.txt").touch,
        "a file less": (source / "a.txt").unlink,
    }
    changes[change]()
    assert not first.is_still(snapshot(source))


def test_what_can_not_be_copied_is_tried_again_by_the_next_cell(tmp_path: Path, source: Path) -> None:
    copies = FirstCopies(tmp_path)

    def broken(place: Path) -> CopyReport:
        place.mkdir()
        raise HarnessError("the disk is full")

    with pytest.raises(HarnessError):
        copies.of_spec("spec", broken)
    first = copies.of_spec("spec", lambda place: copy_tree(source, place))
    assert first.is_still(snapshot(source))


def test_an_empty_workspace_has_no_originals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    first = FirstCopies(tmp_path).of_spec("spec", lambda place: copy_tree(tmp_path / "empty", place))
    assert (first.directory, dict(first.content)) == (None, {})


def test_a_full_disk_is_a_sentence(tmp_path: Path, source: Path) -> None:
    with pytest.raises(HarnessError, match="can't be copied"):
        copy_again(source, tmp_path / "none")
