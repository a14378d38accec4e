"""What a call does with its three streams: closed, full, without a reader, in another encoding."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, keystone, run_spec, server, spec

from keystone_action.cli.main import main

FAILING = spec(check="{type: file_exists, path: missing.txt}")
BY_CODE = {0: spec(), 1: FAILING, 2: "version: 7"}
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash in which $K is the command."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=directory,
        env={**ENVIRONMENT, "K": f"{sys.executable} -m keystone_action"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("closed", "code"), [(">&-", 1), (">&-", 2), ("<&- >&- 2>&-", 0), ("<&- >&- 2>&-", 1), ("<&- >&- 2>&-", 2)]
)
def test_a_closed_stream_changes_no_exit_code(tmp_path, closed, code):
    (tmp_path / "keystone.yaml").write_text(BY_CODE[code])
    done = shell(f"$K run keystone.yaml --output out {closed}", tmp_path)
    assert done.returncode == code, done.stderr
    if code != 2:
        assert json.loads((tmp_path / "out" / "results.json").read_text())["verdict"] == ("fail" if code else "pass")


@dataclass(frozen=True)
class Ended:
    """A call whose streams a test has chosen. out, err: what they hold, where they are files."""

    code: int
    out: str
    err: str


def forked(directory: Path, words: str, *, out: int | None = None, err: int | None = None) -> Ended:
    """`keystone WORDS…` by a process that has imported it. out, err: open files; None = one of its own, to be read."""
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        files = (first.fileno() if out is None else out, second.fileno() if err is None else err)
        code = server().start(words.split(), directory, ENVIRONMENT, *files).wait(120)
        printed = [os.pread(file.fileno(), 1 << 20, 0).decode() for file in (first, second)]
    return Ended(code, *printed)


@contextlib.contextmanager
def full_disk() -> Iterator[int]:
    file = os.open("/dev/full", os.O_WRONLY)
    yield file
    os.close(file)


@contextlib.contextmanager
def nobody_reads() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("kind", ["plain", "json", "rich"])
def test_a_reader_that_left_changes_no_verdict(tmp_path, kind):
    (tmp_path / "keystone.yaml").write_text(FAILING)
    with nobody_reads() as gone:
        done = forked(tmp_path, f"run keystone.yaml --format {kind}", out=gone)
    assert done.code == 1, done.err
    assert "error" not in done.err.lower()


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        *((full_disk, code) for code in BY_CODE),
        *((nobody_reads, code) for code in (1, 2)),
        (None, 1),
    ],
)
def test_a_stderr_that_takes_nothing_changes_no_exit_code(tmp_path, broken, code):
    (tmp_path / "keystone.yaml").write_text(BY_CODE[code])
    with contextlib.nullcontext() if broken is None else broken() as err:
        done = forked(tmp_path, "run keystone.yaml --output out", err=err)
    assert done.code == code
    assert_told(tmp_path, code, done.out)


@pytest.mark.parametrize("code", BY_CODE)
def test_a_closed_stderr_changes_no_exit_code(tmp_path, code):
    (tmp_path / "keystone.yaml").write_text(BY_CODE[code])
    done = shell("$K run keystone.yaml --output out 2>&- ", tmp_path)
    assert done.returncode == code
    assert_told(tmp_path, code, done.stdout)


def assert_told(directory: Path, code: int, out: str) -> None:
    if code != 2:
        assert json.loads((directory / "out" / "results.json").read_text())["verdict"] == ("fail" if code else "pass")
        assert out.startswith("fail " if code else "pass ")


def test_a_full_pipe_that_does_not_block_loses_progress_and_nothing_else(tmp_path):
    (tmp_path / "keystone.yaml").write_text(FAILING)
    read, write = full_pipe()
    try:
        done = forked(tmp_path, "run keystone.yaml --output out", err=write)
        assert done.code == 1
        assert done.out.startswith("fail ")
    finally:
        os.close(read)
        os.close(write)


def test_a_report_into_a_pipe_that_does_not_block_is_whole(tmp_path):
    """Longer than the pipe, whose reader begins late: every piece of it waits."""
    read, write = full_pipe()
    with ThreadPoolExecutor() as pool:
        printed = pool.submit(forked, tmp_path, "schema", out=write)
        wait([printed], 5)  # what does not wait for its reader has ended by then
        reading = pool.submit(Path(f"/proc/self/fd/{read}").read_bytes)
        done = printed.result()
        os.close(write)
        text = reading.result().lstrip(b"x")
    os.close(read)
    assert (done.code, done.err) == (0, "")
    assert json.loads(text)["type"] == "object"


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no further byte, and says so instead of blocking."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, b"x" * 4096):
            pass
    return read, write


@pytest.mark.parametrize("words", ["run keystone.yaml", "run keystone.yaml --format json", "schema", "doctor"])
def test_a_full_disk_behind_stdout_is_a_sentence(tmp_path, words):
    (tmp_path / "keystone.yaml").write_text(spec())
    with full_disk() as out:
        done = forked(tmp_path, words, out=out)
    assert done.code == 3
    assert "standard output can't be written" in done.err
    assert "internal error" not in done.err
    assert "Exception ignored" not in done.err


def test_a_log_of_both_streams_has_each_cell_once(tmp_path):
    (tmp_path / "keystone.yaml").write_text(FAILING)
    with (tmp_path / "log").open("wb") as file:
        forked(tmp_path, "run keystone.yaml --replicas 3", out=file.fileno(), err=file.fileno())
    log = (tmp_path / "log").read_text().splitlines()
    assert sum(line.startswith("fail ") for line in log) == 3
    assert not [line for line in log if line.startswith("[")]
    assert log[-2].startswith("Keystone: small failed in 3 of 3 cells: ")
    assert log[-1].startswith("report: .keystone/runs/")


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_question_marks_and_documents_stay_whole(tmp_path):
    called = run_spec(tmp_path, spec(), "--format", "rich", environ=ASCII)
    assert called.code == 0, called.err
    assert "passed: 1 of 1 check ? composite 1.00, needs 1.00" in called.out
    for kind, expected in (("md", "✅"), ("html", "✓"), ("json", '"verdict": "pass"')):
        assert expected in keystone("report", "out", "--format", kind, directory=tmp_path, environ=ASCII).out
    schema = json.loads(keystone("schema", directory=tmp_path, environ=ASCII).out)
    assert schema["description"].startswith("What an agent is asked to do")


def test_what_is_wrong_with_specs_starts_each_line_with_its_place(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "keystone.yaml").write_text("version: 7")
    called = keystone("validate", ".", directory=tmp_path)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith("a/keystone.yaml:1:1: ")
    assert called.err.splitlines()[-1].endswith("errors in 1 spec")
    assert str(tmp_path) not in called.err


def test_a_report_is_found_by_its_folder_or_its_file_and_nothing_else_is_one(tmp_path):
    assert run_spec(tmp_path, spec()).code == 0
    by_file = keystone("report", "out/results.json", directory=tmp_path)
    assert (by_file.code, by_file.out) == (0, keystone("report", "out", directory=tmp_path).out)
    for text in ("[]", "{", '"x"', "[" * 100_000):
        (tmp_path / "results.json").write_text(text)
        called = keystone("report", ".", directory=tmp_path)
        assert (called.code, "name the folder of a finished run" in called.err) == (2, True), text[:9]


def test_a_summary_that_is_a_directory_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "there").mkdir()
    called = run_spec(tmp_path, spec(), "--summary", "there")
    assert called.code == 2
    assert "name a file: there/summary.md" in called.err
    assert not called.output.exists()


def test_a_newcomer_is_told_how_to_begin(tmp_path):
    called = keystone(directory=tmp_path)
    assert called.code == 2
    assert "keystone init first" in called.err
    assert called.out == ""
    assert [
        word for word in ("init", "validate", "run", "report", "doctor") if f"keystone {word}" not in called.err
    ] == []
    assert "did you mean `keystone run`?" in keystone("runn", directory=tmp_path).err


def test_no_directory_for_temporary_files_is_not_told_of_stdout(tmp_path, monkeypatch, capsys):
    (tmp_path / "keystone.yaml").write_text(spec())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    assert main(["run", "keystone.yaml", "--output", "out"]) == 3
    said = capsys.readouterr().err
    assert "standard output" not in said
    assert "TMPDIR names the directory for temporary files" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "no file descriptor is left"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "process"),
        (OSError(errno.ENOSPC, "No space left on device"), "standard output can't be written"),
        (OSError(errno.EACCES, "Permission denied", "/tmp/x"), "/tmp/x can't be written or read: Permission denied"),
    ],
)
def test_what_the_system_refused_is_told(error, said, monkeypatch, capsys):
    def refused(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr("keystone_action.cli.commands.command_schema", refused)
    assert main(["schema"]) == 3
    assert said in capsys.readouterr().err
