"""Running the real command in a process of its own, as a user does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.audit import require_valid_audit
from support.fork_server import IMPORTED, ForkServer

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}

JUDGES = ("anthropic.resources.messages", "keystone_action.judge.jury")
"""What calls that ask a model import besides."""

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
"""An environment in which no container engine answers, whatever this machine has."""
_SOCKET = Path("/var/run/docker.sock")
ENGINE_IS_CLOSED = _SOCKET.exists() and not os.access(_SOCKET, os.R_OK | os.W_OK)
"""This machine has an engine that this user may not ask: `keystone clean` says so, and ends with 3."""


@dataclass(frozen=True)
class Called:
    """A finished call; `output` is where it was told to write."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def has_traceback(self) -> bool:
        """Whether our own code broke: a line begins with a traceback. What agents printed is shown further in."""
        return any(line.startswith("Traceback") for line in (self.out + "\n" + self.err).splitlines())

    @property
    def document(self) -> dict[str, Any]:
        """results.json."""
        return json.loads((self.output / "results.json").read_text("utf-8"))

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells of all specs."""
        return [cell for spec in self.document["specs"] for cell in spec["cells"]]

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        """The invariants of the only cell, by name."""
        (cell,) = self.cells
        return {entry["name"]: entry for entry in cell["invariants"]}


def keystone(*words: object, directory: Path, environ: dict[str, str] | None = None) -> Called:
    """`keystone WORDS…` in a directory, with an environment of the test's own: a process of its own, that for most
    calls has imported what it needs already (see fork_server.py)."""
    called, environment = [str(word) for word in words], {**ENVIRONMENT, **(environ or {})}
    if ForkServer.serves(environ or {}):
        done = server(judges="ANTHROPIC_API_KEY" in environment).run(called, directory, environment, timeout=600)
    else:
        done = started(called, directory, environment)
    require_valid_audit(directory / "out")
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")


def started(words: Sequence[str], directory: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """`keystone WORDS…` by an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", "keystone_action", *words],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=600,
        check=False,
    )


@functools.cache
def server(*, judges: bool = False) -> ForkServer:
    """One for all tests of this process. judges: another, whose calls ask a model: the client of Anthropic takes longer
    to import than all of ours."""
    return ForkServer(ENVIRONMENT, imported=(*IMPORTED, *JUDGES) if judges else IMPORTED)


def run_spec(directory: Path, text: str, *words: object, environ: dict[str, str] | None = None) -> Called:
    """Write keystone.yaml and run it into `out`."""
    (directory / "keystone.yaml").write_text(text, "utf-8")
    return keystone("run", "keystone.yaml", "--output", "out", *words, directory=directory, environ=environ)


def spec(agent: str = "{type: command, command: ['true']}", check: str = "{type: file_absent, path: x}", **more: str):
    """A small spec; more: further top-level keys as YAML text."""
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    return (
        f'version: 1\nid: small\ntask: {{prompt: "do it"}}\nagent: {agent}\n'
        f"{extra}invariants:\n  it_holds: {{check: {check}}}\n"
    )
