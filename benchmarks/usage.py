"""What cells take of the machine besides time: processor time of every process, and memory that the run keeps."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import KEYSTONE, TRIVIAL, Row, interleaved, write_start

CELLS = 100
CPU_BUDGET = 0.005
"""Seconds, for a cell of a command that does nothing and one check."""
AT_ONCE = {"idle": 1, "benign": 2, "hostile": 2}
EARLY, LATE = 100, 400
"""Cells after which memory is looked at: by the first, everything is imported and every pool is full."""
MEMORY_BUDGET = 10.0
"""Megabytes for a thousand cells; 10,000 are to fit into 150."""
_PAUSE = 0.05
_AGENTS = {
    "idle": ["true"],
    "benign": ["sh", "-c", "echo done > a.txt"],
    "hostile": ["sh", "-c", "seq 40000; seq 40000 >&2; seq 20000 > a.txt; seq 20000 > b.txt"],
}
"""Hostile: it prints and writes more than a result may tell of."""


def usage(rounds: int) -> list[Row | str]:
    """All of it; the memory in one round, whose slope is made of hundreds of samples."""
    return [*processor_time(rounds), memory()]


def processor_time(rounds: int) -> list[Row]:
    """User and system time of a further cell, all processes of the run included, beside a bare spawn's."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory = Path(name)
        samples = interleaved(
            {
                "one": _charged(lambda: _finish(directory, 1, "idle")),
                "many": _charged(lambda: _finish(directory, 1 + CELLS, "idle")),
                "spawns": _charged(_spawn_all),
            },
            rounds,
        )
    bare = samples["spawns"].median / CELLS
    further = (samples["many"].median - samples["one"].median) / CELLS
    return [Row("processor time, each further cell", further, "bare spawn", bare, min(CPU_BUDGET, 2 * bare))]


def _spawn_all() -> None:
    for _ in range(CELLS):
        subprocess.run(["/bin/sh", "-c", ":"], check=True)


def _charged(work: Callable[[], object]) -> Callable[[], float]:
    """A thing to measure: the processor seconds of this process and of all that it has waited for."""

    def once() -> float:
        before = _charge()
        work()
        return _charge() - before

    return once


def _charge() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def memory() -> str:
    """What the main process keeps of a thousand cells more, hostile ones beside benign ones."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        kept = {kind: _slope(Path(name), kind) for kind in ("hostile", "benign")}
    hostile, benign = kept["hostile"], kept["benign"]
    verdict = "yes" if hostile <= MEMORY_BUDGET else "NO"
    work = "memory kept, 1,000 hostile cells"
    return (
        f"{work:<38} {hostile:7.1f}MB {MEMORY_BUDGET:7.1f}MB  {verdict:<3} "
        f"{hostile / benign:8.2f} × 1,000 benign cells ({benign:.1f} MB)"
    )


def _slope(directory: Path, kind: str) -> float:
    """Megabytes for a thousand cells, fitted to what is resident while the cells after EARLY end."""
    samples: list[tuple[int, float]] = []
    with _started(directory, LATE, kind) as process:
        journal = directory / "out" / "journal.jsonl"
        while process.poll() is None:
            done, resident = _lines(journal), _resident(process.pid)
            if resident and EARLY <= done <= LATE - AT_ONCE[kind]:  # after the last cell come the reports
                samples.append((done, resident))
            time.sleep(_PAUSE)
    return statistics.linear_regression(*zip(*samples, strict=True)).slope * 1000


def _finish(directory: Path, replicas: int, kind: str) -> None:
    with _started(directory, replicas, kind) as process:
        if process.wait() != 0:
            raise RuntimeError(f"the run of {replicas} cells ended with {process.returncode}")


def _started(directory: Path, replicas: int, kind: str) -> subprocess.Popen[bytes]:
    shutil.rmtree(directory / "out", ignore_errors=True)
    write_start(directory)
    spec = directory / f"{kind}-{replicas}.keystone.yaml"
    spec.write_text(TRIVIAL.format(agent=json.dumps(_AGENTS[kind]), replicas=replicas, concurrency=AT_ONCE[kind]))
    words = [*KEYSTONE, "run", spec.name, "--output", "out", "--quiet"]
    nothing = subprocess.DEVNULL
    environment = {**os.environ, "HOME": str(directory)}
    return subprocess.Popen(words, cwd=directory, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)


def _lines(journal: Path) -> int:
    try:
        return journal.read_bytes().count(b"\n") - 1  # the first says what the run is
    except OSError:
        return 0


def _resident(pid: int) -> float:
    """Megabytes; 0 when the process has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    return 0.0
