"""Copying out what a hostile agent left, and removing it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from keystone_action.errors import HarnessError
from keystone_action.files.workspace import copy_as_left, remove_tree


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def left(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    left = tmp_path / "left"
    (left / "src").mkdir(parents=True)
    (left / "src/file").write_text("content")
    (left / "good").symlink_to("src/file")
    (left / "absolute").symlink_to(left / "src/file")
    (left / "out").symlink_to("../outside/secret")
    (left / "src/chain").symlink_to("../out")
    (left / "src/system").symlink_to("/etc")
    (left / "dangling").symlink_to("nowhere")
    (left / "loop").symlink_to("loop")
    os.mkfifo(left / "fifo")
    return left


def test_links_that_lead_out_are_dropped_and_listed(left: Path, tmp_path: Path) -> None:
    removed = copy_as_left(left, tmp_path / "copy", drop_outside_links=True)
    assert removed == ("out", "src/chain", "src/system")
    assert _names(tmp_path / "copy") == ["absolute", "dangling", "good", "loop", "src"]
    assert _names(tmp_path / "copy/src") == ["file"]
    (tmp_path / "copy/absolute").write_text("changed")
    assert (left / "src/file").read_text() == "content"  # the copy's links lead into the copy


def test_links_are_kept_when_the_copy_is_for_a_sandbox(left: Path, tmp_path: Path) -> None:
    assert copy_as_left(left, tmp_path / "copy", drop_outside_links=False) == ()
    assert str((tmp_path / "copy/out").readlink()) == "../outside/secret"
    assert not (tmp_path / "copy/fifo").exists()


def test_modes_are_those_that_the_agent_left(left: Path, tmp_path: Path) -> None:
    (left / "src/file").chmod(0o7751)
    copy_as_left(left, tmp_path / "copy", drop_outside_links=True)
    copied = (tmp_path / "copy/src/file").stat()
    assert (stat.S_IMODE(copied.st_mode), copied.st_uid) == (0o751, os.geteuid())


def test_what_can_not_be_read_is_left_out(left: Path, tmp_path: Path) -> None:
    (left / "src/file").chmod(0)
    (left / "shut").mkdir()
    (left / "shut").chmod(0)
    copy_as_left(left, tmp_path / "copy", drop_outside_links=True)
    assert (tmp_path / "copy/src/file").exists() == (os.geteuid() == 0)
    assert stat.S_IMODE((tmp_path / "copy/shut").stat().st_mode) == 0


def test_a_workspace_that_was_deleted_is_an_empty_copy(tmp_path: Path) -> None:
    assert copy_as_left(tmp_path / "gone", tmp_path / "copy", drop_outside_links=True) == ()
    assert _names(tmp_path / "copy") == []


def test_a_copy_never_lands_in_something_that_is_there(left: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(HarnessError, match="File exists"):
        copy_as_left(left, tmp_path / "copy", drop_outside_links=True)


def _nest(directory: Path, depth: int) -> None:
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=fd)
        deeper = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


@pytest.mark.slow
def test_trees_deeper_than_any_path_are_copied_and_removed(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    _nest(tmp_path / "left", 1500)
    copy_as_left(tmp_path / "left", tmp_path / "copy", drop_outside_links=True)
    names, fd = [], os.open(tmp_path / "copy", os.O_RDONLY)
    while os.listdir(fd) == ["deep"]:  # noqa: PTH208 - by descriptor
        deeper = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
        names.append("deep")
    assert (len(names), os.listdir(fd)) == (1500, ["bottom"])  # noqa: PTH208
    os.close(fd)
    for tree in ("left", "copy"):
        remove_tree(tmp_path / tree)
        assert not (tmp_path / tree).exists()


def test_removing_follows_nothing_and_opens_closed_modes(left: Path, tmp_path: Path) -> None:
    (left / "to-outside").symlink_to(tmp_path / "outside")
    (left / "shut/inner").mkdir(parents=True)
    (left / "shut/inner/file").touch()
    (left / "shut/inner").chmod(0)
    (left / "shut").chmod(0)
    remove_tree(left)
    assert not left.exists()
    assert (tmp_path / "outside/secret").read_text() == "secret"


def test_removing_takes_files_links_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "file").exists()
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "file")
    assert _names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("folders", [1, 700])
def test_removing_many_files_follows_nothing_either(tmp_path: Path, folders: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    for number in range(folders):
        folder = tree / f"{number % 7}" / f"{number}"
        folder.mkdir(parents=True)
        (folder / "link").symlink_to(outside)
        for name in range(2800 // folders):
            (folder / f"{name}").touch()
        folder.chmod(0)
    remove_tree(tree)
    assert _names(tmp_path) == ["outside"]
    assert _names(outside) == ["kept"]
