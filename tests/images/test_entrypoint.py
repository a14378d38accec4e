"""What the image runs, without the image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.fake_runner import FakeRunner

from keystone_action import __version__

ROOT = Path(__file__).parents[2]


def start(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), *arguments],
        env={"PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_with_arguments_it_is_the_command() -> None:
    ran = start("--version", env={"GITHUB_ACTIONS": "true"})
    assert (ran.returncode, ran.stdout) == (0, f"keystone {__version__}\n")


def test_without_a_workflow_it_is_the_command() -> None:
    ran = start(env={})
    assert ran.returncode == 2
    assert "keystone help" in ran.stderr
    assert "::" not in ran.stdout


def test_in_a_workflow_it_is_the_step(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    output, summary = tmp_path / "output", tmp_path / "summary"
    files = {"GITHUB_OUTPUT": output, "GITHUB_STEP_SUMMARY": summary}
    ran = start(env=runner.environment({"threshold": "85%"}, env={"PATH": "/nonsense"}, files=files))
    assert ran.returncode == 2, ran.stderr
    assert "::error title=Keystone::input threshold is '85%25'" in ran.stdout
    assert ran.stderr == ""
    assert "verdict<<" in output.read_text()
    assert "threshold" in summary.read_text()
