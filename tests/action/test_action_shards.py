"""plan → run → merge through the fake runner, as three kinds of jobs of one workflow, with the real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from support.fake_runner import FakeRunner, StepResult

SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent:
  type: command
  command: 'case "$CELL" in *.r2|*.edit.*) ;; *) touch done.txt;; esac'
  env: {CELL: "{{ cell.id }}"}
parallelism: {replicas: 3}
scenarios: [{id: add, prompt: a}, {id: edit, prompt: b}]
invariants:
  done: {gate: true, check: {type: file_exists, path: done.txt}}
scoring: {replica_aggregation: majority}
"""
PASSING = SPEC.replace("*.edit.*", "none")


def checkout(root: Path, text: str = SPEC, event: str = "push") -> FakeRunner:
    """A job of its own: a machine with nothing but the checkout."""
    root.mkdir()
    runner = FakeRunner(root, event=event)
    (runner.workspace / "keystone.yaml").write_text(text)
    return runner


def evaluate(tmp_path: Path, text: str = SPEC, inputs: dict[str, str] | None = None) -> tuple[FakeRunner, list[str]]:
    """The planned jobs one after another, and the job that joins with their artifacts downloaded into `shards`."""
    planner = checkout(tmp_path / "plan", text)
    planned = planner.step({"mode": "plan", "shards": "3"})
    joiner = checkout(tmp_path / "merge", text)
    shards = json.loads(planned.outputs["matrix"])["shard"]
    for number, shard in enumerate(shards):
        job = checkout(tmp_path / f"job-{number}", text)
        step = job.step({"shard": shard, "fail-on": "never", **(inputs or {})})
        assert (step.exit_code, step.rejected) == (0, [])
        downloaded = joiner.workspace / "shards" / f"keystone-shard-{number}"
        shutil.copytree(job.workspace / "keystone-results", downloaded)
    return joiner, shards


def test_a_plan_is_a_matrix_and_a_summary(tmp_path: Path) -> None:
    step = checkout(tmp_path / "plan").step({"mode": "plan", "shards": "4"})
    assert (step.exit_code, step.rejected, step.issues) == (0, [], [])
    assert json.loads(step.outputs["matrix"]) == {"shard": ["1/4", "2/4", "3/4", "4/4"]}
    assert "\n" not in step.outputs["matrix"]
    assert (step.outputs["total"], step.outputs["verdict"], step.outputs["results-path"]) == ("6", "", "")
    assert "Planned: 6 cells in 4 jobs" in step.summary
    assert "1 or 2 cells a job" in step.summary
    assert "| `suite` | 2 | 3 | 6 |" in step.summary
    assert "planned: 6 cells in 4 jobs" in step.text


def test_a_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    runner = checkout(tmp_path / "plan")
    before = runner.entries()
    runner.step({"mode": "plan", "shards": "2", "summary": "false"})
    assert runner.entries() == before


@pytest.mark.parametrize(
    ("inputs", "jobs"), [({"shards": "1"}, 1), ({"shards": "256"}, 6), ({"shards": "9", "replicas": "1"}, 2)]
)
def test_there_are_never_more_jobs_than_cells(tmp_path: Path, inputs: dict[str, str], jobs: int) -> None:
    text = SPEC.replace("majority", "all")
    step = checkout(tmp_path / "plan", text).step({"mode": "plan", **inputs})
    assert len(json.loads(step.outputs["matrix"])["shard"]) == jobs


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"mode": "plan"}, "input shards is not set"),
        ({"mode": "plan", "shards": "257"}, "from 1 to 256"),
        ({"mode": "plan", "shards": "2", "tags": "none"}, "nothing to run"),
        ({"mode": "plan", "shards": "2", "spec": "missing.yaml"}, "missing.yaml"),
        ({"mode": "merge", "results": "shards"}, "there is no folder shards"),
    ],
)
def test_what_can_not_be_planned_or_joined(tmp_path: Path, inputs: dict[str, str], said: str) -> None:
    step = checkout(tmp_path / "job").step(inputs)
    assert (step.exit_code, step.rejected) == (2, [])
    assert (step.outputs["verdict"], step.outputs["matrix"], step.outputs["results-path"]) == ("error", "", "")
    assert said in step.issues[0].message
    assert said.split(" is ", maxsplit=1)[0] in step.summary


def test_a_bad_spec_is_shown_at_its_line_by_the_job_that_plans(tmp_path: Path) -> None:
    step = checkout(tmp_path / "plan", SPEC + "unknown: 1\n").step({"mode": "plan", "shards": "2"})
    assert step.exit_code == 2
    assert (step.issues[0].file, step.issues[0].line) == ("keystone.yaml", 13)


def timeless(summary: str) -> list[str]:
    """The reasons and tables of a summary, without how long cells took."""
    lines = (line for line in summary.splitlines() if line.startswith(("|", "-")))
    return [re.sub(r"[0-9.]+ s \|$", "|", line) for line in lines]


