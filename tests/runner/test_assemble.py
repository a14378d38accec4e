"""What the document of a run says of the run as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import commit, git

from keystone_action.runner.assemble import git_sha
from keystone_action.runner.options import RunOptions


def committed(directory: Path) -> str:
    directory.mkdir()
    git(directory, "init", "-q")
    return commit(directory, {"file": directory.name})


def test_the_commit_is_the_one_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own environment says nothing of it, as it says nothing in our other calls of git."""
    here, _ = committed(tmp_path / "here"), committed(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    assert git_sha(RunOptions(specs=(), directory=tmp_path / "here")) == here
    assert git_sha(RunOptions(specs=(), directory=tmp_path)) is None
    assert git_sha(RunOptions(specs=(), directory=tmp_path / "here", environ={"GITHUB_SHA": "5" * 40})) == "5" * 40
