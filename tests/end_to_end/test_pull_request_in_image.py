"""The built image, started by the runner's command line, tells a fake GitHub on this machine how its run ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.action_job import ActionJob
from support.fake_github import FakeGitHub
from support.fake_runner import MERGE_SHA

pytestmark = pytest.mark.docker

SPEC = {
    "version": 1,
    "id": "suite",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": "touch done.txt"},
    "invariants": {"done": {"check": {"type": "file_exists", "path": "done.txt"}}},
}


@pytest.fixture
def github(job: ActionJob) -> Iterator[FakeGitHub]:
    """At the address where the step's container finds it."""
    with FakeGitHub(host=job.gateway) as fake:
        fake.state.repository = job.runner.repository
        fake.state.add_pull(17, head_sha=MERGE_SHA, head_repository=job.runner.repository)
        job.runner.github = fake
        yield fake


def test_a_run_in_the_image_comments_and_sets_its_status(job: ActionJob, github: FakeGitHub) -> None:
    job.write(SPEC)
    job.inputs["comment"] = "always"
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    (comment,) = github.state.comments
    assert step.outputs["comment-id"] == str(comment.id)
    assert comment.body.startswith("## ✅ Passed: composite 1.00")
    assert [(one["state"], one["sha"]) for one in github.state.statuses] == [
        ("pending", MERGE_SHA),
        ("success", MERGE_SHA),
    ]
    before = github.calls()
    after = job.post()
    assert (after.exit_code, after.rejected, github.calls()) == (0, [], before), after.raw_log
