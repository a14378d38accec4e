"""A script of ours that calls git in a copy of a hostile workspace runs nothing of the agent's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from keystone_action.files.workspace import copy_as_left

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    # As in containers, where git would otherwise refuse most directories.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def git(*words: str, at: Path) -> subprocess.CompletedProcess[str]:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, *words], cwd=at, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=30
    )


class Trap:
    """A repository whose every way to run a program leaves a mark."""

    def __init__(self, area: Path) -> None:
        self.mark = area / "sprung"
        self.left = area / "left"
        self.script = area / "trap.sh"
        self.script.write_text(f"#!/bin/sh\ntouch {self.mark}\nexit 0\n")
        self.script.chmod(0o755)
        self.left.mkdir()

    def repository(self, at: Path, *words: str) -> Path:
        at.mkdir(exist_ok=True)
        git("init", "-q", *words, ".", at=at)
        (at / "file.txt").write_text("one\n")
        (at / ".gitattributes").write_text("*.txt diff=trap filter=trap\n")
        git("add", ".", at=at)
        git("commit", "-qm", "first", at=at)
        directory = at if "--bare" in words else at / ".git"
        self.arm(directory / "config", directory / "hooks")
        (at / "file.txt").write_text("two\n")
        return directory

    def arm(self, config: Path, hooks: Path) -> None:
        keys = ("core.fsmonitor", "diff.external", "diff.trap.command", "diff.trap.textconv", "filter.trap.clean")
        for key in (*keys, "filter.trap.smudge", "core.pager", "pager.status", "alias.st", "core.sshCommand"):
            git(
                "config",
                "--file",
                str(config),
                key,
                f"!{self.script}" if key.startswith("alias") else str(self.script),
                at=self.left,
            )
        hooks.mkdir(exist_ok=True)
        for name in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction"):
            (hooks / name).unlink(missing_ok=True)
            (hooks / name).write_text(self.script.read_text())
            (hooks / name).chmod(0o755)

    def spring(self, at: Path) -> bool:
        """Whether anything of it runs, by what scripts do with git."""
        for words in (
            ["status"],
            ["diff"],
            ["stash"],
            ["log", "-p"],
            ["checkout", "-f"],
            ["commit", "-am", "x"],
            ["st"],
        ):
            git(*words, at=at)
        return self.mark.exists()


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


def plain(trap: Trap) -> str:
    trap.repository(trap.left)
    return "."


def nested(trap: Trap) -> str:
    trap.repository(trap.left / "project")
    return "project"


def bare_in_plain_sight(trap: Trap) -> str:
    trap.repository(trap.left)
    trap.left.joinpath(".git").rename(trap.left / "bare")
    for path in (trap.left / "bare").iterdir():
        path.rename(trap.left / path.name)
    git("config", "--file", "config", "core.worktree", ".", at=trap.left)
    return "."


def pointer_to_a_directory_of_another_name(trap: Trap) -> str:
    trap.repository(trap.left)
    trap.left.joinpath(".git").rename(trap.left / "elsewhere")
    (trap.left / ".git").write_text("gitdir: ./elsewhere\n")
    return "."


def pointer_out_of_the_copy(trap: Trap) -> str:
    trap.repository(trap.left)
    trap.left.joinpath(".git").rename(trap.left / "elsewhere")
    (trap.left / ".git").write_text(f"gitdir: {trap.left}/elsewhere\n")
    return "."


def pointer_behind_a_link(trap: Trap) -> str:
    pointer_out_of_the_copy(trap)
    (trap.left / ".git").rename(trap.left / "pointer")
    (trap.left / ".git").symlink_to("pointer")
    return "."


def link_to_a_directory_of_another_name(trap: Trap) -> str:
    trap.repository(trap.left)
    trap.left.joinpath(".git").rename(trap.left / "elsewhere")
    (trap.left / ".git").symlink_to("elsewhere")
    return "."


def linked_configuration_and_hooks(trap: Trap) -> str:
    directory = trap.repository(trap.left)
    for name in ("config", "hooks"):
        (directory / name).rename(trap.left / f"my-{name}")
        (directory / name).symlink_to(f"../my-{name}")
    return "."


def included_configuration(trap: Trap) -> str:
    directory = trap.repository(trap.left)
    (directory / "config").rename(directory / "more")
    (directory / "config").write_text("[core]\n\trepositoryformatversion = 0\n[include]\n\tpath = more\n")
    return "."


def configuration_of_a_work_tree(trap: Trap) -> str:
    directory = trap.repository(trap.left)
    (directory / "config").rename(directory / "config.worktree")
    (directory / "config").write_text("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n")
    return "."


def common_directory_elsewhere(trap: Trap) -> str:
    directory = trap.repository(trap.left)
    common = trap.left / "common"
    common.mkdir()
    for name in ("objects", "refs", "config", "hooks"):
        (directory / name).rename(common / name)
    (directory / "commondir").write_text("../common\n")
    return "."


def common_directory_out_of_the_copy(trap: Trap) -> str:
    common_directory_elsewhere(trap)
    (trap.left / ".git" / "commondir").write_text(f"{trap.left}/common\n")
    return "."


def configuration_that_cannot_be_read(trap: Trap) -> str:
    directory = trap.repository(trap.left)
    (directory / "config").write_text((directory / "config").read_text() + "[broken\n")
    return "."


@pytest.mark.slow
@pytest.mark.parametrize(
    "lay",
    [
        plain,
        nested,
        bare_in_plain_sight,
        pointer_to_a_directory_of_another_name,
        pointer_out_of_the_copy,
        pointer_behind_a_link,
        link_to_a_directory_of_another_name,
        linked_configuration_and_hooks,
        included_configuration,
        configuration_of_a_work_tree,
        common_directory_elsewhere,
        common_directory_out_of_the_copy,
        configuration_that_cannot_be_read,
    ],
)
def test_nothing_of_the_agents_runs(trap: Trap, tmp_path: Path, lay) -> None:
    place = lay(trap)
    copy_as_left(trap.left, tmp_path / "copy", drop_outside_links=True)
    assert not trap.mark.exists()
    assert not trap.spring(tmp_path / "copy" / place)
    if lay is not configuration_that_cannot_be_read:
        # The same with a copy as it was: the trap was one.
        assert trap.spring(trap.left / place)


def test_a_work_tree_outside_of_the_copy_is_not_believed(trap: Trap, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "file.txt").write_text("ours")
    directory = trap.repository(trap.left)
    git("config", "--file", str(directory / "config"), "core.worktree", "../../ours", at=trap.left)
    copy_as_left(trap.left, tmp_path / "copy", drop_outside_links=True)
    git("checkout", "-f", at=tmp_path / "copy")
    assert (tmp_path / "ours" / "file.txt").read_text() == "ours"
    assert (tmp_path / "copy" / "file.txt").read_text() == "one\n"


def test_history_and_submodules_stay_readable(trap: Trap, tmp_path: Path) -> None:
    trap.repository(trap.left)
    modules = trap.left / ".git" / "modules" / "part"
    trap.repository(trap.left / "part")
    modules.parent.mkdir()
    (trap.left / "part" / ".git").rename(modules)
    (trap.left / "part" / ".git").write_text("gitdir: ../.git/modules/part\n")
    git("config", "--file", str(modules / "config"), "core.worktree", "../../../part", at=trap.left)
    copy_as_left(trap.left, tmp_path / "copy", drop_outside_links=True)
    for place in (tmp_path / "copy", tmp_path / "copy" / "part"):
        assert git("log", "--format=%s", at=place).stdout == "first\n"
        assert "+two" in git("diff", at=place).stdout
    assert not trap.mark.exists()


def test_directories_that_only_sound_like_gits_stay(tmp_path: Path) -> None:
    for name in ("hooks", "config", "src"):
        (tmp_path / "left" / name).mkdir(parents=True)
        (tmp_path / "left" / name / "use.ts").write_text("mine")
    copy_as_left(tmp_path / "left", tmp_path / "copy", drop_outside_links=True)
    assert (tmp_path / "copy" / "hooks" / "use.ts").read_text() == "mine"


def test_a_copy_for_a_sandbox_is_as_it_was_left(trap: Trap, tmp_path: Path) -> None:
    trap.repository(trap.left)
    copy_as_left(trap.left, tmp_path / "copy", drop_outside_links=False)
    assert "fsmonitor" in (tmp_path / "copy" / ".git" / "config").read_text()
