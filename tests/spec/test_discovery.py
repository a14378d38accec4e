"""Which files a call's patterns name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keystone_action.dialects.known import DIALECTS
from keystone_action.errors import UsageError
from keystone_action.files.removal import remove_tree
from keystone_action.spec.loading.discovery import discover, specs_below
from keystone_action.spec.walking import walk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = ("evals/a.yaml", "evals/sub/b.yaml", "evals/sub/.hid/c.yaml", "evals/node_modules/d.yaml", "other/x/e.yaml")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "evals/link").symlink_to("../other")
    (tmp_path / "evals/loop").symlink_to("loop")
    (tmp_path / "evals/up").symlink_to("..")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("evals/*.yaml", ["evals/a.yaml"]),
        ("./evals/[ab].yaml", ["evals/a.yaml"]),
        ("evals/**/*.yaml", ["evals/a.yaml", "evals/sub/.hid/c.yaml", "evals/sub/b.yaml"]),
        ("{evals/sub,other/x}/*.yaml", ["evals/sub/b.yaml", "other/x/e.yaml"]),
        ("evals/*/x/*.yaml", ["evals/link/x/e.yaml"]),
        ("evals/link/**/*.yaml", ["evals/link/x/e.yaml"]),
        ("**/e.yaml", ["other/x/e.yaml"]),
        ("{tree}/other/*/*.yaml", ["other/x/e.yaml"]),
    ],
)
def test_what_a_glob_names(tree: Path, pattern: str, found: list[str]) -> None:
    assert discover([pattern.replace("{tree}", str(tree))], tree, DIALECTS) == [tree / name for name in found]


def test_a_pattern_of_too_many_patterns_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="more than 1,000 patterns"):
        discover(["{1..2000}/*.yaml"], tree, DIALECTS)


def deep(top: Path, name: str, levels: int) -> None:
    """A chain of directories, made by one descriptor after the other."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "levels"), [("d", 5000), ("d" * 255, 5000)])
def test_a_deep_folder_is_searched_as_far_as_paths_reach(tmp_path: Path, name: str, levels: int) -> None:
    (tmp_path / "keystone.yaml").touch()
    (tmp_path / "deep").mkdir()
    deep(tmp_path / "deep", name, levels)
    try:
        assert list(specs_below(tmp_path, DIALECTS)) == [tmp_path / "keystone.yaml"]
        assert discover(["**/keystone.yaml"], tmp_path, DIALECTS) == [tmp_path / "keystone.yaml"]
    finally:
        remove_tree(tmp_path / "deep")  # which pytest can't


def test_a_walk_is_that_of_the_standard_library(tree: Path) -> None:
    def sorted_walk(found):
        return [(folder, sorted(folders), sorted(files)) for folder, folders, files in found]

    assert sorted(sorted_walk(walk(tree))) == sorted(sorted_walk(os.walk(tree)))
