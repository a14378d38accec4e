"""Copying the author's tree in: links, modes, special files, withheld paths, holes."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from keystone_action.errors import HarnessError
from keystone_action.files import copies as copying
from keystone_action.files.workspace import CopyReport, copy_tree, keep_originals, remove_tree


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "src/empty").mkdir(parents=True)
    (source / "src/main.py").write_text("print(1)\n")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    return source


def test_contents_modes_and_times_are_kept(source: Path, tmp_path: Path) -> None:
    (source / "run.sh").chmod(0o4751)
    os.utime(source / "run.sh", (1_000_000_000, 1_000_000_000))
    (source / "src").chmod(0o750)
    report = copy_tree(source, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert report == CopyReport(files=2)
    assert report.notices == ()
    assert (copy / "src/main.py").read_text() == "print(1)\n"
    assert (copy / "src/empty").is_dir()
    status = (copy / "run.sh").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o751, 1_000_000_000)  # set-user-id is not handed on
    assert stat.S_IMODE((copy / "src").stat().st_mode) == 0o750


def test_an_empty_directory_becomes_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    assert copy_tree(tmp_path / "source", tmp_path / "a/b/copy") == CopyReport()
    assert _names(tmp_path / "a/b/copy") == []


def test_read_only_directories_are_filled_before_they_are_closed(source: Path, tmp_path: Path) -> None:
    (source / "closed/inner").mkdir(parents=True)
    (source / "closed/inner/file").touch()
    (source / "closed/inner").chmod(0o555)
    (source / "closed").chmod(0o555)
    copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/closed/inner/file").exists()
    assert stat.S_IMODE((tmp_path / "copy/closed/inner").stat().st_mode) == 0o555
    for tree in (source, tmp_path / "copy"):
        remove_tree(tree)


def test_links_stay_links_and_those_that_lead_out_are_reported(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    (source / "inside").symlink_to("src/main.py")
    (source / "src/absolute").symlink_to(source / "run.sh")
    (source / "outside").symlink_to("../secret")
    (source / "system").symlink_to("/etc/hostname")
    (source / "dangling").symlink_to("nowhere")
    report = copy_tree(source, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert report.outside_links == ("outside", "system")
    assert "outside, system" in report.notices[0]
    assert str((copy / "outside").readlink()) == "../secret"
    assert str((copy / "dangling").readlink()) == "nowhere"
    # An absolute link into the source leads into the copy.
    assert str((copy / "src/absolute").readlink()) == "../run.sh"
    assert (copy / "src/absolute").read_text() == "#!/bin/sh\n"


def test_special_files_are_skipped_and_reported(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(source / "fifo")
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        report = copy_tree(source, tmp_path / "copy")
    assert report.special == ("fifo", "socket")
    assert "fifo, socket" in report.notices[0]


def test_withheld_files_and_directories_are_left_out(source: Path, tmp_path: Path) -> None:
    (source / "hidden/deep").mkdir(parents=True)
    (source / "hidden/deep/expected.txt").touch()
    (source / "src/check.py").touch()
    os.link(source / "src/check.py", source / "src/second-name.py")
    withheld = [source / "hidden", source / "src/check.py", tmp_path / "elsewhere/rubric.md"]
    report = copy_tree(source, tmp_path / "copy", withheld=withheld)
    assert report.withheld == ("hidden", "src/check.py", "src/second-name.py")
    assert _names(tmp_path / "copy") == ["run.sh", "src"]
    assert _names(tmp_path / "copy/src") == ["empty", "main.py"]


def test_withheld_paths_are_found_through_links_to_the_source(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    report = copy_tree(tmp_path / "alias", tmp_path / "copy", withheld=[tmp_path / "alias/src/main.py"])
    assert report.withheld == ("src/main.py",)


def test_a_source_that_is_withheld_as_a_whole_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="must not see"):
        copy_tree(source / "src", tmp_path / "copy", withheld=[source])


def test_names_to_ignore_at_any_depth(source: Path, tmp_path: Path) -> None:
    (source / "src/node_modules/x").mkdir(parents=True)
    (source / "node_modules").mkdir()
    copy_tree(source, tmp_path / "copy", ignore=["node_modules"])
    assert _names(tmp_path / "copy") == ["run.sh", "src"]
    assert "node_modules" not in _names(tmp_path / "copy/src")


def test_a_copy_into_itself_ends(source: Path) -> None:
    copy_tree(source, source / "results/copy")
    assert not (source / "results/copy/results/copy").exists()
    assert (source / "results/copy/run.sh").exists()


def test_names_that_are_no_text_survive(source: Path, tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"  ", b"-rf"):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(name)
    copy_tree(source, tmp_path / "copy")
    assert Path(os.fsdecode(os.fsencode(tmp_path / "copy") + b"/\xff\xfe")).read_bytes() == b"\xff\xfe"
    assert (tmp_path / "copy/new\nline").exists()


@pytest.mark.parametrize("copy_range", ["kernel", "reading"])
def test_large_and_sparse_files(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_range: str) -> None:
    if copy_range == "reading":
        monkeypatch.delattr(os, "copy_file_range")
    data = os.urandom(3_000_001)
    (source / "large").write_bytes(data)
    with (source / "sparse").open("wb") as file:
        file.write(b"start")
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"middle")
    copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/large").read_bytes() == data
    copied = (tmp_path / "copy/sparse").stat()
    assert copied.st_size == 1 << 40
    assert copied.st_blocks * 512 < 1 << 20
    with (tmp_path / "copy/sparse").open("rb") as file:
        assert file.read(6) == b"start\0"
        file.seek(1 << 39)
        assert file.read(7) == b"middle\0"


def test_reflinks_are_used_where_the_filesystem_has_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned = []

    def clone(reader: int, writer: int) -> None:
        cloned.append(reader)
        os.pwrite(writer, b"cloned", 0)

    monkeypatch.setattr(copying, "_clone", clone)
    copy_tree(source, tmp_path / "copy")
    assert len(cloned) == 2
    assert (tmp_path / "copy/run.sh").read_bytes() == b"cloned"


def test_failures_are_sentences(source: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"nothing can't be copied: No such file"):
        copy_tree(tmp_path / "nothing", tmp_path / "copy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/run.sh").touch()
    with pytest.raises(HarnessError, match=r"can't be copied: File exists .*run\.sh"):
        copy_tree(source, tmp_path / "full")
    if os.geteuid() != 0:
        (source / "run.sh").chmod(0)
        with pytest.raises(HarnessError, match=r"no permission to read run\.sh"):
            copy_tree(source, tmp_path / "unreadable")


def test_originals_are_kept_only_when_there_are_any(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert keep_originals(tmp_path / "empty", tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    (source / ".git").mkdir()
    kept = keep_originals(source, tmp_path / "kept")
    assert kept == tmp_path / "kept"
    assert _names(tmp_path / "kept") == ["run.sh", "src"]
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