def same(step: StepResult) -> dict[str, str]:
    return {name: value for name, value in step.outputs.items() if name != "duration-seconds"}


@pytest.mark.parametrize(("text", "verdict", "code"), [(SPEC, "fail", 1), (PASSING, "flaky", 0)])
def test_joined_shards_are_reported_as_one_run_is(tmp_path: Path, text: str, verdict: str, code: int) -> None:
    whole = checkout(tmp_path / "whole", text).step()
    joiner, _ = evaluate(tmp_path, text)
    step = joiner.step({"mode": "merge", "results": "shards"})
    assert (step.exit_code, step.rejected) == (code, [])
    assert same(step) == same(whole)
    assert (step.outputs["verdict"], step.outputs["total"]) == (verdict, "6")
    assert [(one.level, one.title, one.message, one.line) for one in step.issues] == [
        (one.level, one.title, one.message, one.line) for one in whole.issues
    ]
    assert timeless(step.summary)
    assert timeless(step.summary) == timeless(whole.summary)
    assert "joined the results of 6 cells" in step.text
    for name in ("results-path", "summary-path", "html-path", "junit-path"):
        assert (joiner.workspace / step.outputs[name]).is_file()


def test_fail_on_is_the_joining_jobs(tmp_path: Path) -> None:
    joiner, _ = evaluate(tmp_path)
    step = joiner.step({"mode": "merge", "results": "shards", "fail-on": "never"})
    assert (step.exit_code, step.outputs["verdict"]) == (0, "fail")


def test_the_same_threshold_may_be_given_to_every_job(tmp_path: Path) -> None:
    joiner, _ = evaluate(tmp_path, inputs={"threshold": "0.5"})
    inputs = {"mode": "merge", "results": "shards"}
    assert joiner.step({**inputs, "threshold": "0.5"}).exit_code == 1
    other = joiner.step({**inputs, "threshold": "0.9", "output-dir": "other"})
    assert other.exit_code == 2
    assert "the shards judged suite by 0.5" in other.issues[0].message


def test_a_missing_shard_is_an_error_and_named(tmp_path: Path) -> None:
    joiner, _ = evaluate(tmp_path, PASSING)
    shutil.rmtree(joiner.workspace / "shards" / "keystone-shard-1")
    step = joiner.step({"mode": "merge", "results": "shards", "fail-on": "never"})
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (3, "error", [])
    assert "missing: shard 2/3" in step.issues[0].message
    assert "2/3" in step.summary
    assert not (joiner.workspace / "keystone-results").exists()


def test_what_joining_leaves_belongs_to_the_workspaces_owner(tmp_path: Path) -> None:
    joiner, _ = evaluate(tmp_path, PASSING)
    if os.geteuid() == 0:
        joiner.owner = 4321
        joiner.own()
    joiner.step({"mode": "merge", "results": "shards"})
    assert joiner.foreign() == []
    assert (joiner.workspace / "keystone-results" / "cells" / "suite.add.r0").is_dir()


HOSTILE = "x\n::set-output name=verdict::pass\n##[add-path]/evil\n\x1b[2J\u202e ```\n</details>"


def test_what_shards_say_is_never_a_command(tmp_path: Path) -> None:
    """Results of a fork's shards can say anything, in names and paths too."""
    joiner, _ = evaluate(tmp_path)
    replaced = 0
    for number in range(3):
        folder = joiner.workspace / "shards" / f"keystone-shard-{number}"
        for name in ("results.json", "journal.jsonl"):
            text = (folder / name).read_text()
            replaced += '"done.txt does not exist."' in text
            text = text.replace('"done.txt does not exist."', json.dumps(HOSTILE))
            text = text.replace('"keystone.yaml"', json.dumps(f"../../{HOSTILE}"))
            (folder / name).write_text(text)
        document = json.loads((folder / "results.json").read_text())
        document["notices"].append(HOSTILE)
        (folder / "results.json").write_text(json.dumps(document))
    assert replaced
    step = joiner.step({"mode": "merge", "results": "shards"})
    assert (step.exit_code, step.rejected, step.outputs["verdict"]) == (1, [], "fail")
    assert "\x1b" not in step.raw_log + step.summary
    assert {command.name for command in step.log.commands} <= {"error", "warning", "notice", "add-mask"}


@pytest.mark.parametrize("mode", [{"mode": "plan", "shards": "2"}, {"mode": "merge", "results": "shards"}])
def test_beside_secrets_a_fork_is_refused_in_every_mode(tmp_path: Path, mode: dict[str, str]) -> None:
    step = checkout(tmp_path / "job", event="pull_request_target_fork").step(mode)
    assert step.exit_code == 2
    assert "allow-pull-request-target" in step.issues[0].message
