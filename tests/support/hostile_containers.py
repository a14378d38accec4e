"""An agent that attacks from a container: a script of a test, run by the real command as the agent under test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from support.command_line import ENVIRONMENT, Called
from support.hostile import POSTGRES_CLIENT
from support.images import PYTHON

Mode = Literal["bind", "copy"]
_COPYING = """
import functools, sys
from keystone_action.sandbox.containers import sandboxes as docker
docker.start_docker = functools.partial(docker.start_docker, mode="copy")
from keystone_action.__main__ import main
sys.exit(main())
"""
"""The command where no engine would see our files, as a remote one doesn't."""


def attack_in_container(
    directory: Path,
    script: str,
    checks: Mapping[str, Any],
    *,
    mode: Mode = "bind",
    agent: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Called:
    """Run a spec whose agent is this Python script in a container. checks: by name. agent, more: further keys of the
    agent and of the spec."""
    (directory / "agent").mkdir(exist_ok=True)
    (directory / "agent" / "agent.py").write_text(script, "utf-8")
    (directory / "agent" / "postgres.py").write_bytes(POSTGRES_CLIENT.read_bytes())
    document = {
        "version": 1,
        "id": "hostile",
        "task": {"prompt": "do it"},
        "base": PYTHON,
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
    (directory / "keystone.yaml").write_text(json.dumps(document), "utf-8")
    program = ["-m", "keystone_action"] if mode == "bind" else ["-c", _COPYING]
    done = subprocess.run(
        [sys.executable, *program, "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env={**ENVIRONMENT, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")
