"""Removing a tree that may be hostile: all of it, and nothing that it leads to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keystone_action.files import removal
from keystone_action.files.removal import remove_tree


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that links lead to."""
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    for name in ("kept", "inner/kept"):
        (tmp_path / "outside" / name).write_text("kept", "utf-8")
    return tmp_path / "outside"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "folder" / "deeper").mkdir(parents=True)
    for name in ("file", "folder/file", "folder/deeper/file"):
        (tmp_path / "tree" / name).touch()
    return tmp_path / "tree"


def is_whole(outside: Path) -> bool:
    return [(outside / name).read_text("utf-8") for name in ("kept", "inner/kept")] == ["kept", "kept"]


def test_all_of_a_tree_goes(tree: Path) -> None:
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "inner").chmod(0)
    (tree / "closed").chmod(0)
    os.mkfifo(tree / "fifo")
    remove_tree(tree)
    assert not os.path.lexists(tree)
    remove_tree(tree)


def test_many_files_go_too(tree: Path) -> None:
    for number in range(3 * removal._MANY):
        (tree / "folder" / str(number)).touch()
    remove_tree(tree)
    assert not tree.exists()


def test_what_links_lead_to_stays(tree: Path, outside: Path) -> None:
    for name in ("link", "folder/link", "folder/deeper/link"):
        (tree / name).symlink_to(outside)
    (tree / "to a file").symlink_to(outside / "kept")
    (tree / "hard").hardlink_to(outside / "kept")
    remove_tree(tree)
    assert not tree.exists()
    assert is_whole(outside)


def test_a_link_in_the_place_of_the_tree_goes_alone(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    assert not os.path.lexists(tmp_path / "link")
    assert is_whole(outside)


@pytest.mark.parametrize("place", ["", "folder"])
def test_a_link_put_there_after_the_look_is_not_followed(
    tree: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Whoever can write beside us may exchange a directory for a link between our listing and our opening it."""
    listed, exchanged = removal._list_names, False
    victim = tree / ("folder" if not place else "folder/deeper")

    def look(folder: int) -> tuple[list[str], list[str]]:
        nonlocal exchanged
        found = listed(folder)
        if not exchanged and os.path.samestat(os.fstat(folder), (tree / place).stat()):
            exchanged = True
            victim.rename(outside.parent / "moved away")
            victim.symlink_to(outside)
        return found

    monkeypatch.setattr(removal, "_list_names", look)
    remove_tree(tree)
    assert exchanged
    assert is_whole(outside)


def test_the_mode_of_what_a_link_leads_to_stays(tree: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that can't be opened is given another mode, by a descriptor of its own."""
    outside.chmod(0o500)
    refuse_first = refusing_once(os.open)
    monkeypatch.setattr(removal.os, "open", refuse_first)
    (tree / "link").symlink_to(outside)
    assert removal._open_directory(str(tree / "link"), None) is None
    assert outside.stat().st_mode & 0o777 == 0o500


def refusing_once(really: Callable[..., int]) -> Callable[..., int]:
    """os.open that has no permission the first time."""
    calls = 0

    def opened(*arguments: object, **options: object) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise PermissionError
        return really(*arguments, **options)

    return opened
