"""A job of a workflow on a machine with Docker: the built image as its step, by the runner's own command line, on the
live engine; and what is left of it.

Fixtures; a test module imports `job` (and what it rests on is found by name).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import ROOT
from support.container_step import ContainerStep
from support.engine_watch import EngineWatch
from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner, StepResult

if TYPE_CHECKING:
    from docker import DockerClient

EIGHT = {
    "command_exit",
    "custom",
    "file_absent",
    "file_content",
    "file_exists",
    "http_mock_assertions",
    "llm_as_judge",
    "sql",
}
"""The types of the checks in the example `reconcile`."""
HEAD = "2" * 40
"""Of pull request 17, which the events are about."""
RUNNER_USER = 4321
"""Whom the runner's tree belongs to, where we can give it away: what we leave must be that user's."""


class ActionJob:
    """One job. image: the action's. network: that of its `services:`, once there are some. inputs and env: of the
    step."""

    def __init__(self, root: Path, image: str, watch: EngineWatch, engine: DockerClient) -> None:
        self.runner = FakeRunner(root, owner=RUNNER_USER if os.geteuid() == 0 else None)
        self.engine = engine
        self.network = ""
        self.inputs: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.image = image
        self._watch = watch
        self._before: set[str] = set()
        self._steps: list[ContainerStep] = []
        self._closing = ExitStack()
        self._named: set[str] = set()

    @property
    def gateway(self) -> str:
        """Where containers on the default bridge reach this machine."""
        return str(self.engine.networks.get("bridge").attrs["IPAM"]["Config"][0].get("Gateway") or "172.17.0.1")

    def check_out(self, name: str) -> None:
        """An example in the workspace, as `actions/checkout` would leave it."""
        shutil.copytree(
            ROOT / "examples" / name,
            self.runner.workspace,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", ".keystone"),
        )

    def write(self, document: Mapping[str, Any], files: Mapping[str, str] | None = None) -> None:
        """keystone.yaml, and other files of the checkout by path."""
        for name, text in {"keystone.yaml": json.dumps(document), **(files or {})}.items():
            path = self.runner.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")

    def start(self, *, socket: bool = True) -> ContainerStep:
        """The step, running."""
        self.runner.own()
        self._before = self.runner.entries()
        step = self.runner.start_container(self.image, self.inputs, env=self.env, socket=socket, network=self.network)
        self._steps.append(step)
        return step

    def run(self, *, socket: bool = True, timeout: float = 300) -> StepResult:
        """The step, to its end."""
        return self.start(socket=socket).wait(timeout)

    def command(self, *words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """The image as the command, on a laptop: in the checkout, with the engine's socket, not as a step."""
        self.runner.own()
        self._before = self.runner.entries()
        run = ["docker", "run", "--rm", "--volume=/var/run/docker.sock:/var/run/docker.sock"]
        done = subprocess.run(
            [*run, f"--volume={self.runner.workspace}:/data", "--workdir=/data", self.image, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert self._results.is_file(), done.stdout + done.stderr
        self._named.add(self.document["run_id"])
        return done

    def post(self) -> StepResult:
        """The step's end of the job."""
        state = self.runner.saved_state()
        return self.runner.post_step(self.image, state, self.inputs, env=self.env, network=self.network)

    @property
    def runs(self) -> set[str]:
        """By which names what we make is labelled, as far as the steps have said so: before they make anything."""
        return {*self._named, *(run for state in self.runner.saved_states() if (run := state.get("run")))}

    @property
    def containers(self) -> list[tuple[str, str]]:
        """Kind and image of every container that the step has had so far, each for itself."""
        return [(one.kind, one.image) for one in self._watch.made(self.runs)]

    @property
    def made(self) -> set[tuple[str, str]]:
        """The same, those that are alike once."""
        return self._watch.kinds(self.runs)

    def left(self) -> list[str]:
        """Everything that is still there and should not be: on the engine, processes, files in the runner's tree that
        are not results, and files that the runner's user can't remove."""
        results = str(self.runner.workspace.relative_to(self.runner.work) / "keystone-results")
        more = sorted(one for one in self.runner.entries() - self._before if not one.startswith(results))
        return [
            *self._watch.left(self.runs),
            *(f"file {name}" for name in more),
            *(f"file of somebody else {name}" for name in self.runner.foreign()),
        ]

    @property
    def document(self) -> dict[str, Any]:
        """results.json."""
        return json.loads(self._results.read_text("utf-8"))

    @property
    def _results(self) -> Path:
        return self.runner.workspace / "keystone-results" / "results.json"

    @property
    def cell(self) -> dict[str, Any]:
        """The only cell."""
        (cell,) = (cell for spec in self.document["specs"] for cell in spec["cells"])
        return cell

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        """The invariants of the only cell."""
        return {entry["name"]: entry for entry in self.cell["invariants"]}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: entry["status"] for name, entry in self.checks.items()}

    def service(self, alias: str, image: str, command: list[str], **options: Any) -> None:
        """A container of the workflow's own `services:`, in the network that the runner makes for them."""
        if not self.network:
            name = f"github_network_{uuid.uuid4().hex}"
            network = self.engine.networks.create(name, labels={"5588e4": ""})
            self._closing.callback(network.remove)
            self.network = name
        container = self.engine.containers.create(image, command, labels={"5588e4": ""}, **options)
        self._closing.callback(container.remove, force=True, v=True)
        self.engine.networks.get(self.network).connect(container, aliases=[alias])
        container.start()

    def close(self) -> None:
        for step in self._steps:
            step.abandon()
        self._closing.close()


@pytest.fixture
def job(
    tmp_path: Path,
    action_image: str,
    watch: EngineWatch,
    engine: DockerClient,
    image: Callable[[str], str],
) -> Iterator[ActionJob]:
    """A job of one test. What a failed test left on the engine is removed."""
    from keystone_action.engine.sweep import sweep

    made = ActionJob(tmp_path, action_image, watch, engine)
    try:
        yield made
    finally:
        made.close()
        import anyio

        for run in made.runs:
            anyio.run(sweep, engine, run)


@pytest.fixture
def github_of_job(job: ActionJob) -> Iterator[FakeGitHub]:
    """What the job's token is of, at an address where its containers find it; with the pull request of the events."""
    with FakeGitHub(host=job.gateway) as fake:
        fake.state.repository = job.runner.repository
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository=job.runner.repository)
        job.runner.github = fake
        yield fake
