"""An agent that attacks from a container: a script of a test, run by the real command as the agent under test."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from support.command_line import ENVIRONMENT, ROOT, Called, run_spec
from support.fork_server import ForkServer
from support.hostile import document_of, write_agent
from support.images import PYTHON

Mode = Literal["bind", "copy"]


@functools.cache
def _copying() -> ForkServer:
    """One for all tests of this process."""
    return ForkServer({**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}, "support.copying_command")


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
    write_agent(directory, script)
    text = json.dumps(document_of(checks, agent=agent, **{"base": PYTHON, **more}))
    if mode == "bind":
        return run_spec(directory, text, environ=dict(environ or {}))
    (directory / "keystone.yaml").write_text(text, "utf-8")
    return keystone_that_copies(["run", "keystone.yaml", "--output", "out"], directory, environ or {})


def keystone_that_copies(words: Sequence[str], directory: Path, environ: Mapping[str, str]) -> Called:
    """`keystone WORDS…` where no engine would see our files."""
    done = _copying().run(words, directory, {**ENVIRONMENT, **environ}, timeout=600)
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")
