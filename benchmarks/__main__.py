"""`make bench`: the budgets of the design that this version covers, beside the bare process or a peer."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.cancelling import cancelling
from benchmarks.container_cells import container_cells
from benchmarks.containers import containers
from benchmarks.dumps import dumps
from benchmarks.gateway import gateway
from benchmarks.image import image
from benchmarks.measure import IDLE, KEYSTONE, TRIVIAL, Row, Sample, command, interleaved, spawns, write_start
from benchmarks.mock import mock
from benchmarks.mysql_writes import mysql_writes
from benchmarks.peers import peers
from benchmarks.postgres_writes import postgres_writes
from benchmarks.raw_cell import raw_cells
from benchmarks.report import report
from benchmarks.usage import usage
from benchmarks.whole_runs import databases, many_cells, output

CELLS = 200


def long_spec(lines: int) -> str:
    """A valid spec of about so many lines."""
    head = TRIVIAL.format(agent=IDLE, replicas=1, concurrency=1).replace("workspace: start\n", "")
    each = '  check_{n}:\n    description: "File {n} is there and says so"\n    weight: 1.0\n    check:\n'
    each += '      type: file_content\n      path: "out/{n}.txt"\n      contains: "line {n}"\n'
    return head + "".join(each.format(n=n) for n in range((lines - head.count("\n")) // 7))


def start_up(directory: Path, rounds: int) -> list[Row]:
    """`--version` and `validate` against the interpreter, pytest, and reading the YAML alone."""
    (directory / "long.keystone.yaml").write_text(long_spec(5000))
    read = "import yaml,sys; yaml.compose(open('long.keystone.yaml'), Loader=yaml.CSafeLoader)"
    samples = interleaved(
        {
            "python": command([sys.executable, "-c", "pass"], directory),
            "pytest": command([sys.executable, "-m", "pytest", "--version"], directory),
            "version": command([*KEYSTONE, "--version"], directory),
            "yaml": command([sys.executable, "-c", read], directory),
            "validate": command([*KEYSTONE, "validate", "long.keystone.yaml"], directory),
        },
        rounds,
    )
    return [
        Row("keystone --version", samples["version"].median, "python -c pass", samples["python"].median, 0.10),
        Row("keystone --version", samples["version"].median, "pytest --version", samples["pytest"].median, None),
        Row("validate, 5,000 lines", samples["validate"].median, "yaml.compose", samples["yaml"].median, 0.35),
    ]


def cells(directory: Path, rounds: int, concurrency: int) -> list[Row]:
    """One trivial scenario, and what each further cell costs beside a bare spawn."""
    write_start(directory)
    things: dict[str, Callable[[], float]] = {"spawns": spawns(CELLS), "raw": raw_cells(CELLS, directory)}
    for name, replicas in (("one", 1), ("many", 1 + CELLS)):
        spec = directory / f"{name}-{concurrency}.keystone.yaml"
        spec.write_text(TRIVIAL.format(agent=IDLE, replicas=replicas, concurrency=concurrency))
        things[name] = _fresh_run(spec, directory)
    samples: dict[str, Sample] = interleaved(things, rounds)
    one, bare = samples["one"].median, samples["spawns"].median / CELLS
    further = (samples["many"].median - one) / CELLS
    label = f"each further cell, {concurrency} at a time"
    return [
        *([Row("one trivial scenario", one, "bare spawn", bare, 0.5)] if concurrency == 1 else []),
        Row(label, further, "bare spawn", bare, min(0.005, 2 * bare) if concurrency > 1 else 0.005),
        Row(label, further, "its files and its spawn, bare", samples["raw"].median / CELLS, None),
    ]


def _fresh_run(spec: Path, directory: Path) -> Callable[[], float]:
    count = 0

    def once() -> float:
        nonlocal count
        count += 1
        words = [*KEYSTONE, "run", spec.name, "--output", f"out-{spec.stem}-{count}", "--quiet"]
        return command(words, directory)()

    return once


def main() -> int:
    """Print the table; the exit code says nothing of budgets, a busy machine is not a defect."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        groups: dict[str, Callable[[int], Iterable[Row | str]]] = {
            "start": lambda rounds: start_up(Path(name), rounds),
            "cells": lambda rounds: cells(Path(name), max(3, rounds // 2), 1),
            "cells-at-once": lambda rounds: cells(Path(name), max(3, rounds // 2), 2),
            "many-cells": many_cells,
            "output": lambda rounds: output(max(3, rounds // 2)),
            "databases": lambda rounds: databases(max(3, rounds // 2)),
            "peers": lambda rounds: peers(max(3, rounds // 2)),
            "mock": lambda rounds: mock(max(3, rounds // 2)),
            "usage": lambda rounds: usage(max(3, rounds // 2)),
            "services": lambda rounds: containers(max(3, rounds // 2)),
            "postgres-writes": lambda rounds: postgres_writes(max(3, rounds // 2)),
            "mysql-writes": lambda rounds: mysql_writes(max(3, rounds // 2)),
            "dumps": lambda rounds: dumps(max(3, rounds // 2)),
            "image": image,
            "container-cells": lambda rounds: container_cells(max(3, rounds // 2)),
            "gateway": lambda rounds: gateway(max(3, rounds // 2)),
            "report": lambda rounds: report(max(3, rounds // 2)),
            "cancelling": lambda rounds: cancelling(max(3, rounds // 2)),
        }
        parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
        parser.add_argument("--rounds", type=int, default=7)
        parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}; none = all")
        called = parser.parse_args()
        if unknown := set(called.groups) - set(groups):
            parser.error(f"no such group: {', '.join(sorted(unknown))}")
        sys.stdout.write(f"{'work':<38} {'median ms':>9} {'budget':>9} kept  ratio\n")
        for group in called.groups or groups:
            for row in groups[group](called.rounds):
                sys.stdout.write((row if isinstance(row, str) else row.show()) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
