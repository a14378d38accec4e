"""docs/comparison.md: what it says of the tools that are installed here is so, and it speaks of the versions that the
tests and the benchmarks use."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.command_line import ROOT
from support.graded_tests import lay_out
from support.released import released
from support.released_touchstone import write_cases

PAGE = (ROOT / "docs" / "comparison.md").read_text("utf-8")
VERSIONS = dict(re.findall(r"^\| (\w+) \| (\d[\d.]+) \|", PAGE, re.MULTILINE))
SLOW = """\
suite: {name: s}
scenarios: [{name: slow, input: hi, expected_output: hello, timeout_seconds: 1}]
"""
ADAPTER = """\
import os
import time
from agenticassure.results import AgentResult
class Agent:
    def run(self, input, context=None):
        time.sleep(1.2)
        return AgentResult(output="hello " + os.environ["KEY"])
"""


def call(directory: Path, *words: str | Path) -> tuple[int, str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONPATH": ".", "KEY": "of-the-caller"}
    done = subprocess.run(words, cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tool", "file", "name"),
    [
        ("Touchstone", "tests/differential/requirements-touchstone.txt", "touchstone-eval=="),
        ("AgenticAssure", "tests/differential/requirements-agenticassure.txt", "agenticassure=="),
        ("promptfoo", "benchmarks/peers.py", "promptfoo@"),
        ("Inspect", "benchmarks/peers.py", "inspect-ai=="),
    ],
)
def test_it_speaks_of_the_versions_that_are_used_here(tool: str, file: str, name: str) -> None:
    assert re.search(f"{re.escape(name + VERSIONS[tool])}[\"' \\\\]", (ROOT / file).read_text("utf-8"))


def test_touchstone_ends_with_0_when_a_cell_fails(tmp_path: Path) -> None:
    write_cases(tmp_path, {"fails": {"prompt": "true", "case": {"graders": [{"type": "command", "cmd": "false"}]}}}, {})
    code, said = call(tmp_path, released("touchstone") / "touchstone", "run")
    assert (code, "FAIL (score=0.0)" in said) == (0, True), said


def test_agenticassure_waits_beyond_the_time_limit_in_the_callers_environment(tmp_path: Path) -> None:
    lay_out(tmp_path, {"suite.yaml": SLOW, "adapter.py": ADAPTER})
    program = released("agenticassure") / "agenticassure"
    code, said = call(tmp_path, program, "run", "suite.yaml", "--adapter", "adapter.Agent")
    assert (code, "PASS" in said) == (0, True), said
