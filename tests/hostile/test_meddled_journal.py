"""A journal that somebody meddles with is never believed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, keystone
from support.resumed_runs import OTHER, change_cell, lines, project, run

__all__ = ["project"]

FORGED = [
    ({"composite": 2}, "composite 2.0 of suite.r0"),
    ({"composite": 0.9}, "the composite 0.9 of suite.r0 is not what its checks come to"),
    ({"composite": None}, "verdict pass of suite.r0 with the composite None"),
    ({"invariants": []}, "is not what its checks come to"),
    ({"usage": {"cost_usd": 1e300}}, "out of the range"),
]


@hostile("resume", "a journal that is edited", held_by="the rules that results are written by")
@pytest.mark.parametrize(("change", "said"), FORGED)
def test_a_cell_that_no_run_of_ours_writes_is_not_believed(project: Path, change: dict[str, object], said: str) -> None:
    change_cell(project, **change)
    resumed = run(project, "--resume", "out")
    assert (resumed.code, "journal.jsonl:2 is damaged" in resumed.err) == (2, True), resumed.err
    assert said in resumed.err


@hostile("resume", "a verdict that is edited", held_by="graded again from the checks")
def test_a_verdict_that_the_checks_do_not_come_to_is_not_believed(tmp_path: Path) -> None:
    text = OTHER.replace("file_absent", "file_exists")
    (tmp_path / "keystone.yaml").write_text(text)
    assert run(tmp_path, "--output", "out").code == 1
    assert run(tmp_path, "--resume", "out").code == 1
    change_cell(tmp_path, verdict="pass")
    forged = run(tmp_path, "--resume", "out")
    assert (forged.code, "which its checks do not come to" in forged.err) == (2, True), forged.err


@hostile("resume", "a line of another spec", held_by="the digest in each line")
def test_a_cell_of_another_spec_is_told_as_that(project: Path) -> None:
    change_cell(project, sha256="0" * 64)
    forged = run(project, "--resume", "out")
    assert forged.code == 2, forged.err
    assert "the line of suite.r0 is of a spec with the sha256 000000000000…, and " in forged.err
    assert "said to have passed" not in forged.err


@honest("resume", "a line of another spec")
def test_the_lines_of_this_spec_are_believed(project: Path) -> None:
    resumed = run(project, "--resume", "out")
    assert (resumed.code, resumed.document["counts"]["passed"]) == (0, 3), resumed.err


@hostile("resume", "a journal of no known run", held_by="its first line")
def test_a_journal_without_an_identity_is_not_believed(project: Path) -> None:
    path = project / "out" / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    refused = run(project, "--resume", "out")
    assert (refused.code, "does not begin with the run's identity" in refused.err) == (2, True), refused.err


def test_an_empty_journal_is_a_run_that_never_began(project: Path) -> None:
    (project / "out" / "journal.jsonl").write_bytes(b"")
    resumed = run(project, "--resume", "out")
    assert (resumed.code, resumed.document["counts"]["passed"]) == (0, 3), resumed.err
    assert "identity" in lines(project)[0]


WAITING = """\
version: 1
id: waits
task: {prompt: x}
agent: {type: command, command: "[ {{ cell.replica }} = 0 ] || sleep SECONDS; touch out.txt"}
parallelism: {replicas: 2, max_concurrency: 1}
invariants: {a: {check: {type: file_exists, path: out.txt}}}
"""


def waiting(directory: Path, meddle: Callable[[Path], object]) -> tuple[int, str]:
    """A run whose second agent sleeps until `meddle` had the journal: its exit code and what it said."""
    seconds = str(1_000_000_000 + os.getpid())
    (directory / "keystone.yaml").write_text(WAITING.replace("SECONDS", seconds))
    process = subprocess.Popen(
        [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while not (asleep := sleepers(seconds)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the second cell did not begin"
            time.sleep(0.05)
        meddle(directory / "out" / "journal.jsonl")
        for pid in asleep:
            os.kill(pid, signal.SIGTERM)
        said = process.communicate(timeout=120)[1].decode()
        return process.returncode, said
    finally:
        process.kill()
        process.communicate()


def sleepers(seconds: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@hostile("journal", "removed, cut or replaced by a FIFO while the run goes on", held_by="looked at after each cell")
@pytest.mark.parametrize(
    ("meddle", "how"),
    [(Path.unlink, "removed"), (lambda path: os.truncate(path, 100), "cut"), (replace_by_fifo, "replaced")],
)
def test_a_journal_that_is_meddled_with_is_never_believed(
    tmp_path: Path, meddle: Callable[[Path], object], how: str
) -> None:
    code, said = waiting(tmp_path, meddle)
    assert (code, f"journal.jsonl was {how} while the run went on" in said) == (3, True), said
    assert keystone("merge", "out", "--output", "joined", directory=tmp_path).code in (2, 3)


@honest("journal", "removed, cut or replaced by a FIFO while the run goes on")
def test_a_journal_that_is_read_meanwhile_is_believed(tmp_path: Path) -> None:
    code, said = waiting(tmp_path, Path.read_bytes)
    assert code == 0, said
    assert keystone("merge", "out", "--output", "joined", directory=tmp_path).code == 0
