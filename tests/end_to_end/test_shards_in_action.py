"""plan → three shards → merge with the built image, by the runner's own command line; one comment and one status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.action_job import HEAD, ActionJob
from support.fake_github import FakeGitHub

pytestmark = pytest.mark.docker

SPEC: dict[str, Any] = {
    "version": 1,
    "id": "suite",
    "task": {"prompt": "do it"},
    "agent": {
        "type": "command",
        "command": 'test "$REPLICA" = 1 || touch done.txt',
        "env": {"REPLICA": "{{ cell.replica }}"},
    },
    "parallelism": {"replicas": 3},
    "scenarios": [{"id": name, "prompt": name} for name in ("add", "bulk", "copy", "drop", "edit")],
    "invariants": {"done": {"check": {"type": "file_exists", "path": "done.txt"}}},
    "scoring": {"replica_aggregation": "majority"},
}


def test_three_shards_and_their_verdict(job: ActionJob, github_of_job: FakeGitHub) -> None:
    job.runner.happened("pull_request")
    job.write(SPEC)
    job.inputs = {"mode": "plan", "shards": "3"}
    planned = job.run()
    assert (planned.exit_code, planned.rejected) == (0, []), planned.raw_log
    for number, shard in enumerate(json.loads(planned.outputs["matrix"])["shard"]):
        job.inputs = {"shard": shard, "fail-on": "never", "output-dir": f"shards/keystone-shard-{number}"}
        assert job.run().exit_code == 0
    # A shard tells nobody; it may ask for the lines that its summary leads to.
    assert [call for call in github_of_job.calls() if not call.startswith("GET /contents/")] == []
    job.inputs = {"mode": "merge", "results": "shards"}
    joined = job.run()
    assert (joined.exit_code, joined.rejected) == (0, []), joined.raw_log
    assert (joined.outputs["verdict"], joined.outputs["total"]) == ("flaky", "15")
    (comment,) = github_of_job.state.comments
    assert comment.body.startswith("## ⚠️ Keystone: suite passed, but is flaky: ")
    assert joined.outputs["comment-id"] == str(comment.id)
    (*_, status) = github_of_job.state.statuses
    assert (status["state"], status["sha"], status["context"]) == ("success", HEAD, "keystone/evaluate")
    assert job.document["plan"]["shard"] is None
    assert len(list((job.runner.workspace / "keystone-results" / "cells").iterdir())) == 15
    assert job.runner.foreign() == []
    job.inputs = {"output-dir": "whole", "comment": "never", "status-context": ""}
    whole = job.run()
    assert (whole.exit_code, whole.outputs["composite"]) == (0, joined.outputs["composite"])
