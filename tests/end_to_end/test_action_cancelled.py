"""A step that is cut short, in each phase of its life: nothing of it is left on the engine or on the machine.

Cells hang in several phases at once: a step, its services and its sandboxes cost far more than one more phase.
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.action_job import ActionJob
from support.container_step import ContainerStep
from support.images import POSTGRES, PYTHON

pytestmark = pytest.mark.docker

PHASES = ("pull", "setup", "services", "agent", "checks")
SLOW = {"version": 1, "task": {"prompt": "do it"}, "base": PYTHON}
"""The stand-in has everything that a sandbox needs, and no image is pulled for it."""
Sleeps = Mapping[str, str]


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
def sleeps() -> Sleeps:
    """By phase, a command that nobody else on this machine runs."""
    return {phase: f"sleep 1{secrets.randbelow(10**9):09}" for phase in PHASES}


def running(sleeps: Sleeps) -> set[str]:
    """The phases whose command runs on this machine."""
    wanted = {command.replace(" ", "\0").encode() + b"\0": phase for phase, command in sleeps.items()}
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(wanted.get(path.read_bytes()))
        except OSError:
            continue
    return {phase for phase in found if phase is not None}


def document(phase: str, sleep: str, registry: str) -> dict[str, Any]:
    """A spec that hangs in this phase, after a service has started and the agent has run, as far as they come first.
    The service of one is a database, whose image declares a volume."""
    spec: dict[str, Any] = {
        **SLOW,
        "id": f"slow-{phase}",
        "agent": {"type": "command", "command": "echo done > done.txt", "timeout": "5m"},
        "services": [{"name": "db", "image": PYTHON, "command": "sleep 900"}],
        "invariants": {"it": {"check": {"type": "file_exists", "path": "done.txt"}}},
    }
    if phase == "pull":
        spec["base"] = f"{registry}/agents/slow:1"
    elif phase == "setup":
        spec["setup"] = {"commands": [sleep]}
    elif phase == "services":
        spec["services"].append({"name": "never", "image": PYTHON, "command": "sleep 900", "wait_for": sleep})
    elif phase == "agent":
        spec["services"] = [{"name": "db", "image": POSTGRES, "env": {"POSTGRES_PASSWORD": "secret"}}]
        spec["agent"]["command"] = f"(setsid {sleep} &) ; {sleep}"
    else:
        spec["invariants"]["slow"] = {"check": {"type": "command_exit", "command": sleep}}
    return spec


Hanging = Callable[[Collection[str]], ContainerStep]


@pytest.fixture
def hanging(job: ActionJob, sleeps: Sleeps, registry: Registry, image: Callable[[str], str]) -> Hanging:
    """A step whose cells have come as far as these phases, one each, and stay there."""
    image(PYTHON)
    image(POSTGRES)

    def start(phases: Collection[str]) -> ContainerStep:
        documents = {phase: document(phase, sleeps[phase], registry.host) for phase in phases}
        job.write({}, {f"{phase}.keystone.yaml": json.dumps(text) for phase, text in documents.items()})
        (job.runner.workspace / "keystone.yaml").unlink()
        job.inputs |= {"spec": "*.keystone.yaml", "max-concurrency": str(len(phases))}
        step = job.start()
        asleep = set(phases) - {"pull"}
        step.until(lambda: running(sleeps) >= asleep, f"the phases {', '.join(asleep)}")
        if "pull" in phases:
            step.until(registry.asked.is_set, "the phase pull")
        return step

    return start


@pytest.mark.parametrize("phases", [PHASES[:3], PHASES[3:]], ids="-".join)
def test_a_cancelled_job(
    job: ActionJob, hanging: Hanging, sleeps: Sleeps, patient_image: str, phases: Collection[str]
) -> None:
    job.image = patient_image
    ended = hanging(phases).cancel()
    assert (ended.exit_code, ended.rejected) == (130, []), ended.raw_log
    assert ended.outputs["verdict"] == "error"
    assert "cancelled" in ended.summary.lower()
    assert running(sleeps) == set()
    assert job.left() == []
    after = job.post()
    assert (after.exit_code, after.rejected) == (0, []), after.raw_log


def test_a_stopped_container(job: ActionJob, hanging: Hanging, sleeps: Sleeps, patient_image: str) -> None:
    job.image = patient_image
    ended = hanging(("services", "agent")).terminate()
    assert (ended.exit_code, ended.rejected) == (130, []), ended.raw_log
    assert running(sleeps) == set()
    assert job.left() == []
    assert job.post().exit_code == 0


def test_a_killed_container_is_swept_at_the_end_of_the_job_and_nobody_else(
    job: ActionJob, hanging: Hanging, sleeps: Sleeps, image: Callable[[str], str]
) -> None:
    foreign = job.engine.containers.run(
        image(PYTHON), ["sleep", "600"], detach=True, labels={"keystone.run": "of-another-run"}
    )
    try:
        killed = hanging(PHASES).kill()
        assert killed.exit_code == 128 + signal.SIGKILL
        left = [one for one in job.left() if one.startswith("container")]
        assert len(left) >= len(PHASES) - 1, "else there is nothing to sweep"
        after = job.post()
        assert (after.exit_code, after.rejected) == (0, []), after.raw_log
        assert running(sleeps) == set()
        assert job.left() == []
        foreign.reload()
        assert foreign.status == "running"
    finally:
        foreign.remove(force=True)


def test_a_failing_service_leaves_nothing(job: ActionJob, image: Callable[[str], str]) -> None:
    spec = document("agent", "true", "")
    image(POSTGRES)
    spec["services"].append({"name": "broken", "image": image("keystone-test-exits:1"), "ports": [80]})
    job.write(spec)
    step = job.run()
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (3, "error", []), step.raw_log
    assert "broken" in job.cell["error"]
    assert job.left() == []
