"""What breaks beneath a run, and at which stage: the verdict is never a failed agent's, and nothing stays behind.

`make faults` prints these as one table.
"""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.broken_runs import BrokenRun, Stage, fill
from support.fault_table import FAULT
from support.hostile import AS_ROOT, area
from support.mounts import small_disk
from support.started_as import cap_on_processes

__all__ = ["area"]

NEEDS_ROOT = pytest.mark.skipif(not AS_ROOT, reason="mounting a small file system needs root")
STAGES: tuple[Stage, ...] = ("setup", "agent", "checks")


@dataclass
class Told:
    """Ends a run, records the row of the table and holds it to what is expected."""

    record: Callable[[str, object], None]
    broken: str

    def ended(
        self, run: BrokenRun, verdict: str, code: int, *said: str, left: tuple[str, ...] = (), or_passes: bool = False
    ) -> None:
        """said: words that its streams must have; left: what may stay behind; or_passes: where what broke may not have
        been needed any more."""
        found = run.end()
        behind = run.left_behind(left)
        row = {
            "broken": self.broken,
            "stage": run.stage,
            "verdict": run.verdict(),
            "code": found,
            "said": said[0] if said else "",
            "left": ", ".join(behind) or "nothing",
        }
        self.record(FAULT, row)
        text = run.said()
        assert (row["verdict"], found) in [(verdict, code), *([("pass", 0)] if or_passes else [])], text
        for words in said:
            assert words in text
        assert [one for one in behind if one not in left] == []
        assert "Traceback" not in text


@pytest.fixture
def told(record_property: Callable[[str, object], None]) -> Callable[[str], Told]:
    return lambda broken: Told(record_property, broken)


@pytest.fixture
def broken(area: Path) -> Iterator[Callable[..., BrokenRun]]:
    made: list[BrokenRun] = []

    def make(stage: Stage, **more: Any) -> BrokenRun:
        made.append(BrokenRun(area, stage, f"7{uuid.uuid4().int % 10**9}", **more))
        return made[-1]

    yield make
    for run in made:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.wait(timeout=60)
        run.go_on()


