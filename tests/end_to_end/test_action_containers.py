"""The example in containers, as a pull request would run it: the built image, started by the runner's command line, on
a live engine; an agent in an image of its own, real databases, a scripted model as the judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.action_job import ActionJob
from support.fake_runner import StepResult
from support.model_server import KEY, ModelServer, answer

pytestmark = [pytest.mark.docker, pytest.mark.slow]

DATABASES = {"postgres": "postgres:16", "mysql": "mysql:9"}
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


@pytest.fixture
def models(job: ActionJob) -> Iterator[ModelServer]:
    """On this machine, at the address where the step's container finds it."""
    with ModelServer([answer(0.9, "professional, with numbers")], host=job.gateway) as server:
        yield server


def reconcile(job: ActionJob, models: ModelServer, spec: str) -> StepResult:
    job.check_out("reconcile")
    job.inputs["spec"] = spec
    job.env |= models.environ()
    return job.run(timeout=400)


@pytest.mark.parametrize("database", DATABASES)
def test_reconcile_passes_by_all_eight_check_types(job: ActionJob, models: ModelServer, database: str) -> None:
    step = reconcile(job, models, f"{database}.keystone.yaml")
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    assert (step.outputs["verdict"], step.outputs["total"], step.outputs["errors"]) == ("pass", "1", "0")
    for name in ("results-path", "summary-path", "html-path", "junit-path"):
        assert (job.runner.workspace / step.outputs[name]).is_file()
    assert {entry["type"] for entry in job.checks.values()} == EIGHT
    assert job.statuses == dict.fromkeys(job.checks, "pass")
    assert models.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert f"reconcile-customers-{database}" in step.summary
    assert "substituted" not in step.summary
    assert job.document["substituted"] == []
    assert job.document["sandbox"]["isolation"] == ["container"]
    assert ("service", DATABASES[database]) in job.made
    assert {kind for kind, _ in job.made} >= {"sandbox", "service"}
    assert job.left() == []
    after = job.post()
    assert (after.exit_code, after.rejected, after.issues) == (0, [], []), after.raw_log


@pytest.mark.parametrize("database", DATABASES)
def test_its_broken_twin_fails_by_its_gate(job: ActionJob, models: ModelServer, database: str) -> None:
    step = reconcile(job, models, f"{database}-broken.keystone.yaml")
    assert (step.exit_code, step.rejected) == (1, []), step.raw_log
    assert (step.outputs["verdict"], step.outputs["failed"]) == ("fail", "1")
    assert (job.cell["composite"], job.statuses["reconciliation_clean"]) == (0.0, "fail")
    # The agent's e-mail and report claim success; only the database tells the truth.
    assert (job.statuses["email_sent_once"], job.statuses["report_numbers"]) == ("pass", "pass")
    assert step.issues[0].title == f"reconcile-customers-{database}-broken: gate reconciliation_clean failed"
    assert job.left() == []


def test_databases_of_replicas_are_apart(job: ActionJob, models: ModelServer) -> None:
    job.inputs |= {"replicas": "3", "max-concurrency": "3"}
    step = reconcile(job, models, "postgres.keystone.yaml")
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    assert (step.outputs["passed"], step.outputs["total"]) == ("3", "3")
    servers = [one for one in job.made if one[0] == "service"]
    assert servers == [("service", "postgres:16")]
    assert job.left() == []


def test_the_image_is_the_command_on_a_laptop(job: ActionJob) -> None:
    job.check_out("reconcile")
    called = job.command("run", "postgres.keystone.yaml", "--output", "keystone-results")
    assert called.returncode == 0, called.stdout + called.stderr
    skipped = {"email_quality": "skip"}  # by the lack of a key
    assert job.statuses == dict.fromkeys(job.checks, "pass") | skipped
    assert ("service", "postgres:16") in job.made
    assert job.left() == []


def test_without_a_socket_a_spec_that_needs_an_image_is_refused_before_anything_runs(job: ActionJob) -> None:
    job.check_out("reconcile")
    job.inputs["spec"] = "postgres.keystone.yaml"
    step = job.run(socket=False)
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (2, "error", []), step.raw_log
    assert "Docker" in step.issues[0].message
    assert not (job.runner.workspace / "keystone-results" / "cells").exists()


def test_without_a_socket_the_embedded_database_does(job: ActionJob, models: ModelServer) -> None:
    job.check_out("reconcile")
    job.env |= models.environ()
    job.inputs["spec"] = "keystone.yaml"
    step = job.run(socket=False)
    assert (step.exit_code, step.rejected, step.outputs["verdict"]) == (0, [], "pass"), step.raw_log
    assert {entry["type"] for entry in job.checks.values()} == EIGHT
    assert job.runner.foreign() == []
