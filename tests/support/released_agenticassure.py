"""The same AgenticAssure suites run by the released tool and by `keystone run`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.command_line import Called, keystone
from support.differences import Decided


def run_released(programs: Path, directory: Path, *words: str) -> tuple[dict[str, Decided], int]:
    """`agenticassure run scenarios` in a directory: `suite number` → what became of it; and the exit code."""
    done = subprocess.run(
        [programs / "agenticassure", "run", "scenarios", "-o", "json", *words],
        cwd=directory,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = {}
    for file in sorted(directory.glob("results_*.json")):
        document = json.loads(file.read_text("utf-8"))
        file.unlink()
        for number, one in enumerate(document["scenario_results"]):
            verdict = "pass" if one["passed"] else "error" if one["error"] else "fail"
            scores = [score["score"] for score in one["scores"]]
            score = sum(scores) / len(scores) if scores else None
            found[f"{document['suite_name']} {number}"] = Decided(verdict, score)
    assert found or done.returncode, done.stdout + done.stderr
    return found, done.returncode


def run_ours(directory: Path, *words: object) -> tuple[dict[str, Decided], Called]:
    """`keystone run scenarios` in a directory, by the same keys."""
    called = keystone("run", "scenarios", "--output", "out", *words, directory=directory)
    assert not called.has_traceback, called.err
    assert called.code in (0, 1, 3), called.err
    found = {}
    for spec in called.document["specs"]:
        for number, cell in enumerate(spec["cells"]):
            found[f"{spec['id']} {number}"] = Decided(cell["verdict"], cell["composite"])
    return found, called
