"""What a commit was merged onto: told by the commit itself, of the very merge and head that are asked about."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import commit, git

from keystone_action.gate.base_commit import merged_onto


@pytest.fixture
def merge(tmp_path: Path) -> tuple[Path, str, str, str]:
    """A checkout of a merge, as GitHub makes it; the merge, its base and its head."""
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, {"a": "1\n"})
    git(tmp_path, "checkout", "-q", "-b", "topic")
    head = commit(tmp_path, {"b": "2\n"})
    git(tmp_path, "checkout", "-q", "main")
    base = commit(tmp_path, {"c": "3\n"})
    git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "topic")
    return tmp_path, git(tmp_path, "rev-parse", "HEAD"), base, head


def test_the_first_parent_of_the_merge(merge: tuple[Path, str, str, str]) -> None:
    place, made, base, head = merge
    assert merged_onto(place, made, head) == base


def test_of_another_head_nothing_is_told(merge: tuple[Path, str, str, str]) -> None:
    place, made, base, _ = merge
    assert merged_onto(place, made, "4" * 40) is None
    assert merged_onto(place, made, base) is None


def test_of_another_commit_than_the_one_checked_out_nothing_is_told(merge: tuple[Path, str, str, str]) -> None:
    place, made, _, head = merge
    assert merged_onto(place, "", head) is None
    assert merged_onto(place, "3" * 40, head) is None
    git(place, "merge", "-q", "--no-ff", "-m", "one more", commit_on(place, head))
    assert merged_onto(place, made, head) is None
    git(place, "checkout", "-q", head)
    assert merged_onto(place, head, head) is None


def test_a_replacement_has_no_say(merge: tuple[Path, str, str, str]) -> None:
    place, made, base, head = merge
    first = git(place, "rev-parse", f"{base}^")
    git(place, "replace", "--graft", made, first, head)
    assert git(place, "rev-parse", "HEAD^1") == first
    assert merged_onto(place, made, head) == base


def test_no_repository_tells_nothing(tmp_path: Path) -> None:
    assert merged_onto(tmp_path, "3" * 40, "4" * 40) is None


def commit_on(place: Path, head: str) -> str:
    """A commit on top of another, without its being checked out."""
    return git(place, "commit-tree", "-p", head, "-m", "further", f"{head}^{{tree}}")
