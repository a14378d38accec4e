"""Paths that an agent left behind: nothing leads out of the root, nothing blocks, all is bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.files import descent as openat2
from keystone_action.files.descent import open_directory
from keystone_action.files.paths import (
    PathEscape,
    PathMissing,
    PathProblem,
    PathUnreadable,
    display_path,
    exists_inside,
    make_directories_inside,
    open_inside,
    read_head_inside,
    read_inside,
    resolve_inside,
    write_inside,
)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with links of every kind; `outside/secret` lies beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("content")
    links = {
        "in": "a/b/file",
        "in-absolute": str(root / "a/b/file"),
        "in-directory": "a",
        "a/up": "../a/b",
        "out": "../outside/secret",
        "out-absolute": str(tmp_path / "outside/secret"),
        "out-directory": "../outside",
        "a/chain": "../out",
        "dangling": "nowhere",
        "loop": "loop",
        "to-root": ".",
        "proc": "/proc/self/root/etc/passwd",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "fifo")
    return root


@pytest.fixture(params=["openat2", "walk"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening: the system call, and the walk for kernels without it."""
    if request.param == "walk":
        monkeypatch.setattr(openat2, "_libc", None)
    return str(request.param)


INSIDE = ["a/b/file", "in", "in-absolute", "in-directory/b/file", "a/up/file", "to-root/in", "a/../in", "./a//b/file"]


@pytest.mark.parametrize("path", INSIDE)
def test_reads_through_links_that_stay_inside(root: Path, how: str, path: str) -> None:
    assert read_inside(root, path) == b"content"
    assert resolve_inside(root, path) == root / "a/b/file"


OUTSIDE = [
    "out",
    "out-absolute",
    "out-directory/secret",
    "a/chain",
    "../outside/secret",
    "a/../../outside/secret",
    "proc",
]


@pytest.mark.parametrize("path", [*OUTSIDE, "/etc/passwd", ".."])
def test_refuses_what_leads_out(root: Path, how: str, path: str) -> None:
    with pytest.raises(PathEscape, match=r"leads|absolute"):
        read_inside(root, path)
    with pytest.raises(PathEscape):
        resolve_inside(root, path)
    with pytest.raises(PathEscape):
        exists_inside(root, path)


@pytest.mark.parametrize("path", ["dangling", "none", "none/deeper", "a/b/file/x", "loop"])
def test_what_is_not_there_is_missing(root: Path, how: str, path: str) -> None:
    with pytest.raises(PathMissing):
        read_inside(root, path)
    assert not exists_inside(root, path)


@pytest.mark.parametrize(("path", "kind"), [("fifo", "a FIFO"), ("a", "a directory"), ("nul\0", "NUL")])
def test_only_regular_files_are_read_and_nothing_blocks(root: Path, how: str, path: str, kind: str) -> None:
    with pytest.raises(PathUnreadable, match=kind):
        read_inside(root, path)


def test_the_limit_is_said(root: Path) -> None:
    (root / "large").write_bytes(b"x" * 1001)
    with pytest.raises(PathUnreadable, match=r"large has 1,001 bytes; at most 1,000 are read"):
        read_inside(root, "large", limit=1000)
    assert read_head_inside(root, "large", limit=10) == (b"x" * 10, 1001)
    assert len(read_inside(root, "large", limit=1001)) == 1001


