"""The same Touchstone cases run by the released tool and by `keystone run`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support.command_line import Called, keystone
from support.differences import Decided
from support.graded_tests import lay_out

HARNESSES = """shell: {argv: [sh, -c, "{prompt}", shell, "{model}"]}
hurried: {argv: [sh, -c, "{prompt}"], timeout_s: 2}
with-env: {argv: [sh, -c, "{prompt}"], env: {SHOWN: shown}}
"""
"""Agents that are the prompt: what a case's agent does stands in the case."""
OURS = {"OF_THE_CALLER": "secret"}
"""Variables that both tools are called with."""


def write_cases(directory: Path, cases: Mapping[str, Mapping[str, Any]], packages: Mapping[str, str | bytes]) -> None:
    """`evals/NAME/case.yaml` for each of the cases, with the files beside it, and `harnesses.yaml`."""
    lay_out(directory, {"harnesses.yaml": HARNESSES})
    for name, told in cases.items():
        place = directory / "evals" / name
        document = {
            "id": name,
            "availability": "required",
            "task": {"prompt": told["prompt"].replace("@CASE@", str(place))},
            "matrix": {"harnesses": [told.get("harness", "shell")], "models": ["m"]},
            **told["case"],
        }
        files = dict(told.get("files", {}))
        if told.get("pytest"):
            files |= {f"source/{path}": text for path, text in packages.items()}
            environment = {"kind": "command", "commands": ["true"], "env": {"PYTHONPATH": "packages"}}
            document |= {"source": {"path": "source"}, "environment": environment}
        lay_out(place, {**files, "case.yaml": yaml.safe_dump(document)})


def run_released(programs: Path, directory: Path, environ: Mapping[str, str] | None = None) -> dict[str, Decided]:
    """`touchstone run`: `case harness model trial` → what became of that cell."""
    done = subprocess.run(
        [programs / "touchstone", "run", "--workers", "2"],
        cwd=directory,
        # It takes no variables of a case for `kind: command`, so what packages need is around the whole run.
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "PYTHONPATH": "packages",
            **OURS,
            **(environ or {}),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for file in directory.glob("runs/*/cells/*/result.json"):
        cell = json.loads(file.read_text("utf-8"))
        verdict = {"done": "pass" if cell["overall_passed"] else "fail", "failed": "error"}[cell["status"]]
        name = f"{cell['case']} {cell['harness']} {cell['model']} {cell['trial']}"
        found[name] = Decided(verdict, cell["overall_score"])
    return found


def run_ours(directory: Path, environ: Mapping[str, str] | None = None) -> tuple[dict[str, Decided], Called]:
    """`keystone run evals`, by the same keys."""
    environ = {**OURS, **(environ or {})}
    called = keystone("run", "evals", "--output", "out", "--quiet", directory=directory, environ=environ)
    assert not called.has_traceback, called.err
    assert called.code in (0, 1, 3), called.err
    found = {}
    for spec in called.document["specs"]:
        for cell in spec["cells"]:
            name = f"{spec['id']} {cell['params']['harness']} {cell['params']['model']} {cell['replica'] + 1}"
            found[name] = Decided(cell["verdict"], cell["composite"])
    return found, called
