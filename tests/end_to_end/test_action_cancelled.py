"""A step that is cut short, in each phase of its life: nothing of it is left on the engine or on the machine."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.action_job import ActionJob
from support.container_step import ContainerStep

pytestmark = pytest.mark.docker

PHASES = ("pull", "setup", "services", "agent", "checks")
SLOW = {"version": 1, "id": "slow", "task": {"prompt": "do it"}, "base": "python:3.12-slim"}
"""The stand-in has everything that a sandbox needs, and no image is pulled for it."""


class Registry:
    """A registry that takes every request and answers none. asked: when there was one."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._released = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.set()
                owner._released.wait(120)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

        # An engine speaks plain HTTP to registries on its own machine.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


@pytest.fixture
def sleep() -> str:
    """A command that nobody else on this machine runs."""
    return f"sleep 1{secrets.randbelow(10**9):09}"


def runs_on_this_machine(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def document(phase: str, sleep: str, registry: str) -> dict[str, Any]:
    """A spec that hangs in this phase, after a service has started and the agent has run, as far as they come first."""
    spec: dict[str, Any] = {
        **SLOW,
        "agent": {"type": "command", "command": "echo done > done.txt", "timeout": "5m"},
        "services": [{"name": "db", "image": "postgres:16", "env": {"POSTGRES_PASSWORD": "secret"}}],
        "invariants": {"it": {"check": {"type": "file_exists", "path": "done.txt"}}},
    }
    if phase == "pull":
        spec["base"] = f"{registry}/agents/slow:1"
    elif phase == "setup":
        spec["setup"] = {"commands": [sleep]}
    elif phase == "services":
        spec["services"].append(
            {"name": "never", "image": "postgres:16", "env": {"POSTGRES_PASSWORD": "x"}, "wait_for": sleep}
        )
    elif phase == "agent":
        spec["agent"]["command"] = f"(setsid {sleep} &) ; {sleep}"
    else:
        spec["invariants"]["slow"] = {"check": {"type": "command_exit", "command": sleep}}
    return spec


@pytest.fixture
def hanging(job: ActionJob, sleep: str, registry: Registry) -> Callable[[str], ContainerStep]:
    """A step that has come as far as a phase, and stays there."""

    def start(phase: str) -> ContainerStep:
        job.write(document(phase, sleep, registry.host))
        step = job.start()
        there = registry.asked.is_set if phase == "pull" else lambda: runs_on_this_machine(sleep)
        step.until(there, f"the phase {phase}")
        return step

    return start


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_job(job: ActionJob, hanging: Callable[[str], ContainerStep], sleep: str, phase: str) -> None:
    ended = hanging(phase).cancel()
    assert (ended.exit_code, ended.rejected) == (130, []), ended.raw_log
    assert ended.outputs["verdict"] == "error"
    assert "cancelled" in ended.summary.lower()
    assert not runs_on_this_machine(sleep)
    assert job.left() == []
    after = job.post()
    assert (after.exit_code, after.rejected) == (0, []), after.raw_log


@pytest.mark.parametrize("phase", ["services", "agent"])
def test_a_stopped_container(job: ActionJob, hanging: Callable[[str], ContainerStep], sleep: str, phase: str) -> None:
    ended = hanging(phase).terminate()
    assert (ended.exit_code, ended.rejected) == (130, []), ended.raw_log
    assert not runs_on_this_machine(sleep)
    assert job.left() == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_container_is_swept_at_the_end_of_the_job(
    job: ActionJob, hanging: Callable[[str], ContainerStep], sleep: str, phase: str
) -> None:
    killed = hanging(phase).kill()
    assert killed.exit_code == 128 + signal.SIGKILL
    if phase != "pull":
        assert any(one.startswith("container") for one in job.left()), "else there is nothing to sweep"
    after = job.post()
    assert (after.exit_code, after.rejected) == (0, []), after.raw_log
    assert not runs_on_this_machine(sleep)
    assert job.left() == []


def test_a_sweep_leaves_everybody_else_alone(
    job: ActionJob, hanging: Callable[[str], ContainerStep], image: Callable[[str], str]
) -> None:
    foreign = job.engine.containers.run(
        image("python:3.12-slim"), ["sleep", "600"], detach=True, labels={"keystone.run": "of-another-run"}
    )
    try:
        hanging("agent").kill()
        job.post()
        foreign.reload()
        assert foreign.status == "running"
        assert job.left() == []
    finally:
        foreign.remove(force=True)


def test_a_failing_service_leaves_nothing(job: ActionJob, image: Callable[[str], str]) -> None:
    spec = document("agent", "true", "")
    spec["services"].append({"name": "broken", "image": image("keystone-test-exits:1"), "ports": [80]})
    job.write(spec)
    step = job.run()
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (3, "error", []), step.raw_log
    assert "broken" in job.cell["error"]
    assert job.left() == []
