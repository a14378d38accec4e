"""self-test.yml, played with the built image by the runner's own command line: what GitHub would find on this tree."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from support.action_image import action_base, action_image
from support.action_job import EIGHT, RUNNER_USER
from support.fake_runner import ROOT, FakeRunner, StepResult
from support.images import POSTGRES, PYTHON
from support.workflow_play import Played, Player

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["action_base", "action_image"]

pytestmark = [pytest.mark.docker, pytest.mark.slow]

WORKFLOW = (ROOT / ".github" / "workflows" / "self-test.yml").read_text("utf-8")
SERVICES = yaml.safe_load(WORKFLOW)["jobs"]["services"]["services"]


def checkout(workspace: Path) -> None:
    for folder in ("examples", "tests/self-test"):
        shutil.copytree(ROOT / folder, workspace / folder, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def network(engine: DockerClient, image: Callable[[str], str]) -> Iterator[str]:
    """That of the job with services, and its service in it, as the runner makes them."""
    ((alias, service),) = SERVICES.items()
    assert service["image"] == POSTGRES
    with ExitStack() as closing:
        made = engine.networks.create(f"github_network_{uuid.uuid4().hex}", labels={"5588e4": ""})
        closing.callback(made.remove)
        labels = {"5588e4": ""}
        container = engine.containers.create(image(POSTGRES), environment=service["env"], labels=labels)
        closing.callback(container.remove, force=True, v=True)
        made.connect(container, aliases=[alias])
        container.start()
        yield str(made.name)


@pytest.fixture
def without_engine() -> list[FakeRunner]:
    """The runners of the legs that have no Docker socket."""
    return []


@pytest.fixture
def played(
    tmp_path: Path, action_image: str, image: Callable[[str], str], network: str, without_engine: list[FakeRunner]
) -> Played:
    image(PYTHON)

    def in_its_container(
        job: str, runner: FakeRunner, inputs: dict[str, str], env: dict[str, str], masked: tuple[str, ...]
    ) -> StepResult:
        if job == "shard" and not inputs["shard"].startswith("1/"):
            return runner.step(inputs, env=env, masked=masked)  # without the image: one shard shows what it makes of it
        net = network if job == "services" else ""
        socket = (job, inputs.get("spec")) != ("verdicts", "examples/reconcile/keystone.yaml")
        if not socket:
            without_engine.append(runner)
        runner.owner = RUNNER_USER if os.geteuid() == 0 else runner.owner
        runner.own()
        step = runner.container_step(action_image, inputs, env=env, masked=masked, socket=socket, network=net)
        assert runner.foreign() == [], "its user could not remove them"
        return step

    return Player(tmp_path, WORKFLOW, checkout, action=in_its_container).play()


def test_every_job_comes_out_green(played: Played, without_engine: list[FakeRunner]) -> None:
    for name, legs in played.jobs.items():
        for leg in legs:
            logs = "\n".join(step.log for step in leg.steps)
            assert leg.result == "success", f"{name}: {logs}"
            assert all(step.of_ours is None or step.of_ours.rejected == [] for step in leg.steps)
    outcomes = [leg.steps[1].outcome for leg in played.jobs["verdicts"]]
    assert outcomes == ["success", "failure", "failure", "success"]
    assert len(played.jobs["shard"]) == 3
    (runner,) = without_engine
    grades_by_all_types(runner)


def grades_by_all_types(runner: FakeRunner) -> None:
    """The embedded database does without an engine; the judge, who has no key, is skipped."""
    document = json.loads((runner.workspace / "keystone-results" / "results.json").read_text("utf-8"))
    (checks,) = [cell["invariants"] for spec in document["specs"] for cell in spec["cells"]]
    assert {check["type"] for check in checks} == EIGHT
    statuses = {check["name"]: check["status"] for check in checks}
    assert statuses == {**dict.fromkeys(statuses, "pass"), "email_quality": "skip"}


def test_a_gate_that_lets_everything_through_would_be_found_out(tmp_path: Path) -> None:
    def green(
        job: str, runner: FakeRunner, inputs: dict[str, str], env: dict[str, str], masked: tuple[str, ...]
    ) -> StepResult:
        (runner.workspace / "keystone.yaml").write_text("not a spec")
        return runner.step({"spec": "tests/self-test/nothing.keystone.yaml", "mode": "run"})

    workflow = yaml.safe_load(WORKFLOW)
    workflow["jobs"] = {"verdicts": workflow["jobs"]["verdicts"]}
    played = Player(tmp_path, yaml.safe_dump(workflow), checkout, action=green).play()
    assert [leg.result for leg in played.jobs["verdicts"]] == ["failure", "failure", "success", "failure"]
