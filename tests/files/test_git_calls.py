"""Our own calls of git in a repository that an agent has configured."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repositories import commit
from support.repositories import git as set_up

from keystone_action.files.git import commands as git

TRAP = "#!/bin/sh\ntouch {mark}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    set_up(place, "init", "-q", "-b", "main")
    commit(place, {"a": "1\n"})
    return place


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves `started` beside itself."""
    program = tmp_path / "trap"
    program.write_text(TRAP.format(mark=tmp_path / "started"))
    program.chmod(0o755)
    return program


def test_no_monitor_of_its_file_system_is_started(repository: Path, trap: Path) -> None:
    set_up(repository, "config", "core.fsmonitor", str(trap))
    (repository / "a").write_text("2\n")
    assert git.run_git("status", "--porcelain", directory=repository) == b" M a\n"
    assert not (trap.parent / "started").exists()


def test_no_hook_is_started(repository: Path, trap: Path) -> None:
    (repository / ".git" / "hooks").mkdir(exist_ok=True)
    trap.rename(repository / ".git" / "hooks" / "post-checkout")
    git.run_git("checkout", "-q", "-b", "other", directory=repository)
    assert not (trap.parent / "started").exists()


def test_both_are_started_by_a_plain_git(repository: Path, trap: Path) -> None:
    """So that the tests above can fail."""
    set_up(repository, "config", "core.fsmonitor", str(trap))
    set_up(repository, "status")
    assert (trap.parent / "started").exists()
    (trap.parent / "started").unlink()
    set_up(repository, "config", "--unset", "core.fsmonitor")
    (repository / ".git" / "hooks").mkdir(exist_ok=True)
    trap.rename(repository / ".git" / "hooks" / "post-checkout")
    set_up(repository, "checkout", "-q", "-b", "third")
    assert (trap.parent / "started").exists()


def test_what_our_own_environment_says_to_git_is_not_passed_on(
    repository: Path, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "alias.harmless")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"!{trap}")
    monkeypatch.setenv("GIT_DIR", str(trap.parent / "nowhere"))
    with pytest.raises(git.GitFailed, match="harmless"):
        git.run_git("harmless", directory=repository)
    assert git.run_git("rev-parse", "--is-inside-work-tree", directory=repository) == b"true\n"
