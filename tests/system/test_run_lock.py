"""Which runs are still going, and what of theirs lies about in a temporary directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keystone_action.files.temporary import find_temporary, remove_temporary
from keystone_action.system.run_lock import (
    RUN_ID,
    is_on_engine,
    keep_lock,
    lock_path,
    locked_run,
    new_run_id,
    run_lock,
    state_of,
)

HOLDER = """
import sys, time
from pathlib import Path
from keystone_action.system.run_lock import run_lock
with run_lock(sys.argv[1], Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_run_is_going_while_its_process_holds_the_lock(tmp_path: Path) -> None:
    run_id = new_run_id()
    assert state_of(run_id, tmp_path) == "unknown"
    with run_lock(run_id, tmp_path):
        assert state_of(run_id, tmp_path) == "going"
        assert locked_run(lock_path(run_id, tmp_path)) == run_id
        assert [one.is_of(run_id) for one in find_temporary(tmp_path)] == [True]
    assert state_of(run_id, tmp_path) == "unknown"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("on_engine", [False, True])
def test_a_run_that_had_to_leave_something_is_dead_when_it_ends(tmp_path: Path, *, on_engine: bool) -> None:
    run_id = new_run_id()
    with run_lock(run_id, tmp_path):
        keep_lock(run_id, on_engine=on_engine)
        assert state_of(run_id, tmp_path) == "going"
    assert state_of(run_id, tmp_path) == "dead"
    assert is_on_engine(lock_path(run_id, tmp_path)) is on_engine


def test_a_killed_run_is_dead(tmp_path: Path) -> None:
    run_id = new_run_id()
    with subprocess.Popen([sys.executable, "-c", HOLDER, run_id, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert state_of(run_id, tmp_path) == "going"
        holder.kill()
    assert state_of(run_id, tmp_path) == "dead"


def test_commands_of_a_run_do_not_hold_its_lock(tmp_path: Path) -> None:
    run_id = new_run_id()
    with run_lock(run_id, tmp_path):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
        path = lock_path(run_id, tmp_path)
        path.rename(tmp_path / "kept")
    try:
        (tmp_path / "kept").rename(path)
        assert state_of(run_id, tmp_path) == "dead"
    finally:
        child.kill()
        child.wait()


def test_where_no_lock_can_be_made_a_run_goes_all_the_same(tmp_path: Path) -> None:
    with run_lock("1-1-abcdef", tmp_path / "missing"):
        assert state_of("1-1-abcdef", tmp_path / "missing") == "unknown"


def test_links_and_pipes_are_no_locks(tmp_path: Path) -> None:
    lock_path("1-1-abcdef", tmp_path).symlink_to("/etc/passwd")
    os.mkfifo(lock_path("1-2-abcdef", tmp_path))
    assert state_of("1-1-abcdef", tmp_path) == "unknown"
    assert find_temporary(tmp_path) == []


def test_ids_look_like_ids() -> None:
    assert re.fullmatch(RUN_ID, new_run_id())
    assert new_run_id() != new_run_id()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("keystone-20260102-030405-a1b2c3-abcd_123", True),
        ("keystone-6001-1-a1b2c3d4-abcd_123", True),
        ("keystone-check-abcd_123", True),
        ("keystone-patch-abcd_123", True),
        ("keystone-frontend", False),
        ("keystone-my-work-a1b2c3-abcd_123", False),
        ("keystone", False),
        ("other-20260102-030405-a1b2c3-abcd_123", False),
    ],
)
def test_only_names_of_our_making_are_ours(tmp_path: Path, name: str, ours: bool) -> None:
    (tmp_path / name).mkdir()
    assert bool(find_temporary(tmp_path)) is ours


def test_what_is_removed_takes_nothing_along(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    folder = tmp_path / "keystone-1-1-abcdef-12345678"
    (folder / "closed" / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "closed").chmod(0)
    (tmp_path / "keystone-1-2-abcdef-12345678").symlink_to(outside)
    (found,) = find_temporary(tmp_path)
    assert remove_temporary(found)
    assert not folder.exists()
    assert (outside / "file").exists()


def test_what_belongs_to_others_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "keystone-1-1-abcdef-12345678"
    folder.mkdir()
    assert len(find_temporary(tmp_path)) == 1
    if os.geteuid() == 0:
        os.chown(folder, 4321, 4321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert find_temporary(tmp_path) == []
