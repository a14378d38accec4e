"""What a sandbox's user leaves where all users may write is removed, and looked for only where something changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from keystone_action.sandbox import trees
from keystone_action.sandbox.processes.credentials import User

USER = User(61_234, 61_235)
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to another user")


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + int(seconds * 1e9))


def left(place: Path) -> Path:
    file = place / "left"
    file.touch()
    os.chown(file, USER.uid, USER.uid)
    return file


def test_a_place_that_has_just_changed_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change of the same tick has the same time."""
    places = (str(tmp_path), str(tmp_path / "none"))
    (tmp_path / "file").touch()
    assert trees.stamps(places) == {}
    later(monkeypatch, 1)
    assert trees.stamps(places) == {str(tmp_path): tmp_path.stat().st_ctime_ns}


@NEEDS_ROOT
def test_what_came_after_the_stamps_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 1)
    before = trees.stamps((str(tmp_path),))
    assert before
    time.sleep(0.02)  # a tick of the kernel
    file, others = left(tmp_path), tmp_path / "another's"
    others.touch()
    trees.remove_shared(USER, (str(tmp_path),), before)
    assert not file.exists()
    assert others.exists()


@NEEDS_ROOT
@pytest.mark.parametrize("before", [None, {}, {"/nowhere": 1}])
def test_without_a_stamp_all_is_looked_at(tmp_path: Path, before: dict[str, int] | None) -> None:
    file = left(tmp_path)
    trees.remove_shared(USER, (str(tmp_path),), before)
    assert not file.exists()


@NEEDS_ROOT
def test_where_nothing_changed_nothing_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, 1)
    before = trees.stamps((str(tmp_path),))

    def listed(path: str) -> None:
        raise AssertionError(f"{path} was listed")

    monkeypatch.setattr(os, "scandir", listed)
    trees.remove_shared(USER, (str(tmp_path),), before)
