"""A tree in an archive, and back: what an agent may leave is kept or named, and an archive that is not of our making is
refused before anything is written."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from keystone_action.evidence import tree_archive
from keystone_action.evidence.tree_archive import read_tree, write_tree
from keystone_action.files.snapshot import snapshot


def test_a_tree_keeps_modes_names_links_and_depth(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    deep = workspace
    for _ in range(30):
        deep = deep / ("d" * 200)
    (workspace / "closed").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(workspace) + b"/caf\xe9")).mkdir()
    (workspace / "closed" / "run.sh").write_text("echo\n")
    (workspace / "closed" / "run.sh").chmod(0o750)
    (workspace / "closed").chmod(0o555)
    (workspace / "inside").symlink_to("closed/../closed/run.sh")
    (workspace / "dangles").symlink_to("nowhere/at/all")
    folder = os.open(workspace, os.O_RDONLY)
    for part in deep.relative_to(workspace).parts:
        os.mkdir(part, dir_fd=folder)
        below = os.open(part, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    assert write_tree(workspace, tmp_path / "tree.tar.gz") == []
    read_tree(tmp_path / "tree.tar.gz", tmp_path / "read")
    assert dict(snapshot(tmp_path / "read")) == dict(snapshot(workspace))
    for tree in (workspace, tmp_path / "read"):
        (tree / "closed").chmod(0o755)


def test_what_is_no_part_of_a_tree_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_archive, "MOST_BYTES", 5)
    workspace = tmp_path / "workspace"
    (workspace / "d").mkdir(parents=True)
    (workspace / "out").symlink_to("/etc/passwd")
    (workspace / "d" / "up").symlink_to("..")
    (workspace / "by-another").symlink_to("d/up/../outside")
    (workspace / "loop").symlink_to("loop")
    os.mkfifo(workspace / "fifo")
    (workspace / "large").write_bytes(b"123456")
    archive = tmp_path / "tree.tar.gz"
    assert sorted(write_tree(workspace, archive)) == [
        "a link that leads out: by-another",
        "a link that leads out: out",
        "a socket, FIFO or device: fifo",
        "too large: large (6 bytes)",
    ]
    monkeypatch.undo()
    read_tree(archive, tmp_path / "read")
    assert {path.name for path in (tmp_path / "read").rglob("*")} == {"d", "up", "loop"}


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, target, size, 0o755
    for field, value in fields.items():
        setattr(info, field, value)
    return info


FOLDER = member("d", tarfile.DIRTYPE)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        pytest.param([member("/tmp/planted")], "path leads elsewhere", id="an absolute path"),
        pytest.param([member("../planted")], "path leads elsewhere", id="a path upwards"),
        pytest.param([FOLDER, member("d/../../planted")], "path leads elsewhere", id="a path upwards below a folder"),
        pytest.param([member("a", tarfile.SYMTYPE, "/etc/passwd")], "a link that leads out", id="an absolute link"),
        pytest.param([FOLDER, member("d/a", tarfile.SYMTYPE, "../../x")], "a link that leads out", id="a link upwards"),
        pytest.param(
            [FOLDER, member("d/up", tarfile.SYMTYPE, ".."), member("a", tarfile.SYMTYPE, "d/up/../x")],
            "a link that leads out",
            id="a link upwards by another",
        ),
        pytest.param(
            [member("a", tarfile.SYMTYPE, "d"), member("a/x")], "below what is not a folder", id="a file below a link"
        ),
        pytest.param([member("a/x")], "below what is not a folder", id="a file below nothing"),
        pytest.param([member("a"), member("a")], "an entry twice", id="a file twice"),
        pytest.param(
            [member("a"), member("b", tarfile.LNKTYPE, "a")], "neither file, folder nor link", id="a hard link"
        ),
        pytest.param(
            [member("a", tarfile.CHRTYPE, devmajor=1, devminor=3)], "neither file, folder nor link", id="a device"
        ),
        pytest.param([member("a", tarfile.FIFOTYPE)], "neither file, folder nor link", id="a FIFO"),
        pytest.param([member("a", tarfile.SYMTYPE)], "no system could make", id="a link without a target"),
        pytest.param([member("a", mtime=-5)], "no size or time", id="a time before all"),
    ],
)
def test_a_hostile_archive_is_refused_before_anything_is_written(
    entries: list[tarfile.TarInfo], said: str, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "tree.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for info in entries:
            tar.addfile(info)
    assert_refused(tmp_path, said)


def assert_refused(place: Path, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tree(place / "tree.tar.gz", place / "read")
    assert not (place / "read").exists()


def test_an_archive_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_archive, "MOST_BYTES", 1 << 20)
    with tarfile.open(tmp_path / "tree.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(member("zeros", size=2 << 20), io.BytesIO(bytes(2 << 20)))
    assert_refused(tmp_path, "more than 1,048,576 bytes")


def test_a_name_without_end_is_refused(tmp_path: Path) -> None:
    info = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 30)
    (tmp_path / "tree.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
    assert_refused(tmp_path, "a name that is too long")
