"""An agent that attacks: a script of a test, run by the real command as the agent under test."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, Called, run_spec

POSTGRES_CLIENT = ROOT / "examples" / "reconcile" / "agent" / "postgres.py"
"""A client in plain Python, for agents that have nothing else."""

AS_ROOT = os.geteuid() == 0


@pytest.fixture
def area() -> Iterator[Path]:
    """An author's directory outside of /root and of pytest's own 0700 directories, as a runner's checkout is: what
    hides it from an agent must be the sandbox, not the modes above it."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def attack(
    directory: Path,
    script: str,
    checks: Mapping[str, Any],
    *words: object,
    environ: dict[str, str] | None = None,
    agent: Mapping[str, Any] | None = None,
    **more: Any,
) -> Called:
    """Run a spec whose agent is this Python script. checks: by name. agent, more: further keys of the agent and of
    the spec."""
    write_agent(directory, script)
    return run_spec(directory, json.dumps(document_of(checks, agent=agent, **more)), *words, environ=environ)


def write_agent(directory: Path, script: str) -> None:
    """The folder `agent` beside a spec, with this Python script as the agent."""
    (directory / "agent").mkdir(exist_ok=True)
    (directory / "agent" / "agent.py").write_text(script, "utf-8")
    (directory / "agent" / "postgres.py").write_bytes(POSTGRES_CLIENT.read_bytes())


def document_of(checks: Mapping[str, Any], *, agent: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The spec whose agent is the script of `write_agent`; as `attack`."""
    return {
        "version": 1,
        "id": "hostile",
        "task": {"prompt": "do it"},
        "agent": {
            "type": "command",
            "command": ["python3", "{{ agent.dir }}/agent.py"],
            "dir": "agent",
            "timeout": "60s",
            **(agent or {}),
        },
        "resources": {"pids": 100},
        "invariants": {name: {"check": check} for name, check in checks.items()},
        **more,
    }


def everything_written(called: Called) -> dict[str, bytes]:
    """All that a run wrote, by where: both streams and every file of the results."""
    written = {
        str(path.relative_to(called.output)): path.read_bytes() for path in called.output.rglob("*.*") if path.is_file()
    }
    return {"stdout": called.out.encode(), "stderr": called.err.encode(), **written}


def statuses(called: Called) -> dict[str, str]:
    """The checks of the only cell."""
    return {name: check["status"] for name, check in called.checks.items()}
