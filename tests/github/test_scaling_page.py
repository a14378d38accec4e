"""docs/scaling.md: its workflow, played job by job by the fake runner, and its arithmetic."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fake_runner import ROOT, FakeRunner, StepResult
from support.workflow_play import SUITE

from keystone_action.shards import MAX_JOBS
from tools.readme_workflow import workflow

PAGE = (ROOT / "docs" / "scaling.md").read_text("utf-8")
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(workflow(PAGE))["jobs"]


def step_of(job: str) -> dict[str, Any]:
    (found,) = [step for step in JOBS[job]["steps"] if "keystone-action@" in step.get("uses", "")]
    return found


def inputs(job: str, **contexts: str) -> dict[str, str]:
    """The step's inputs with its expressions filled in."""
    return {
        name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: contexts[match[1].replace(".", "_")], value)
        for name, value in step_of(job)["with"].items()
    }


def checkout(root: Path, rule: str) -> FakeRunner:
    root.mkdir()
    runner = FakeRunner(root, event="pull_request_fork")
    (runner.workspace / "evals").mkdir()
    (runner.workspace / "evals" / "suite.keystone.yaml").write_text(SUITE.replace("RULE", rule))
    return runner


def play(tmp_path: Path, rule: str) -> tuple[list[int], StepResult]:
    """Exit codes of the jobs that run cells, and the step that joins. What they exchange goes as their steps say."""
    planned = checkout(tmp_path / "plan", rule).step(inputs("plan"))
    matrix = json.loads(planned.outputs["matrix"])
    joiner = checkout(tmp_path / "merge", rule)
    (upload,) = [step["with"] for step in JOBS["shard"]["steps"] if "upload-artifact" in step.get("uses", "")]
    (download,) = [step["with"] for step in JOBS["merge"]["steps"] if "download-artifact" in step.get("uses", "")]
    codes = []
    for index, shard in enumerate(matrix["shard"]):
        job = checkout(tmp_path / f"shard-{index}", rule)
        codes.append(job.step(inputs("shard", matrix_shard=shard)).exit_code)
        name = upload["name"].replace("${{ strategy.job-index }}", str(index))
        assert Path(name).match(download["pattern"])
        shutil.copytree(job.workspace / upload["path"], joiner.workspace / download["path"] / name)
    return codes, joiner.step(inputs("merge"))


@pytest.mark.parametrize(("rule", "verdict", "code"), [("majority", "flaky", 0), ("all", "fail", 1)])
def test_the_workflow_comes_to_one_verdict(tmp_path: Path, rule: str, verdict: str, code: int) -> None:
    codes, step = play(tmp_path, rule)
    assert codes == [0] * 6
    assert (step.exit_code, step.outputs["verdict"], step.outputs["total"]) == (code, verdict, "6")
    assert step.rejected == []


def test_the_matrix_reaches_the_jobs() -> None:
    assert JOBS["plan"]["outputs"]["matrix"] == "${{ steps.plan.outputs.matrix }}"
    assert step_of("plan")["id"] == "plan"
    assert JOBS["shard"]["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"


def test_the_table_follows_from_the_formulas() -> None:
    rows = [
        [float(cell) for cell in line.strip("| \n").split("|")]
        for line in PAGE.splitlines()
        if re.fullmatch(r"\| [0-9]+ \|.*", line) and line.count("|") == 7
    ]
    assert [row[0] for row in rows] == [1, 20, 60, 120, 256]
    cells, minutes, at_once, start, jobs_at_once = 1500, 2, 2, 1.5, 60
    for shards, cells_a_job, a_job, waves, all_in_all, paid in rows:
        assert cells_a_job == math.ceil(cells / shards)
        assert a_job == start + math.ceil(cells / shards / at_once) * minutes
        assert waves == math.ceil(shards / jobs_at_once)
        assert all_in_all == waves * a_job
        assert paid == shards * math.ceil(a_job)
    room = MAX_JOBS * int((6 * 60 - start) // minutes) * at_once
    assert round(room, -4) == 90_000
    assert "some 90,000" in PAGE
