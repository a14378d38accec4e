"""What one cell can't do without, done bare: the folders and files that keep it apart and hold its evidence, one spawn,
and a journal that is on the disk before the next cell ends. No supervisor, no rules, no checks, no report."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import timed

_EVIDENCE = ("agent.stdout", "agent.stderr", "audit.jsonl", "trace.jsonl", "diff.patch")
_JOURNAL_LINE = b"x" * 1_300 + b"\n"


def raw_cells(count: int, directory: Path) -> Callable[[], float]:
    """A thing to time: so many bare cells, one after the other, below a folder of that directory."""

    def once() -> None:
        with tempfile.TemporaryDirectory(dir=directory) as name, (Path(name) / "journal").open("wb") as journal:
            for number in range(count):
                _raw_cell(Path(name), number)
                journal.write(_JOURNAL_LINE)
                journal.flush()
                os.fsync(journal.fileno())

    return timed(once)


def _raw_cell(root: Path, number: int) -> None:
    names = ("results", "private", "cell", "cell/workspace", "cell/task", "home", "tmp")
    folders = {name: root / f"{number}-{name.replace('/', f'/{number}-')}" for name in names}
    for folder in folders.values():
        folder.mkdir(0o700)
    files = [folders["cell/workspace"] / "a.txt", folders["cell/task"] / "prompt.txt"]
    files += [folders["private"] / name for name in ("audit.jsonl", "trace.jsonl")]
    for file in files:
        file.write_bytes(b"a\n")
        file.read_bytes()
    subprocess.run(["true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    for name in _EVIDENCE:
        (folders["results"] / name).write_bytes(b"")
    for file in files:
        file.unlink()
    for name in reversed(names[1:]):
        folders[name].rmdir()
