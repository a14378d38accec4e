"""What the document of a run says of the run as a whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.repositories import commit, git

from keystone_action.options.model import Options
from keystone_action.runner.results import WATCHED_DISK, git_sha, sandbox_of


def committed(directory: Path) -> str:
    directory.mkdir()
    git(directory, "init", "-q")
    return commit(directory, {"file": directory.name})


def test_the_commit_is_the_one_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own environment says nothing of it, as it says nothing in our other calls of git."""
    here, _ = committed(tmp_path / "here"), committed(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    assert git_sha(Options.of(specs=(), directory=tmp_path / "here")) == here
    assert git_sha(Options.of(specs=(), directory=tmp_path)) is None
    assert git_sha(Options.of(specs=(), directory=tmp_path / "here", environ={"GITHUB_SHA": "5" * 40})) == "5" * 40


def test_what_this_process_cannot_do_is_said_of_each_sandbox(tmp_path: Path) -> None:
    """It goes into the journal, so a run that is resumed elsewhere says it too."""
    planned: Any = SimpleNamespace(
        options=Options.of(specs=(), directory=tmp_path, not_enforced=("secrets stay readable",)),
        facilities=SimpleNamespace(images={"boxed": "image"}),
        specs=(),
    )
    networks = SimpleNamespace(way="ports")
    provider: Any = SimpleNamespace(isolation=("user",), not_enforced=("no Landlock",), networks=networks)
    specs: list[Any] = [
        SimpleNamespace(id=name, resources=SimpleNamespace(disk=1), egress=SimpleNamespace(default="deny"))
        for name in ("boxed", "plain")
    ]
    boxed, plain = (sandbox_of(planned, provider, spec) for spec in specs)
    assert (boxed.kind, boxed.not_enforced) == ("docker", (WATCHED_DISK, "secrets stay readable"))
    assert (plain.kind, plain.not_enforced) == ("process", ("no Landlock", "secrets stay readable"))
    assert (boxed.egress, plain.egress) == ("container", "ports")
    specs[1].egress.default = "allow"
    assert sandbox_of(planned, provider, specs[1]).egress is None
