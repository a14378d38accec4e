"""The digest of a folder: equal where copies of it would be equal, and another after any single change."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.files.tree_digest import TreeDigester
from keystone_action.files.workspace import digest_tree


def digest(folder: Path, **more: object) -> str:
    return digest_tree(TreeDigester(), folder, **more).content  # type: ignore[arg-type]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "a.txt").write_text("one")
    (top / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (top / "empty").mkdir()
    (top / "link").symlink_to("a.txt")
    return top


def grow(top: Path) -> None:
    (top / "sub" / "new").touch()


CHANGES: list[Callable[[Path], object]] = [
    lambda top: (top / "a.txt").write_text("two"),
    lambda top: (top / "a.txt").rename(top / "b.txt"),
    lambda top: (top / "a.txt").unlink(),
    lambda top: (top / "sub" / "run.sh").chmod(0o755),
    lambda top: (top / "empty").rmdir(),
    lambda top: (top / "link").unlink() or (top / "link").symlink_to("sub/run.sh"),  # type: ignore[func-returns-value]
    lambda top: (top / "a.txt").unlink() or (top / "a.txt").mkdir(),  # type: ignore[func-returns-value]
    grow,
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_any_single_change_is_seen(tree: Path, number: int) -> None:
    before = digest(tree)
    CHANGES[number](tree)
    assert digest(tree) != before


def test_a_copy_elsewhere_with_other_times_and_rights_of_others_is_the_same(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "tree"
    shutil.copytree(tree, copy, symlinks=True)
    os.utime(copy / "a.txt", (1, 1))
    (copy / "a.txt").chmod(0o664)
    assert digest(copy) == digest(tree)


@settings(max_examples=25)
@given(st.dictionaries(st.text("ab/", min_size=1, max_size=5), st.binary(max_size=20), max_size=6), st.data())
def test_equal_files_have_equal_digests_and_one_changed_byte_another(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], data: st.DataObject
) -> None:
    made = []
    for _ in range(2):
        top = tmp_path_factory.mktemp("tree")
        for name, content in files.items():
            path = top / f"{name.strip('/').replace('/', '-/')}.f"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        made.append(top)
    assert digest(made[0]) == digest(made[1])
    paths = sorted(path for path in made[1].rglob("*") if path.is_file())
    if paths:
        path = data.draw(st.sampled_from(paths))
        path.write_bytes(path.read_bytes() + b"x")
        assert digest(made[0]) != digest(made[1])


def test_what_is_not_copied_does_not_count(tree: Path) -> None:
    hidden, results = tree / "hidden.py", tree / "out"
    before = digest(tree)
    hidden.write_text("secret")
    results.mkdir()
    (results / "journal.jsonl").touch()
    (tree / "sub" / "x.pyc").touch()
    assert digest(tree) != before
    assert digest(tree, withheld=[hidden], results=[results], ignore=["*.pyc"]) == before
    by_look = digest(tree, withheld=[hidden], ignore=["*.pyc"], holds_results=lambda path: path == results)
    assert by_look == before


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_of_a_repository_count_its_head_and_references_packed_or_not(tree: Path, tmp_path: Path) -> None:
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    first = digest(tree)
    git(tree, "gc", "-q")
    git(tree, "pack-refs", "--all")
    (tree / ".git" / "COMMIT_EDITMSG").write_text("another")
    assert digest(tree) == first
    git(tree, "branch", "other")
    second = digest(tree)
    assert second != first
    git(tree, "checkout", "-q", "other")
    assert digest(tree) not in (first, second)
    git(tree, "checkout", "-q", "main")
    assert digest(tree) == second
    git(tree, "update-ref", "refs/remotes/origin/main", "HEAD")
    found = digest_tree(TreeDigester(), tree)
    assert found.content == second, "what others pushed meanwhile is told apart"
    assert found.remote_branches != ""


def test_what_can_not_be_read_or_followed_does_no_harm(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with_fifo = digest(tree)
    (tree / "fifo").unlink()
    assert digest(tree) != with_fifo
    assert TreeDigester().file(tree / "nowhere") == "unreadable"
    assert digest(tree / "a.txt") == digest(tree / "nowhere") == "unreadable"


def test_a_file_that_is_in_two_folders_is_read_once(tree: Path) -> None:
    digester = TreeDigester()
    digester.file(tree / "a.txt")
    known = dict(digester._known)
    digest_tree(digester, tree)
    digest_tree(digester, tree)
    assert len(digester._known) == len(known) + 1
