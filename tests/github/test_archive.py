"""Zips of artifacts, which a fork's run may have made: what is unpacked, and all that is refused."""

from __future__ import annotations

import io
import stat
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.github_state import zipped

from keystone_action.github.api.errors import BadArchive
from keystone_action.github.baseline import ArchiveLimits, unpack_artifact


def archive(*entries: tuple[str, bytes], mode: int = 0, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of entries in this order, with names as they are given, and a Unix mode."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, content in entries:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.compress_type = method
            info.external_attr = mode << 16
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about names that are in it twice
                made.writestr(info, content)
    return target.getvalue()


def refused(content: bytes, folder: Path, words: str, **more) -> None:
    """The archive is refused, and leaves nothing."""
    with pytest.raises(BadArchive, match=words):
        unpack_artifact(content, folder / "out", **more)
    assert list(folder.iterdir()) == []


def test_files_and_folders_are_unpacked(tmp_path):
    files = {"results.json": '{"a": 1}', "cells/one/agent.stdout": "hello", "cells/ünï ☃.txt": "", "big": "x" * 10**6}
    content = zipped(files)
    written = unpack_artifact(content, tmp_path / "deep" / "out")
    assert {str(path.relative_to(tmp_path / "deep" / "out")): path.read_text() for path in written} == files
    assert {stat.S_IMODE(path.stat().st_mode) & ~0o644 for path in written} == {0}


def test_entries_of_folders_are_no_files(tmp_path):
    written = unpack_artifact(archive(("a/", b""), ("a/b", b"1"), ("c/", b"")), tmp_path / "out")
    assert [path.name for path in written] == ["b"]


def test_only_what_is_wanted_is_unpacked_and_counted(tmp_path):
    content = zipped({"results.json": "{}", "cells/log": "x" * 5000, "more": "y" * 5000})
    limits = ArchiveLimits(files=1, size=10)
    written = unpack_artifact(content, tmp_path / "out", wanted=lambda name: name == "results.json", limits=limits)
    assert [path.read_text() for path in written] == ["{}"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


LEADS_OUT = [
    "/etc/x",
    "../x",
    "a/../../x",
    "a/..",
    "./x",
    "a/./b",
    "a//b",
    "\\x",
    "..\\x",
    "a\\b",
    "C:x",
    "c:/x",
    "//x",
]


@pytest.mark.parametrize("name", LEADS_OUT)
@pytest.mark.parametrize("place", [0, 1])
def test_names_that_lead_out_refuse_the_whole(name, place, tmp_path):
    entries = [("good", b"1"), ("also good", b"2")]
    entries.insert(place, (name, b"evil"))
    refused(archive(*entries), tmp_path, "leads out of the folder")
    refused(archive(*entries), tmp_path, "leads out of the folder", wanted=lambda name: name == "good")


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[31m", "x\u202ecod.exe", "x" * 256, "/".join("a" * 40), "d/" * 33 + "x"]
)
def test_names_that_no_file_should_have_are_refused(name, tmp_path):
    refused(archive((name, b"1")), tmp_path, "is not a name for a file")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR])
def test_links_and_special_files_are_refused(kind, tmp_path):
    refused(archive(("x", b"/etc/passwd"), mode=kind | 0o777), tmp_path, "is a link or another special file")


def test_modes_are_ours_to_choose(tmp_path):
    (written,) = unpack_artifact(archive(("x", b"#!/bin/sh"), mode=stat.S_IFREG | 0o6777), tmp_path / "out")
    assert not written.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | 0o111)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("x", b"1"), ("x", b"2")], "twice"),
        ([("x", b"1"), ("x/y", b"2")], "a file and a folder"),
        ([("x/y/z", b"1"), ("x/y", b"2")], "a file and a folder"),
        ([("x/", b""), ("x", b"2")], "a file and a folder"),
    ],
)
def test_names_that_exclude_each_other_are_refused(entries, words, tmp_path):
    refused(archive(*entries), tmp_path, words)


def test_more_files_or_bytes_than_agreed_are_refused(tmp_path):
    content = zipped({str(number): "12345" for number in range(10)})
    assert len(unpack_artifact(content, tmp_path / "fits", limits=ArchiveLimits(files=10, size=50))) == 10
    with pytest.raises(BadArchive, match="10 files, more than 9"):
        unpack_artifact(content, tmp_path / "many", limits=ArchiveLimits(files=9, size=50))
    with pytest.raises(BadArchive, match="more than 49 bytes"):
        unpack_artifact(content, tmp_path / "large", limits=ArchiveLimits(files=10, size=49))
    assert [path.name for path in tmp_path.iterdir()] == ["fits"]


@pytest.mark.slow
def test_a_bomb_is_refused_by_what_it_says(tmp_path):
    refused(archive(("bomb", b"\0" * 300 * 1024 * 1024)), tmp_path, "holds more than 268435456 bytes")


def test_a_bomb_that_lies_about_its_size_is_refused_by_what_it_holds(tmp_path):
    body = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = body.compress(b"\0" * 50_000_000) + body.flush()
    name, said = b"bomb", 10
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(data), said, len(name), 0) + name
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(data), said, len(name), 0, 0, 0, 0, 0, 0)
    central += name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local) + len(data), 0)
    refused(local + data + central + end, tmp_path, "broken|larger than it says", limits=ArchiveLimits(size=1000))


def test_a_list_of_files_without_end_is_not_read(tmp_path):
    name = b"x" * 60_000
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 200, 200, 200 * len(entry), 0, 0)
    refused(entry * 200 + end, tmp_path, "list of files is larger")


def test_encrypted_and_unusual_entries_are_refused(tmp_path):
    refused(archive(("x", b"1"), method=zipfile.ZIP_BZIP2), tmp_path, "unusual way")
    refused(archive(("x", b"1"), method=zipfile.ZIP_LZMA), tmp_path, "unusual way")
    content = bytearray(zipped({"x": "secret"}))
    for marker, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        content[content.index(marker) + offset] |= 1
    refused(bytes(content), tmp_path, "encrypted")


def test_what_is_damaged_leaves_nothing(tmp_path):
    content = bytearray(archive(("a", b"1" * 100), ("b", b"2" * 100), method=zipfile.ZIP_STORED))
    content[content.index(b"2" * 100)] ^= 0xFF
    refused(bytes(content), tmp_path, "broken")


def test_a_folder_that_is_there_is_never_written_to(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").touch()
    for name in ("outside", "link", "file"):
        with pytest.raises(BadArchive, match="can't be unpacked"):
            unpack_artifact(zipped({"x": "1"}), tmp_path / name)
    assert list(outside.iterdir()) == []
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\5\6" + b"\0" * 18, b"<html>", b"\xde\xad\xbe\xef" * 700, b"PK\5\6" + b"\xff" * 18]
)
def test_what_is_no_zip_is_said(content, tmp_path):
    if content == b"PK\5\6" + b"\0" * 18:
        assert unpack_artifact(content, tmp_path / "out") == []
    else:
        refused(content, tmp_path, "broken")


@given(st.data())
def test_damage_anywhere_is_refused_or_harmless(tmp_path_factory, data):
    content = bytearray(zipped({"results.json": "{}" * 50, "cells/a": "text", "cells/b/c": "x" * 300}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    folder = tmp_path_factory.mktemp("damaged")
    before = set(folder.parent.iterdir())
    try:
        written = unpack_artifact(bytes(content), folder / "out")
    except BadArchive:
        assert list(folder.iterdir()) == []
    else:
        assert all(path.is_relative_to(folder / "out") and path.is_file() for path in written)
    assert set(folder.parent.iterdir()) == before
