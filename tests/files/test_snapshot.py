"""Snapshots of workspaces, and what differs between two."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import resource
import tempfile
import time
from pathlib import Path

import pytest

from keystone_action.errors import HarnessError
from keystone_action.files import snapshot as module
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.snapshot import UNREAD, FileState, compare_entries, snapshot


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src/main.py").write_text("print(1)\n")
    return workspace


def test_every_kind_of_entry(workspace: Path) -> None:
    (workspace / "src/main.py").chmod(0o751)
    (workspace / "link").symlink_to("/etc/passwd")
    os.mkfifo(workspace / "fifo", 0o600)
    (workspace / "empty").touch(0o644)
    (workspace / "line\nbreak").touch(0o644)
    Path(os.fsdecode(os.fsencode(workspace) + b"/\xff")).touch(0o644)
    taken = snapshot(workspace)
    empty = FileState("file", 0o644, 0, hashlib.sha256(b"").hexdigest())
    assert taken["src"].kind == "directory"
    assert taken["src/main.py"] == FileState("file", 0o751, 9, hashlib.sha256(b"print(1)\n").hexdigest())
    assert (taken["link"].kind, taken["link"].target) == ("link", "/etc/passwd")
    assert taken["fifo"] == FileState("other", 0o600)
    assert taken["empty"] == taken["line\nbreak"] == taken["\udcff"] == empty
    assert len(taken) == 7


def test_nothing_behind_a_link_is_seen(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").touch()
    (workspace / "out").symlink_to("../outside")
    assert set(snapshot(workspace)) == {"src", "src/main.py", "out"}


def test_git_directories_are_recorded_but_not_entered(workspace: Path) -> None:
    (workspace / ".git/objects").mkdir(parents=True)
    (workspace / "src/.git").write_text("gitdir: elsewhere")
    assert set(snapshot(workspace)) == {"src", "src/main.py", ".git", "src/.git"}


@pytest.mark.parametrize("kind", ["missing", "file", "link"])
def test_a_workspace_that_is_gone_is_empty_and_said_to_be(workspace: Path, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "other"
    if kind == "file":
        root.touch()
    if kind == "link":
        root.symlink_to(workspace)
    taken = snapshot(root)
    assert (dict(taken), taken.unreadable) == ({}, [""])


def test_what_can_not_be_read_is_still_there(workspace: Path) -> None:
    (workspace / "src/main.py").chmod(0)
    (workspace / "shut").mkdir(0)
    taken = snapshot(workspace)
    (workspace / "shut").chmod(0o700)
    assert taken["shut"] == FileState("directory", 0)
    if os.geteuid() == 0:
        assert taken["src/main.py"].digest == hashlib.sha256(b"print(1)\n").hexdigest()
    else:
        assert taken["src/main.py"].digest.startswith(UNREAD)
        assert taken.unreadable == ["shut"]


def test_a_file_of_exabytes_is_not_read(workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 43)
    before = snapshot(workspace)
    assert before["huge"].digest.startswith(UNREAD)
    assert compare_entries(before, snapshot(workspace)) == ()
    time.sleep(0.02)
    with (workspace / "huge").open("r+b") as file:
        file.write(b"x")
    assert [change.path for change in compare_entries(before, snapshot(workspace))] == ["huge"]


def test_more_entries_than_allowed_are_refused(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_LIMIT", 1)
    with pytest.raises(PathUnreadable, match="more than 1 entries"):
        snapshot(workspace)


class TestDigestsTakenOver:
    """With an earlier snapshot only what may have changed is read again."""

    @pytest.fixture
    def read(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        sizes: list[int] = []
        hash_file = module._hash
        monkeypatch.setattr(module, "_hash", lambda fd, size: sizes.append(size) or hash_file(fd, size))
        monkeypatch.setattr(module, "stamps_every_change", lambda _: True)  # whatever pytest's directory lies on
        return sizes

    def _settled(self, workspace: Path) -> module.Snapshot:
        taken = snapshot(workspace)
        taken.taken_ns = time.time_ns() + 10**9  # as if it had been taken a while after the last change
        return taken

    def test_an_unchanged_file_is_not_read_again(self, workspace: Path, read: list[int]) -> None:
        before = self._settled(workspace)
        assert snapshot(workspace, before) == before
        assert read == [9]

    def test_a_file_changed_in_the_same_tick_as_the_snapshot_is_read(self, workspace: Path, read: list[int]) -> None:
        before = snapshot(workspace)
        before.taken_ns = (workspace / "src/main.py").stat().st_ctime_ns + 1
        snapshot(workspace, before)
        assert read == [9, 9]

    def test_a_forged_modification_time_hides_nothing(self, workspace: Path) -> None:
        file = workspace / "src/main.py"
        before = self._settled(workspace)
        status = file.stat()
        time.sleep(0.02)
        file.write_text("print(2)\n")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert file.stat().st_mtime_ns == status.st_mtime_ns
        found = compare_entries(before, snapshot(workspace, before))
        assert [(change.path, change.change) for change in found] == [("src/main.py", "modified")]

    def test_a_file_put_in_its_place_is_read(self, workspace: Path, read: list[int]) -> None:
        before = self._settled(workspace)
        other = workspace / "other"
        other.write_text("print(3)\n")
        other.replace(workspace / "src/main.py")
        assert [change.change for change in compare_entries(before, snapshot(workspace, before))] == ["modified"]

    def test_a_plain_mapping_is_no_proof(self, workspace: Path, read: list[int]) -> None:
        snapshot(workspace, dict(self._settled(workspace)))
        assert read == [9, 9]


def test_where_changes_are_not_stamped_all_is_read_again() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        file = Path(name) / "main.py"
        file.write_bytes(b"author")
        before = snapshot(Path(name))
        before.taken_ns = time.time_ns() + 10**9
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as page:
            page[0]
            was = file.stat()
            page[:6] = b"agent!"
        assert (file.stat().st_mtime_ns, file.stat().st_ctime_ns) == (was.st_mtime_ns, was.st_ctime_ns)
        assert [change.path for change in compare_entries(before, snapshot(Path(name), before))] == ["main.py"]


def test_paths_of_more_characters_than_allowed_are_refused(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATHS_LIMIT", len("src") + len("src/main.py"))
    assert len(snapshot(workspace)) == 2
    (workspace / "more").touch()
    with pytest.raises(PathUnreadable, match="more than 14 characters"):
        snapshot(workspace)


def test_without_a_free_descriptor_nothing_is_called_unreadable(workspace: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    snapshot(workspace)  # imports and the like are done
    try:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 16, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for free in range(4):
            with pytest.raises(HarnessError, match="Too many open files"):
                snapshot(workspace)
            if free < 3:
                os.close(held.pop())
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_files(tmp_path: Path) -> None:
    for folder in range(20):
        (tmp_path / str(folder)).mkdir()
        for name in range(100):
            (tmp_path / str(folder) / str(name)).write_text(str(name))
    taken = snapshot(tmp_path)
    assert sum(state.kind == "file" for state in taken.values()) == 2000
    assert len({state.digest for state in taken.values() if state.kind == "file"}) == 100
