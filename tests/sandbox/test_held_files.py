"""Which files of a tree somebody can still write, as the kernel tells, and what is done where it does not."""

from __future__ import annotations

import array
import mmap
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from keystone_action.sandbox import trees as held_files
from keystone_action.sandbox.trees import find_held_file

Close = Callable[[], object]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """On a file system that tells."""
    for name in ("a", "deep/er/b", "deep/c"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
    root = os.open(tmp_path / "tree", os.O_RDONLY)
    tells = held_files._tells(root)
    os.close(root)
    if not tells:
        pytest.skip("the kernel does not tell for this file system which files are open")
    return tmp_path / "tree"


def _open(path: Path) -> Close:
    return path.open("a").close


def _mapped(path: Path) -> Close:
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), 7)
    return page.close


def _on_its_way(path: Path) -> Close:
    one, other = socket.socketpair()
    with path.open("a") as file:
        one.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))])

    def close() -> None:
        one.close()
        other.close()

    return close


@pytest.mark.parametrize("hold", [_open, _mapped, _on_its_way])
def test_a_file_that_can_still_be_written_is_found(
    tree: Path, hold: Callable[[Path], Close], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_files, "_PATIENCE", 0.05)
    close = hold(tree / "deep/er/b")
    try:
        assert find_held_file(tree, renews=False) == "deep/er/b"
    finally:
        close()
    assert find_held_file(tree, renews=False) == ""


def test_what_is_only_read_or_belongs_to_another_user_is_not_held(tree: Path) -> None:
    (tree / "link").symlink_to("a")
    os.mkfifo(tree / "pipe")
    if os.geteuid() == 0:
        os.chown(tree / "deep/c", 4711, 4711)
    with (tree / "a").open():
        assert find_held_file(tree, renews=False) == ""
    assert find_held_file(tree / "gone", renews=False) == ""


def test_a_file_that_is_closed_late_is_waited_for(tree: Path) -> None:
    file = (tree / "a").open("a")
    found: list[str] = []
    search = threading.Thread(target=lambda: found.append(find_held_file(tree, renews=False)))
    search.start()
    file.close()
    search.join()
    assert found == [""]


def test_where_the_kernel_does_not_tell_files_are_replaced(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_files, "_tells", lambda _: False)
    os.link(tree / "a", tree / "deep/same")
    (tree / "hole").write_bytes(b"x")
    os.truncate(tree / "hole", 1 << 30)
    (tree / "deep/c").chmod(0o4501)
    os.utime(tree / "deep/c", ns=(1, 2))
    (tree / "deep/er").chmod(0o555)
    before = {path: path.stat() for path in tree.rglob("*")}
    held = (tree / "a").open("r+")
    assert find_held_file(tree, renews=True) == ""
    held.write("changed")
    held.close()
    assert (tree / "a").read_text() == (tree / "deep/same").read_text() == "content"
    assert (tree / "a").samefile(tree / "deep/same")
    assert {path: path.stat().st_mode for path in tree.rglob("*")} == {
        path: one.st_mode for path, one in before.items()
    }
    files = [path for path in before if stat.S_ISREG(before[path].st_mode)]
    assert all(path.stat().st_mtime_ns == before[path].st_mtime_ns for path in files)
    assert all(path.stat().st_ino != before[path].st_ino for path in files)
    assert (tree / "hole").stat().st_blocks < 100


def test_nothing_is_replaced_where_nobody_else_runs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_files, "_tells", lambda _: False)
    before = (tree / "a").stat().st_ino
    assert find_held_file(tree, renews=False) == ""
    assert (tree / "a").stat().st_ino == before


def test_who_opens_a_file_while_it_is_asked_about_ends_nobody(tree: Path) -> None:
    """The kernel tells the holder of a lease by a signal, whose default ends a process."""
    descriptor = os.open(tree / "a", os.O_RDONLY)
    try:
        assert held_files._takes_lease(descriptor)
        with pytest.raises(BlockingIOError):
            os.open(tree / "a", os.O_WRONLY | os.O_NONBLOCK)
    finally:
        os.close(descriptor)
