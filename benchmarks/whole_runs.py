"""Whole runs against budgets of their own: thousands of cells, a gigabyte of output, a database for each cell."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import KEYSTONE, Row, interleaved, timed, write_start

FEW, MANY = 1_000, 10_000
TIMES = 10.5
MEGABYTES_OF_MANY = 150.0
MEGABYTES_OF_OUTPUT = 200.0
PRINTED = 1 << 30
REPLICAS = 10
TIMES_OF_DATABASES = 1.3
_PAUSE = 0.02
_HEAD = """\
version: 1
id: bench
task: {{prompt: "nothing to do"}}
agent: {{type: command, command: {agent}}}
parallelism: {{replicas: {replicas}}}
"""
_CELLS = _HEAD + "workspace: start\ninvariants: {{there: {{check: {{type: file_exists, path: a.txt}}}}}}\n"
_OUTPUT = _HEAD + "invariants: {{ended: {{check: {{type: file_exists, path: ended}}}}}}\n"
_DATABASES = (
    _HEAD
    + "services: [{{name: db, type: postgres}}]\n"
    + "fixtures: [{{type: sql, service: db, sql: 'create table t (n int); insert into t values (1)'}}]\n"
    + "invariants: {{there: {{check: {{type: sql, service: db, query: 'select n from t', equals: 1}}}}}}\n"
)
_PRINT = f"['sh', '-c', 'echo first; head -c {PRINTED} /dev/zero | tr \"\\\\0\" x; echo; echo last; touch ended']"


@dataclass
class Watched:
    """One run. resident: the most megabytes that its processes of ours had at a time, pages that they share once."""

    seconds: float
    resident: float


def many_cells(_: int) -> list[Row | str]:
    """One round: it takes minutes, and both sizes are made of the same cells."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        few, many = (_run(Path(name), _CELLS, agent="['true']", replicas=count) for count in (FEW, MANY))
    return [
        Row(f"{MANY:,} cells", many.seconds, f"{FEW:,} cells", few.seconds, TIMES * few.seconds),
        _memory(f"memory of {MANY:,} cells", many.resident, MEGABYTES_OF_MANY, f"{FEW:,} cells", few.resident),
    ]


def output(rounds: int) -> list[Row | str]:
    """The memory of a run whose agent prints, and its time beside that of the agent alone. Both ends of what it printed
    are promised; that they are there is looked at."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory, found = Path(name), []

        def printing() -> float:
            found.append(_run(directory, _OUTPUT, agent=_PRINT, replicas=1))
            kept = (directory / "out" / "cells" / "bench.r0" / "agent.stdout").read_bytes()
            if not (kept.startswith(b"first\nxxx") and kept.endswith(b"xxx\nlast\n")):
                raise RuntimeError(f"not both ends were kept: {kept[:20]!r} … {kept[-20:]!r}")
            return found[-1].seconds

        words = f"head -c {PRINTED} /dev/zero | tr '\\0' x | cat > /dev/null"
        alone = {"alone": timed(lambda: subprocess.run(["/bin/sh", "-c", words], check=True)), "ours": printing}
        samples = interleaved(alone, rounds)
        idle = _run(directory, _OUTPUT, agent="['touch', 'ended']", replicas=1)
    resident = max(one.resident for one in found)
    return [
        _memory("memory, agent prints 1 GiB", resident, MEGABYTES_OF_OUTPUT, "a silent agent", idle.resident),
        Row("the run of that agent", samples["ours"].median, "the same pipe alone", samples["alone"].median, None),
    ]


def databases(rounds: int) -> list[Row | str]:
    """Cells with an embedded PostgreSQL database each, beside one such cell."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory = Path(name)

        def cells(count: int) -> Callable[[], float]:
            return lambda: _run(directory, _DATABASES, agent="['true']", replicas=count).seconds

        samples = interleaved({"one": cells(1), "ten": cells(REPLICAS)}, rounds)
    one, ten = samples["one"].median, samples["ten"].median
    return [Row(f"{REPLICAS} replicas, a database each", ten, "one replica", one, TIMES_OF_DATABASES * one)]


def _memory(work: str, value: float, budget: float, beside: str, reference: float) -> str:
    verdict = "yes" if value <= budget else "NO"
    ratio = value / reference
    return f"{work:<38} {value:7.1f}MB {budget:7.1f}MB  {verdict:<3} {ratio:8.2f} × {beside} ({reference:.1f} MB)"


def _run(directory: Path, spec: str, **values: Any) -> Watched:
    shutil.rmtree(directory / "out", ignore_errors=True)
    write_start(directory)
    (directory / "bench.keystone.yaml").write_text(spec.format(**values))
    words = [*KEYSTONE, "run", "bench.keystone.yaml", "--output", "out", "--quiet"]
    environment = {**os.environ, "HOME": str(directory)}
    started = time.perf_counter()
    with subprocess.Popen(words, cwd=directory, env=environment, stdout=subprocess.DEVNULL) as process:
        watch = _Watch(process.pid)
        code = process.wait()
    seconds = time.perf_counter() - started
    watch.stop()
    if code != 0:
        raise RuntimeError(f"the run ended with {code}")
    return Watched(seconds, watch.most)


class _Watch:
    """Looks at the memory of a process and of its own helpers until it ends; what an agent starts is not ours."""

    def __init__(self, pid: int) -> None:
        self.most = 0.0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The run has ended."""
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(_PAUSE):
            self.most = max(self.most, sum(_megabytes(pid) for pid in _family(self._pid)))


def _family(top: int) -> list[int]:
    """The process, and those below it that run the same program: launcher and supervisors."""
    found: list[int] = []
    waiting = [top]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        try:
            if found and (place / "exe").readlink() != Path(f"/proc/{top}/exe").readlink():
                continue
            found.append(int(place.name))
            for thread in (place / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
    return found


def _megabytes(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    except OSError:
        pass
    return 0.0
