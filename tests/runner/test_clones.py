"""Repositories that are cloned while a spec is read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.touchstone import repository

from keystone_action.dialects.touchstone.sources import is_commit, location, shown_url
from keystone_action.runner.specs import Clones
from keystone_action.spec.loading.spec_source import CloneFailed


def test_the_files_of_a_commit_without_its_history(tmp_path: Path) -> None:
    commit = repository(tmp_path / "origin", {"hidden/test_x.py": "old"})
    (tmp_path / "origin" / "hidden" / "test_x.py").write_text("new")
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-qam", "2"], cwd=tmp_path / "origin", check=True
    )
    subprocess.run(["git", "tag", "v1"], cwd=tmp_path / "origin", check=True)
    clones, url = Clones(), (tmp_path / "origin").as_uri()
    for name, content in ((commit, "old"), (commit[:10], "old"), ("v1", "new")):
        root = clones(url, name)
        assert (root / "hidden" / "test_x.py").read_text() == content
        assert not (root / ".git").exists()
        assert clones(url, name) == root
        assert root.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("commit", ["0" * 40, "abcd1234", "no-such-branch"])
def test_a_commit_that_is_not_there(tmp_path: Path, commit: str) -> None:
    repository(tmp_path / "origin", {"a": "b"})
    with pytest.raises(CloneFailed) as caught:
        Clones()((tmp_path / "origin").as_uri(), commit)
    assert str(caught.value)


def test_a_repository_that_is_not_there_says_so_without_credentials(tmp_path: Path) -> None:
    for url in ("https://me:secret@localhost:1/a.git", (tmp_path / "none").as_uri(), "ext::sh -c id"):
        with pytest.raises(CloneFailed) as caught:
            Clones()(url, "main")
        assert "secret" not in str(caught.value)


def test_hooks_and_filters_of_a_repository_run_nothing(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    commit = repository(origin, {"a.txt": "x", ".gitattributes": "*.txt filter=evil\n"})
    hook = origin / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    root = Clones()(origin.as_uri(), commit)
    assert (root / "a.txt").read_text() == "x"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("https://host/a.git", "https://host/a.git"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("owner/name", "https://github.com/owner/name.git"),
        ("../a", "file:///x/a"),
        ("./a b", "file:///x/y/a%20b"),
        ("/a", "file:///a"),
        ("name", None),
        ("-u://x", None),
        ("--upload-pack=x", None),
        ("a/b/c", None),
    ],
)
def test_where_a_repository_is(name: str, url: str | None) -> None:
    assert location(name, Path("/x/y")) == url


def test_what_git_can_be_asked_for() -> None:
    assert [one for one in ("a1", "v1.2", "feature/x", "-x", "a b", "a..b", "", "a\n") if is_commit(one)] == [
        "a1",
        "v1.2",
        "feature/x",
    ]
    assert shown_url("https://me:pass@host/a") == "https://host/a"