Make = Callable[..., BrokenRun]
Tell = Callable[[str], Told]


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_broken(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    run.go_on()
    told("nothing").ended(run, "pass", 0)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal(broken: Make, told: Tell, stage: Stage, number: signal.Signals) -> None:
    run = broken(stage)
    run.start()
    assert run.process is not None
    run.process.send_signal(number)
    told(number.name).ended(run, "cancelled", 130, "ancelled")


@pytest.mark.parametrize("stage", STAGES)
def test_two_signals(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGTERM)
    told("SIGINT, then SIGTERM").ended(run, "cancelled", 130, "ancelled")


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_killed(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    assert run.process is not None
    run.process.kill()
    told("SIGKILL").ended(run, "none", 137, left=("temporary keystone",))


@pytest.mark.parametrize("stage", STAGES)
def test_the_launcher_is_killed(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    os.kill(_parent(run.waiting()[0], above=3), signal.SIGKILL)
    run.go_on()
    # A supervisor that has ended its command serves another, and needs no launcher for it.
    told("the sandbox's launcher").ended(run, "error", 3, or_passes=True)


@pytest.mark.parametrize("stage", STAGES)
def test_the_supervisor_is_killed(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    os.kill(_parent(run.waiting()[0], above=2), signal.SIGKILL)
    told("the command's supervisor").ended(run, "error", 3, "supervisor")


@pytest.mark.parametrize("stage", STAGES)
def test_launcher_and_supervisor_are_stopped(broken: Make, told: Tell, stage: Stage) -> None:
    """As root or our own user may; a run that is cancelled then leaves nothing running and no lock."""
    run = broken(stage)
    run.start()
    assert run.process is not None
    command = run.waiting()[0]
    for above in (3, 2):
        os.kill(_parent(command, above=above), signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    told("launcher and supervisor: SIGSTOP, then SIGTERM").ended(run, "cancelled", 130, "ancelled")


@pytest.mark.parametrize("stage", STAGES)
def test_a_limit_ends_a_cell_whose_supervisor_is_stopped(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage, limit="15s")
    run.start()
    command = run.waiting()[0]
    for above in (3, 2):
        os.kill(_parent(command, above=above), signal.SIGSTOP)
    told("launcher and supervisor: SIGSTOP").ended(
        run, "error", 3, "the cell took longer than resources.timeout (15 s)"
    )


def _parent(pid: int, above: int = 1) -> int:
    """The process so many above another: the shell, its supervisor, the launcher."""
    for _ in range(above):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@NEEDS_ROOT
@pytest.mark.parametrize("stage", STAGES)
def test_the_disk_of_the_results_is_full(broken: Make, told: Tell, area: Path, stage: Stage) -> None:
    with small_disk(area / "results", "2m"):
        run = broken(stage)
        run.start()
        fill(area / "results")
        run.go_on()
        told("results: no space left").ended(run, "none", 3, "No space left")


@NEEDS_ROOT
@pytest.mark.parametrize(("stage", "verdict", "code"), [("agent", "error", 3), ("checks", "pass", 0)])
def test_others_fill_the_temporary_directory(
    broken: Make, told: Tell, area: Path, stage: Stage, verdict: str, code: int
) -> None:
    """While the check runs nothing more is written there, so nothing is broken."""
    with small_disk(area / "tmp", "8m"):
        run = broken(stage)
        run.start()
        fill(area / "tmp")
        run.go_on()
        said = ["space"] if code else []
        told("TMPDIR: filled by others").ended(run, verdict, code, *said, left=("temporary filled",))


def test_no_temporary_directory(broken: Make, told: Tell) -> None:
    run = broken("whole run", environ={"TMPDIR": "/nonexistent"})
    run.start()
    told("TMPDIR: not there").ended(run, "pass", 0)


@pytest.mark.parametrize("stage", STAGES)
def test_the_journal_is_removed(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    (run.output / "journal.jsonl").unlink()
    run.go_on()
    told("journal: removed").ended(run, "none", 3, "journal")


@pytest.mark.parametrize("stage", STAGES)
def test_the_journal_is_replaced_by_a_pipe(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    (run.output / "journal.jsonl").unlink()
    os.mkfifo(run.output / "journal.jsonl")
    run.go_on()
    told("journal: a FIFO in its place").ended(run, "none", 3, "journal")


@pytest.mark.parametrize("stage", STAGES)
def test_the_results_are_removed(broken: Make, told: Tell, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    shutil.rmtree(run.output)
    run.go_on()
    told("results: folder removed").ended(run, "none", 3)


@pytest.mark.parametrize("stage", ["agent", "checks"])
def test_the_spec_is_removed(broken: Make, told: Tell, area: Path, stage: Stage) -> None:
    run = broken(stage)
    run.start()
    (area / "keystone.yaml").unlink()
    run.go_on()
    told("spec: removed").ended(run, "pass", 0)


def test_few_descriptors(broken: Make, told: Tell) -> None:
    run = broken("whole run", prefix=("sh", "-c", 'ulimit -n 24; exec "$@"', "sh"))
    run.start()
    told("descriptors: 24 for each process").ended(run, "error", 3)


@NEEDS_ROOT
def test_a_cap_on_processes(broken: Make, told: Tell) -> None:
    with cap_on_processes(8) as group:
        run = broken("whole run", prefix=("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"))
        run.start()
        told("processes: 8 in all").ended(run, "error", 3)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_is_full(broken: Make, told: Tell, stream: str) -> None:
    number = {"stdout": 1, "stderr": 2}[stream]
    run = broken("whole run", prefix=("sh", "-c", f'exec "$@" {number}>/dev/full', "sh"))
    run.start()
    told(f"{stream}: no space left").ended(run, "pass", 3 if stream == "stdout" else 0)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("process", ["postmaster", "walwriter"])
def test_the_database_crashes(broken: Make, told: Tell, stage: Stage, process: str) -> None:
    """As a whole, or one of its processes, after which PostgreSQL would end all sessions and recover, without what was
    committed last. A check that executes may have asked it."""
    run = broken(stage, services=[{"name": "db", "type": "postgres"}])
    run.start()
    servers = [pid for pid in _below(run.process.pid) if _name(pid) == "postgres"]  # type: ignore[union-attr]
    killed = {"postmaster": min(servers), "walwriter": next(filter(_writes_the_log, servers))}[process]
    os.kill(killed, signal.SIGKILL)
    run.go_on()
    told(f"embedded PostgreSQL: {process}").ended(run, "error", 3, "service db: the embedded PostgreSQL went away")


def _writes_the_log(pid: int) -> bool:
    return b"walwriter" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _below(root: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
