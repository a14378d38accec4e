"""Walks of trees that are deeper than any path can be long."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.places import in_memory

from keystone_action.files.copies import hand_over
from keystone_action.files.descent import Descent, walk_down
from keystone_action.files.workspace import copy_as_left, remove_tree, snapshot
from keystone_action.sandbox import trees

LEVELS, NAME = 1050, "down"
"""More levels than any recursion has, in a path that is longer than any can be."""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory()) as made:
        yield Path(made)


@pytest.fixture
def deep(place: Path) -> Iterator[Path]:
    """A chain of directories, a leaf beside each link of it, and a file at its end."""
    root = place / "deep"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir(NAME, dir_fd=here)
        os.mkdir("leaf", dir_fd=here)
        deeper = os.open(NAME, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    yield root
    remove_tree(root)


def test_opens_what_a_listing_found_in_any_order(tmp_path: Path) -> None:
    names = ["a", "a/b", "ab", "a/b/c"]
    for name in names:
        (tmp_path / name).mkdir()
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        with Descent(root) as descent:
            for name in ["", *names, *reversed(names), "a/b"]:
                fd = descent.open(name)
                assert os.path.samestat(os.fstat(fd), (tmp_path / name).stat())
                os.close(fd)
            with pytest.raises(FileNotFoundError):
                descent.open("a/none")
        os.fstat(root)
    finally:
        os.close(root)


@pytest.mark.slow
def test_keeps_few_descriptors_and_closes_them(deep: Path) -> None:
    before = opened_descriptors()
    root = os.open(deep, os.O_RDONLY)
    with Descent(root) as descent:
        for level in range(1, LEVELS + 1):
            fd = descent.open("/".join([NAME] * level))
            os.close(fd)
        fd = descent.open("/".join([NAME] * LEVELS))
        assert os.listdir(fd) == ["end"]  # noqa: PTH208 - a descriptor
        os.close(fd)
        assert len(opened_descriptors() - before) <= LEVELS / 64 + 1
    os.close(root)
    assert opened_descriptors() <= before


def opened_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists()}


@pytest.mark.slow
def test_a_deep_tree_is_taken_whole(deep: Path, place: Path) -> None:
    taken = snapshot(deep)
    end = "/".join([*[NAME] * LEVELS, "end"])
    assert taken[end].kind == "file"
    assert len(taken) == 2 * LEVELS + 1
    assert taken.unreadable == []
    copy_as_left(deep, place / "copy", drop_outside_links=False)
    trees.give(place / "copy", os.geteuid())
    assert set(snapshot(place / "copy")) == set(taken)
    remove_tree(place / "copy")


@pytest.mark.slow
def test_gives_every_level_and_no_file_with_names_elsewhere(deep: Path, place: Path) -> None:
    if os.geteuid() != 0:
        return  # owners are given by root only
    outside = place / "ours"
    outside.write_text("x")
    os.link(outside, deep / "linked")
    (deep / "one").write_text("x")
    os.link(deep / "one", deep / "leaf" / "two")
    (deep / "link").symlink_to(outside)
    trees.give(deep, 12345)
    fd = os.open(deep, os.O_RDONLY)
    with Descent(fd) as descent:
        bottom = descent.open("/".join([NAME] * LEVELS))
        assert {os.fstat(bottom).st_uid, os.stat("end", dir_fd=bottom).st_uid} == {12345}
        os.close(bottom)
    os.close(fd)
    assert deep.stat().st_uid == (deep / "one").stat().st_uid == (deep / "link").lstat().st_uid == 12345
    assert outside.stat().st_uid == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_all_of_a_deep_tree_is_handed_over(deep: Path, place: Path) -> None:
    os.chown(place, 4321, 4321)
    hand_over([deep], place)
    found = [entry.stat(follow_symlinks=False).st_uid for _, _, entries in walk_down(deep) for entry in entries]
    assert (set(found), len(found)) == ({4321}, 2 * LEVELS + 1)
