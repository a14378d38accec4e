"""plan → three shards → merge with the built image, by the runner's own command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.action_job import ActionJob

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


def test_three_shards_and_their_verdict(job: ActionJob) -> None:
    job.write(SPEC)
    job.inputs = {"mode": "plan", "shards": "3"}
    planned = job.run()
    assert (planned.exit_code, planned.rejected) == (0, []), planned.raw_log
    for number, shard in enumerate(json.loads(planned.outputs["matrix"])["shard"]):
        job.inputs = {"shard": shard, "fail-on": "never", "output-dir": f"shards/keystone-shard-{number}"}
        assert job.run().exit_code == 0
    job.inputs = {"mode": "merge", "results": "shards"}
    joined = job.run()
    assert (joined.exit_code, joined.rejected) == (0, []), joined.raw_log
    assert (joined.outputs["verdict"], joined.outputs["total"]) == ("flaky", "15")
    assert job.document["plan"]["shard"] is None
    assert len(list((job.runner.workspace / "keystone-results" / "cells").iterdir())) == 15
    assert job.runner.foreign() == []
    job.inputs = {"output-dir": "whole"}
    whole = job.run()
    assert (whole.exit_code, whole.outputs["composite"]) == (0, joined.outputs["composite"])
