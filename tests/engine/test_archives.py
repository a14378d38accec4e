"""Workspaces as archives, there and back: nothing gets lost that may come, nothing gets out that must not."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.engine import archives as docker_pack
from keystone_action.engine.archives import TooLarge, unpack
from keystone_action.errors import SandboxError
from keystone_action.files.removal import remove_tree

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=[]).filter(lambda c: not 0xD800 <= ord(c) < 0xDC80),
    min_size=1,
    max_size=60,
).filter(lambda name: name not in {".", ".."} and 0 < len(_bytes(name)) <= 200)

_SENT = 1 << 15


def _bytes(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""


def listed(directory: Path | int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def packed(root: Path) -> bytes:
    return b"".join(docker_pack.in_chunks([*docker_pack.tree(root, "some/where", os.geteuid()), docker_pack.END]))


def there_and_back(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    # The engine sends the workspace under its base name alone.
    unpack(_under("where", packed(source)), target, limit=None)


def _under(name: str, archive: bytes) -> list[bytes]:
    """The archive as the engine would name its entries, in pieces as it would send them."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as old,
        tarfile.open(fileobj=out, mode="w", encoding="utf-8", errors="surrogateescape") as new,
    ):
        for info in old:
            content = old.extractfile(info) if info.isreg() else None
            info.name = name + info.name.removeprefix("some/where")
            if info.islnk():
                info.linkname = name + info.linkname.removeprefix("some/where")
            info.pax_headers = {key: value for key, value in info.pax_headers.items() if key == "mtime"}
            new.addfile(info, content)
    whole = out.getvalue()
    return [whole[start : start + _SENT] for start in range(0, len(whole), _SENT)]


def hostile(*entries: Callable[[tarfile.TarFile], None] | tuple[str, bytes, str]) -> list[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        top = tarfile.TarInfo("where")
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(top)
        for entry in entries:
            assert isinstance(entry, tuple)
            info = tarfile.TarInfo(entry[0])
            info.type, info.linkname, info.mode = entry[1], entry[2], 0o6777
            archive.addfile(info)
    return [out.getvalue()]


def test_a_tree_survives_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plain").write_bytes(b"content")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "secret").write_text("x")
    (source / "empty").mkdir()
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "file").write_text("down")
    (source / "dangling").symlink_to("/no/such/place")
    (source / "inner").symlink_to("deep/er")
    os.link(source / "plain", source / "deep" / "same")
    os.mkfifo(source / "fifo", 0o640)
    (source / "new\nline 'quoted' \x1b").write_text("odd")
    Path(os.fsdecode(os.fsencode(source) + b"/not-\xff-text")).write_text("bytes")
    (source / ("n" * 255)).write_text("long")
    os.utime(source / "plain", ns=(1_700_000_000_123_456_789,) * 2)
    (source / "secret").chmod(0)
    (source / "empty").chmod(0)
    there_and_back(source, tmp_path / "target")
    target = tmp_path / "target"
    assert (target / "plain").read_bytes() == b"content"
    assert (target / "plain").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert (target / "plain").stat().st_ino == (target / "deep" / "same").stat().st_ino
    assert (target / "dangling").readlink() == Path("/no/such/place")
    assert stat.S_ISFIFO((target / "fifo").lstat().st_mode)
    assert listed(target) == listed(source)
    for entry in os.scandir(source):
        mode = entry.stat(follow_symlinks=False).st_mode
        assert os.lstat(target / entry.name).st_mode == mode, entry.name
    assert (target / "inner" / "file").read_text() == "down"


@given(st.sets(NAMES, max_size=8))
def test_any_name_survives(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    base = tmp_path_factory.mktemp("names")
    source = base / "source"
    source.mkdir()
    for name in names:
        Path(os.fsdecode(os.fsencode(source) + b"/" + _bytes(name))).write_bytes(_bytes(name))
    there_and_back(source, base / "target")
    found = {os.fsencode(entry.name): Path(entry.path).read_bytes() for entry in os.scandir(base / "target")}
    assert found == {_bytes(name): _bytes(name) for name in names}


def test_what_was_there_before_is_gone(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "a").write_text("new")
    (target / "old" / "folder").mkdir(parents=True)
    (target / "a").write_text("old")
    (target / "old" / "folder").chmod(0)
    there_and_back(source, target)
    assert listed(target) == ["a"]
    assert (target / "a").read_text() == "new"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A directory for trees so deep that pytest's own clean-up can't remove them, and would say so in every later
    run."""
    try:
        yield tmp_path
    finally:
        for tree in tmp_path.iterdir():
            remove_tree(tree)


@pytest.mark.slow
def test_a_thousand_levels_survive(deep: Path) -> None:
    source = deep / "source"
    source.mkdir()
    fd = os.open(source, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("level", dir_fd=fd)
        deeper = os.open("level", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    there_and_back(source, deep / "target")
    levels = 0
    fd = os.open(deep / "target", os.O_RDONLY)
    while listed(fd):
        deeper = os.open("level", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
        levels += 1
    os.close(fd)
    assert levels == 1000


@pytest.mark.parametrize("name", ["where/../../outside", "where/a/../../../outside"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "inner" / "target"
    target.mkdir(parents=True)
    with pytest.raises(SandboxError, match="impossible name"):
        unpack(hostile((name, tarfile.REGTYPE, "")), target, limit=None)
    assert listed(tmp_path) == ["inner"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    entries = [("where/out", tarfile.SYMTYPE, str(outside)), ("where/out/file", tarfile.REGTYPE, "")]
    with pytest.raises(OSError):
        unpack(hostile(*entries), target, limit=None)
    assert listed(outside) == []


def test_nothing_outside_is_linked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "secret").write_text("x")
    with pytest.raises(SandboxError, match="impossible name"):
        unpack(hostile(("where/got", tarfile.LNKTYPE, "where/../secret")), target, limit=None)
    assert listed(target) == []


def test_devices_and_the_rights_of_others_stay_out(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    unpack(hostile(("where/device", tarfile.CHRTYPE, ""), ("where/program", tarfile.REGTYPE, "")), target, limit=None)
    assert listed(target) == ["program"]
    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o777


def test_more_than_allowed_does_not_come_in(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "large").write_bytes(b"x" * 300_000)
    with pytest.raises(TooLarge):
        unpack(_under("where", packed(source)), target, limit=200_000)


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    with (source / "hole").open("wb") as file:
        file.truncate(50 << 20)
    there_and_back(source, target)
    status = (target / "hole").stat()
    assert status.st_size == 50 << 20
    assert status.st_blocks * 512 < 1 << 20


def test_a_broken_archive_is_said(tmp_path: Path) -> None:
    pieces: Iterable[bytes] = [b"no archive at all" * 100]
    with pytest.raises(SandboxError, match="can't be read"):
        unpack(pieces, tmp_path, limit=None)


def test_a_workspace_of_another_user_stays_theirs(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_text("x")
    owner = (61_999, 61_998) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(target, *owner)
    there_and_back(source, target)
    status = (target / "file").stat()
    assert (status.st_uid, status.st_gid) == owner
