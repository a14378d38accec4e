"""Timing whole commands, interleaved: A B C, A B C, …, so that a machine that slows down slows all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KEYSTONE = [sys.executable, "-m", "keystone_action"]
TRIVIAL = """\
version: 1
id: bench
task: {{prompt: "nothing to do"}}
agent: {{type: command, command: {agent}}}
workspace: start
parallelism: {{replicas: {replicas}, max_concurrency: {concurrency}}}
invariants:
  there: {{check: {{type: file_exists, path: a.txt}}}}
"""
"""A spec whose cells do next to nothing: one command and one check of a file that `write_start` makes."""
IDLE = '["true"]'
"""The agent that does nothing."""


def write_start(directory: Path) -> None:
    """The workspace that TRIVIAL begins with."""
    (directory / "start").mkdir(exist_ok=True)
    (directory / "start" / "a.txt").write_text("a\n")


@dataclass(frozen=True, slots=True)
class Sample:
    """Wall seconds of each round of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. value and reference in seconds; budget in seconds, or None."""

    work: str
    value: float
    beside: str
    reference: float
    budget: float | None

    def show(self) -> str:
        """The row as text."""
        budget = "" if self.budget is None else f"{self.budget * 1000:9.1f}"
        kept = "" if self.budget is None else ("  yes" if self.value <= self.budget else "  NO")
        ratio = self.value / self.reference if self.reference > 0 else float("inf")
        return (
            f"{self.work:<38} {self.value * 1000:9.1f} {budget:>9}{kept:<5} "
            f"{ratio:8.2f} × {self.beside} ({self.reference * 1000:.1f} ms)"
        )


def command(
    words: Sequence[str], directory: Path, *, expected: int = 0, environment: Mapping[str, str] = os.environ
) -> Callable[[], float]:
    """A thing to time: one run of a command, output thrown away. It raises when the exit code is another."""

    def once() -> float:
        started = time.perf_counter()
        done = subprocess.run(
            words,
            cwd=directory,
            env={**environment, "HOME": str(directory)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        elapsed = time.perf_counter() - started
        if done.returncode != expected:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
        return elapsed

    return once


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A thing to time: a call."""

    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return once


def spawns(count: int) -> Callable[[], float]:
    """A thing to time: `count` bare processes, one after the other, as a cell's agent would be without us."""

    def once() -> float:
        started = time.perf_counter()
        for _ in range(count):
            subprocess.run(["/bin/sh", "-c", ":"], check=True)
        return time.perf_counter() - started

    return once


def interleaved(things: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Sample]:
    """Each thing once for warming up, then `rounds` times in turn."""
    for once in things.values():
        once()
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, once in things.items():
            seconds[name].append(once())
    return {name: Sample(tuple(values)) for name, values in seconds.items()}
