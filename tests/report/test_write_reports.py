"""Report files are whole or not there; what stops them is a sentence."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import gate_failure, passing

from keystone_action.errors import EXIT_ERROR, OutputError
from keystone_action.report.write import write_file, write_reports
from keystone_action.scoring.document import run_from_document

FILES = ["junit.xml", "report.html", "results.json", "summary.md"]


def test_all_four_are_written_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    write_reports(passing(), directory)
    assert sorted(path.name for path in directory.iterdir()) == FILES
    assert run_from_document(json.loads((directory / "results.json").read_text())).verdict == "pass"
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o644}


def test_older_reports_are_replaced(tmp_path: Path) -> None:
    write_reports(passing(), tmp_path)
    write_reports(gate_failure(), tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["verdict"] == "fail"
    assert "failed" in (tmp_path / "summary.md").read_text()


def test_a_write_that_fails_half_way_removes_its_part_and_keeps_the_old_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "x" * 100_000
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "results.json").write_text("old")
    with pytest.raises(OutputError) as caught:
        write_file(tmp_path / "results.json", pieces(), durable=True)
    assert caught.value.exit_code == EXIT_ERROR
    assert caught.value.message == f"can't write {tmp_path / 'results.json'}: No space left on device"
    assert "free some space" in caught.value.help
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert (tmp_path / "results.json").read_text() == "old"


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match=r"can't write .*taken: File exists"):
        write_reports(passing(), tmp_path / "taken")


def test_a_directory_that_can_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    # Root writes everywhere but into /proc; everybody else is stopped by the mode.
    directory = Path("/proc/self/task")
    if os.geteuid() != 0:
        directory = tmp_path / "closed"
        directory.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="can't write") as caught:
        write_reports(passing(), directory)
    assert "--output" in caught.value.help
