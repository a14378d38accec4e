"""Folders that stand for others in another place: what can be copied so, and what can't."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from keystone_action.files.copies import copy_exactly, file_holds, git_state, put_copies

NAME = "keystone-run-x1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder below one that names a place."""
    folder = tmp_path / NAME / "workspace"
    folder.mkdir(parents=True)
    return folder


def copied(folder: Path, to: Path) -> tuple[int, ...] | None:
    to.mkdir()
    return copy_exactly([folder], to, names=[NAME.encode(), b"1900000001"])


def test_what_is_put_elsewhere_is_what_there_was(place: Path, tmp_path: Path) -> None:
    (place / "empty").touch()
    (place / "dir/closed").mkdir(parents=True)
    (place / "dir/closed/program").write_text("#!/bin/sh\n")
    (place / "dir/closed/program").chmod(0o751)
    (place / "dir/link").symlink_to("closed/program")
    (place / "dangling").symlink_to("/nowhere/at/all")
    (place / os.fsdecode(b"no-utf8-\xff")).write_bytes(b"\0\xff" * 9)
    (place / "module.pyc").write_bytes(f"in {NAME}".encode())
    (place / "npm.log").write_text(str(place))
    os.utime(place / "empty", ns=(5, 1_000_000_007))
    (place / "dir/closed").chmod(0o555)
    place.chmod(0o710)
    modes = copied(place, tmp_path / "copy")
    assert modes == (0o710,)
    target = tmp_path / "target"
    (target / "dir/other").mkdir(parents=True)
    (target / "gone").write_text("laid out before")
    put_copies(tmp_path / "copy", modes, [target])
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == sorted(
        str(path.relative_to(place)) for path in place.rglob("*")
    )
    for path in place.rglob("*"):
        twin = target / path.relative_to(place)
        assert stat.S_IMODE(twin.lstat().st_mode) == stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            assert twin.readlink() == path.readlink()
        elif path.is_file():
            assert twin.read_bytes() == path.read_bytes()
            assert twin.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert stat.S_IMODE(target.stat().st_mode) == 0o710


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_what_is_put_belongs_to_the_owner_of_the_first_folder(tmp_path: Path) -> None:
    sources = [tmp_path / "a", tmp_path / "b"]
    targets = [tmp_path / "c", tmp_path / "d"]
    for folder in (*sources, *targets):
        folder.mkdir()
        os.chown(folder, 61_300, 61_300)
    (sources[1] / "sub").mkdir()
    (sources[1] / "sub/file").touch()
    (tmp_path / "copy").mkdir()
    modes = copy_exactly(sources, tmp_path / "copy", names=[b"no such name"])
    assert modes is not None
    put_copies(tmp_path / "copy", modes, targets)
    assert {path.lstat().st_uid for path in (*targets, *targets[1].rglob("*"))} == {61_300}


def _socket(path: Path) -> None:
    here = os.getcwd()  # noqa: PTH109 - a socket's path must be short
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _attribute(path: Path) -> None:
    path.touch()
    try:
        os.setxattr(path, "user.mime_type", b"text/plain")
    except OSError:
        pytest.skip("this file system keeps no attributes of users")


def _set_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o2755)


def _second_name(path: Path) -> None:
    path.touch()
    os.link(path, path.with_name("second"))


UNMOVABLE: dict[str, Callable[[Path], object]] = {
    "names the place": lambda path: path.write_text(f"#!/tmp/{NAME}/bin/python\n"),
    "names the user": lambda path: path.write_bytes(b"\0uid=1900000001\0"),
    "names the place late": lambda path: path.write_bytes(b"\0" * 5_000_000 + NAME.encode()),
    "has the place in its own name": lambda path: path.with_name(f"-tmp-{NAME}-workspace").mkdir(),
    "is a link to the place": lambda path: path.symlink_to(path.parent / "other"),
    "is a pipe": os.mkfifo,
    "is a socket": _socket,
    "has two names": _second_name,
    "has an attribute": _attribute,
    "hands its group on": _set_group,
}


@pytest.mark.parametrize("make", UNMOVABLE.values(), ids=UNMOVABLE)
def test_what_would_be_something_else_elsewhere_is_not_copied(
    make: Callable[[Path], object], place: Path, tmp_path: Path
) -> None:
    (place / "deep").mkdir()
    make(place / "deep/x")
    assert copied(place, tmp_path / "copy") is None


def test_whatever_changes_what_git_keeps_is_seen(place: Path) -> None:
    repository = place / "vendored/.git"
    (repository / "refs").mkdir(parents=True)
    (repository / "index").write_bytes(b"1")
    (place / "file").touch()
    before = git_state([place])
    (place / "file").write_text("not git's")
    (place / "vendored/x").touch()
    assert git_state([place]) == before
    (repository / "index").unlink()
    (repository / "index").write_bytes(b"1")
    assert git_state([place]) != before
    other = git_state([place])
    (place / ".git").write_text("gitdir: vendored/.git")
    assert git_state([place]) != other


def test_a_file_that_is_empty_holds_nothing(tmp_path: Path) -> None:
    import re

    (tmp_path / "empty").touch()
    assert not file_holds(str(tmp_path / "empty"), re.compile(b"x"))
