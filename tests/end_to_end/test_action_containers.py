"""The example in containers, as a pull request would run it: the built image, started by the runner's command line, on
a live engine; an agent in an image of its own, real databases, a scripted model as the judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.action_job import EIGHT, ActionJob
from support.fake_runner import StepResult
from support.model_server import KEY, ModelServer, answer

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PASSING = {
    "version": 1,
    "id": "passing",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": "echo yes >answer.txt"},
    "invariants": {"answered": {"check": {"type": "file_content", "path": "answer.txt", "contains": "yes"}}},
}
DATABASES = {"postgres": "postgres:16", "mysql": "mysql:9"}


@pytest.fixture
def models(job: ActionJob) -> Iterator[ModelServer]:
    """On this machine, at the address where the step's container finds it."""
    with ModelServer([answer(0.9, "professional, with numbers")], host=job.gateway) as server:
        yield server


def statuses(cell: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["status"] for entry in cell["invariants"]}


def reconcile(job: ActionJob, models: ModelServer, *specs: str) -> StepResult:
    job.check_out("reconcile")
    job.inputs["spec"] = "\n".join(specs)
    job.env |= models.environ()
    return job.run(timeout=400)


def test_reconcile_passes_by_all_eight_check_types(job: ActionJob, models: ModelServer) -> None:
    """With both databases, and with one of its own for each replica of a server."""
    job.inputs |= {"replicas": "2", "max-concurrency": "4"}
    step = reconcile(job, models, *(f"{database}.keystone.yaml" for database in DATABASES))
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    assert (step.outputs["verdict"], step.outputs["passed"], step.outputs["total"]) == ("pass", "4", "4")
    assert step.outputs["errors"] == "0"
    for name in ("results-path", "summary-path", "html-path", "junit-path"):
        assert (job.runner.workspace / step.outputs[name]).is_file()
    found = {spec["id"]: spec["cells"] for spec in job.document["specs"]}
    assert found.keys() == {f"reconcile-customers-{database}" for database in DATABASES}
    for cell in (cell for cells in found.values() for cell in cells):
        assert {entry["type"] for entry in cell["invariants"]} == EIGHT
        assert statuses(cell) == dict.fromkeys(statuses(cell), "pass")
    assert models.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert [spec_id for spec_id in found if spec_id not in step.summary] == []
    assert "substituted" not in step.summary
    assert job.document["substituted"] == []
    assert job.document["sandbox"]["isolation"] == ["container"]
    assert {kind for kind, _ in job.made} >= {"sandbox", "service"}
    servers = sorted(image for kind, image in job.containers if kind == "service")
    assert servers == sorted(DATABASES.values()), "one of each"
    assert job.left() == []
    after = job.post()
    assert (after.exit_code, after.rejected, after.issues) == (0, [], []), after.raw_log


def test_its_broken_twin_fails_by_its_gate(job: ActionJob, models: ModelServer) -> None:
    step = reconcile(job, models, "postgres-broken.keystone.yaml")
    assert (step.exit_code, step.rejected) == (1, []), step.raw_log
    assert (step.outputs["verdict"], step.outputs["failed"]) == ("fail", "1")
    is_broken(job.cell)
    assert step.issues[0].title == "reconcile-customers-postgres-broken: gate reconciliation_clean failed"
    assert job.left() == []


def is_broken(cell: dict[str, Any]) -> None:
    found = statuses(cell)
    assert (cell["composite"], found["reconciliation_clean"]) == (0.0, "fail")
    # The agent's e-mail and report claim success; only the database tells the truth.
    assert (found["email_sent_once"], found["report_numbers"]) == ("pass", "pass")


def test_the_image_is_the_command_on_a_laptop(job: ActionJob) -> None:
    """With the other twin that is broken: a command's exit code is the run's."""
    job.check_out("reconcile")
    called = job.command("run", "mysql-broken.keystone.yaml", "--output", "keystone-results")
    assert called.returncode == 1, called.stdout + called.stderr
    is_broken(job.cell)
    by_gate, without_key = {"reconciliation_clean": "fail"}, {"email_quality": "skip"}
    assert job.statuses == dict.fromkeys(job.checks, "pass") | by_gate | without_key
    assert ("service", "mysql:9") in job.made
    assert job.left() == []


def test_a_command_on_a_laptop_that_passes(job: ActionJob) -> None:
    job.write(PASSING)
    called = job.command("run", "keystone.yaml", "--output", "keystone-results")
    assert called.returncode == 0, called.stdout + called.stderr
    assert (job.cell["verdict"], job.statuses) == ("pass", {"answered": "pass"})
    assert job.left() == []


def test_without_a_socket_a_spec_that_needs_an_image_is_refused_before_anything_runs(job: ActionJob) -> None:
    job.check_out("reconcile")
    job.inputs["spec"] = "postgres.keystone.yaml"
    step = job.run(socket=False)
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (2, "error", []), step.raw_log
    assert "Docker" in step.issues[0].message
    assert not (job.runner.workspace / "keystone-results" / "cells").exists()