def test_a_hole_of_exabytes_costs_nothing(root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    head, size = read_head_inside(root, "sparse", limit=100)
    assert (len(head), size) == (100, 1 << 42)


def test_a_root_that_is_gone_or_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(PathMissing, match="workspace itself is gone"):
        read_inside(tmp_path / "nothing", "file")
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(PathProblem):
        read_inside(tmp_path / "link", "in")


def test_resolves_what_does_not_exist_yet(root: Path) -> None:
    assert resolve_inside(root, "in-directory/new/deeper") == root / "a/new/deeper"
    assert resolve_inside(root, ".") == root
    with pytest.raises(PathMissing):
        resolve_inside(root, "new/../other")


def test_writes_replace_links_instead_of_following_them(root: Path, tmp_path: Path) -> None:
    write_inside(root, "out", b"ours", 0o640)
    assert (tmp_path / "outside/secret").read_text() == "secret"
    assert not (root / "out").is_symlink()
    assert stat.S_IMODE((root / "out").stat().st_mode) == 0o640
    write_inside(root, "in-directory/x/y/z", b"deep")
    assert (root / "a/x/y/z").read_bytes() == b"deep"


@pytest.mark.parametrize("path", ["out-directory/new", "../new", "out-directory/x/new"])
def test_writes_and_directories_never_leave_the_root(root: Path, path: str) -> None:
    with pytest.raises(PathEscape):
        write_inside(root, path, b"")
    with pytest.raises(PathEscape):
        make_directories_inside(root, path)
    assert _names(root.parent / "outside") == ["secret"]


def test_writing_needs_a_name(root: Path) -> None:
    for path in ("", ".", "a/.."):
        with pytest.raises(PathUnreadable, match="names no file"):
            write_inside(root, path, b"")


def test_what_is_made_belongs_to_the_owner_of_the_root(root: Path) -> None:
    uid = 54321 if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(root, uid, uid)
    write_inside(root, "new/file", b"")
    assert {(root / "new").stat().st_uid, (root / "new/file").stat().st_uid} == {uid}


def test_opens_directories_below_any_depth(tmp_path: Path) -> None:
    fd = root_fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=fd)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        if fd != root_fd:
            os.close(fd)
        fd = deeper
    found = open_directory(root_fd, "/".join(["d" * 200] * 60))
    try:
        assert os.fstat(found).st_ino == os.fstat(fd).st_ino
    finally:
        for one in (found, fd, root_fd):
            os.close(one)


@pytest.mark.parametrize("name", ["link", "link/deeper"])
def test_a_walk_of_directories_follows_no_link(tmp_path: Path, how: str, name: str) -> None:
    (tmp_path / "real/deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    root_fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"."):
            open_directory(root_fd, name)
        os.close(open_directory(root_fd, "real/deeper"))
    finally:
        os.close(root_fd)


def test_every_path_can_be_shown() -> None:
    assert display_path(os.fsdecode(b"\xff/a\nb\x1b[0m")) == r"\xff/a\nb\x1b[0m"
    assert display_path("grün/ü") == "grün/ü"


_part = st.sampled_from(
    ["a", "b", "file", "..", ".", "", "in-directory", "out-directory", "to-root", "up", "in", "out", "loop"]
)


@given(st.lists(_part, max_size=8), st.booleans())
def test_no_path_ever_opens_anything_outside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], walk: bool
) -> None:
    root = _shared_root(tmp_path_factory)
    relative = "/".join(parts)
    saved = openat2._libc
    openat2._libc = None if walk else saved
    try:
        fd = open_inside(root, relative)
    except PathProblem:
        return
    finally:
        openat2._libc = saved
    try:
        opened = str(Path(f"/proc/self/fd/{fd}").readlink())
    finally:
        os.close(fd)
    assert opened == str(root) or opened.startswith(f"{root}/")
    assert resolve_inside(root, relative) == Path(opened)


_roots: list[Path] = []


def _shared_root(factory: pytest.TempPathFactory) -> Path:
    if not _roots:
        base = factory.mktemp("paths").resolve()
        root = base / "root"
        (root / "a/b").mkdir(parents=True)
        (root / "a/b/file").touch()
        for name, target in {
            "in-directory": "a",
            "out-directory": "..",
            "to-root": ".",
            "in": "a/b/file",
            "out": "/",
            "loop": "loop",
            "a/up": "../a/b",
        }.items():
            (root / name).symlink_to(target)
        _roots.append(root)
    return _roots[0]
