"""`make demo` of the README, by make itself, in a copy of what it is made of: both its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ENVIRONMENT, ROOT

PARTS = ("Makefile", "pyproject.toml", "uv.lock", "tools/bootstrap", "tools/demo", "examples/reconcile")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone after its first `make demo`, with the environment of these tests as its .venv."""
    programs = Path(sys.executable).parent
    assert (programs / "keystone").exists(), f"{programs} has no `keystone`: install this project there, as `make` does"
    for name in PARTS:
        made = tmp_path / name
        made.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, made)
        if made.is_file():
            os.utime(made, (0, 0))  # older than .venv/.ready, so that there is nothing to install
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(programs)
    (tmp_path / ".venv" / ".ready").write_text("by the test", "utf-8")
    return tmp_path


def cell_of(checkout: Path) -> dict[str, Any]:
    (results,) = checkout.glob(".keystone/runs/*/results.json")
    cells: list[dict[str, Any]] = [
        cell for spec in json.loads(results.read_text("utf-8"))["specs"] for cell in spec["cells"]
    ]
    (only,) = cells
    return only


@pytest.mark.parametrize(
    ("which", "code", "composite", "gate"),
    [({}, 0, 1.0, "pass"), ({"KEYSTONE_DEMO": "broken"}, 1, 0.0, "fail")],
    ids=["good", "broken"],
)
def test_the_demo_ends_as_the_readme_says(
    checkout: Path, which: dict[str, str], code: int, composite: float, gate: str
) -> None:
    ready = (checkout / ".venv" / ".ready").stat().st_mtime_ns
    done = subprocess.run(
        ["make", "demo"],
        cwd=checkout,
        env={**ENVIRONMENT, **which},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    cell = cell_of(checkout)
    gates = {one["name"]: one["status"] for one in cell["invariants"] if one["gate"]}
    assert (cell["composite"], gates["reconciliation_clean"]) == (composite, gate)
    assert f"composite {composite:.2f}" in done.stdout
    assert (checkout / ".venv" / ".ready").stat().st_mtime_ns == ready
