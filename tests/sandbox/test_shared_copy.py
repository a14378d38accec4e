"""Copies of our programs for users that can't read where we are installed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attacks import honest, hostile

from keystone_action.cli import main as cli
from keystone_action.cli.clean import SETUPS_KEPT
from keystone_action.sandbox import own_programs as module
from keystone_action.sandbox.own_programs import open_to_all, shared_copy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as other users")
STRANGER = 12345
PLANTED = "a folder of another user's where copies of our programs go"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine: `first` and `second` are where copies go, `home` is closed. (pytest's own folders are closed, too.)"""
    path = Path(tempfile.mkdtemp(prefix="keystone-test-"))
    path.chmod(0o755)
    for name in ("first", "second"):
        (path / name).mkdir()
        (path / name).chmod(0o1777)
    (path / "home/tool/bin").mkdir(parents=True)
    (path / "home").chmod(0o700)
    (path / "home/tool/bin/run").write_text("#!/bin/sh\n")
    (path / "home/tool/bin/run").chmod(0o700)
    (path / "home/tool/data").write_text("data")
    (path / "home/tool/data").chmod(0o600)
    monkeypatch.setattr(module, "_PLACES", (path / "first", path / "second"))
    yield path
    shutil.rmtree(path)


def copied(world: Path) -> Path:
    return shared_copy({"tool": world / "home/tool"}, world / "own")


@honest("services", PLANTED, sandbox="none")
def test_a_copy_is_made_once_and_open_to_all(world: Path) -> None:
    copy = copied(world)
    assert copy.parent == world / "first" / "keystone-action"
    assert open_to_all(copy)
    assert not open_to_all(world / "home/tool")
    assert (copy / "tool/data").read_text() == "data"
    assert stat.S_IMODE((copy / "tool/bin/run").stat().st_mode) == 0o755
    # Else compiled Python would be made anew each time that it is loaded.
    assert (copy / "tool/data").stat().st_mtime_ns == (world / "home/tool/data").stat().st_mtime_ns
    made = (copy / "tool/data").stat().st_ino
    assert copied(world) == copy
    assert (copy / "tool/data").stat().st_ino == made


def test_other_content_is_another_copy(world: Path) -> None:
    old = copied(world)
    (world / "home/tool/data").write_text("newer")
    new = copied(world)
    assert (old / "tool/data").read_text() == "data"
    assert (new / "tool/data").read_text() == "newer"


@hostile("services", PLANTED, held_by="owner, modes and kind of the folder are looked at", sandbox="none")
@pytest.mark.parametrize("kind", ["folder", "open folder", "link", "copy"])
def test_what_somebody_planted_is_not_used(world: Path, kind: str) -> None:
    mine = copied(world)
    planted = world / "first/keystone-action"
    if kind == "copy":  # in a folder that was ours to write, but to all others as well
        planted.chmod(0o777)
    elif kind == "link":
        shutil.rmtree(planted)
        (world / "elsewhere").mkdir(mode=0o755)
        planted.symlink_to(world / "elsewhere")
    elif kind == "open folder":
        shutil.rmtree(planted)
        planted.mkdir()
        planted.chmod(0o777)
    else:
        os.chown(planted, STRANGER, STRANGER)
    assert copied(world) == world / "second/keystone-action" / mine.name


def test_a_copy_that_is_a_strangers_is_not_used(world: Path) -> None:
    copy = copied(world)
    os.chown(copy, STRANGER, STRANGER)
    assert copied(world) == world / "second/keystone-action" / copy.name


def test_a_place_that_others_may_rename_in_is_not_used(world: Path) -> None:
    (world / "first").chmod(0o777)  # without the sticky bit
    assert copied(world).parent.parent == world / "second"


def test_without_a_lasting_place_a_run_has_its_own(world: Path) -> None:
    (world / "own").mkdir()
    for name in ("first", "second"):
        (world / name).chmod(0o700)
    assert copied(world).parent == world / "own"
    assert not list((world / "own").glob(".unfinished*"))


@pytest.mark.parametrize("mode", [0o600, 0o711])
def test_a_tree_with_one_closed_file_is_not_open(world: Path, mode: int) -> None:
    copy = copied(world)
    (copy / "tool/bin/run").chmod(mode)
    assert not open_to_all(copy)


def test_a_link_that_leaves_the_tree_is_copied_as_what_it_leads_to(world: Path) -> None:
    (world / "home/cache").write_text("linked")
    (world / "home/tool/linked").symlink_to("../cache")
    assert not open_to_all(world / "home/tool")
    assert (copied(world) / "tool/linked").read_text() == "linked"
    assert not (copied(world) / "tool/linked").is_symlink()


def test_clean_removes_what_no_run_has_used_for_long(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(world / "home"))
    monkeypatch.setattr("keystone_action.engine.connect._DEFAULT", "unix:///does/not/exist.sock")
    monkeypatch.setenv("DOCKER_HOST", "")
    young = copied(world)
    (world / "home/tool/data").write_text("newer")
    old = copied(world)
    unfinished = old.parent / ".unfinished-0"
    unfinished.mkdir()
    for path, age in ((old, SETUPS_KEPT + 60), (unfinished, 7200.0)):
        os.utime(path, (time.time() - age,) * 2)
    assert cli.main(["clean", "--dry-run"]) == 0
    assert f"would remove {old}," in capsys.readouterr().out
    assert old.exists()
    assert cli.main(["clean"]) == 0
    assert f"removed {old}," in capsys.readouterr().out
    assert young.exists()
    assert not old.exists()
    assert not unfinished.exists()
