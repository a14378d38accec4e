"""`baseline: auto` against a fake GitHub: which run's artifact it takes, and what it says when there is none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, FakeRunner, StepResult
from support.github_state import FORK, REPOSITORY
from support.shard_runs import cell, spec, whole

from keystone_action.github import baseline
from keystone_action.github.baseline import MAX_FOUND, artifact_names
from keystone_action.report.write import render_results
from keystone_action.scoring.results import PlanInfo

pytestmark = pytest.mark.command

WORKFLOW = "evaluate.yml"
NAME = "keystone-results-agent"
SPEC = """
version: 1
id: alpha
task: {prompt: "do it"}
agent: {type: command, command: "touch %s"}
invariants:
  holds: {check: {type: file_exists, path: there}}
"""
ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def results(verdict: str = "pass", **changes: Any) -> dict[str, str | bytes]:
    """The files of an artifact of a run of SPEC."""
    one = cell("alpha", "alpha", 0, verdict, score=float(verdict == "pass"))
    run = replace(whole([spec("alpha", [one])]), **changes)
    return {"results.json": render_results(run), "summary.md": "x"}


SHARD = PlanInfo("1/2", 2, "d" * 64, {"alpha": "a" * 64})


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


def leave(github: FakeGitHub, files: Any = None, *, name: str = NAME, expired: bool = False, **run: Any) -> int:
    """A run of the workflow with its artifact; returns the run's id."""
    made = github.state.add_run(workflow=WORKFLOW, **run)
    github.state.add_artifact(made.id, name, results() if files is None else files, expired=expired)
    return made.id


def step(
    tmp_path: Path, github: FakeGitHub, *, token: str = "read-only", left: str = "elsewhere", **inputs: str
) -> StepResult:
    payload = json.loads((EVENTS / "pull_request.json").read_text().replace("octo/agents", REPOSITORY))
    job = FakeRunner(
        tmp_path / "job", event="pull_request", payload=payload, repository=REPOSITORY, github=github, token=token
    )
    (job.workspace / "keystone.yaml").write_text(SPEC % left)
    given = {"baseline": "auto", "comment-key": "agent", "comment": "never", "status-context": "", **inputs}
    done = job.step({name.replace("_", "-"): value for name, value in given.items()}, env=ENGINE)
    assert done.rejected == []
    return done


def test_the_newest_results_of_the_base_branch(tmp_path: Path, github: FakeGitHub) -> None:
    leave(github, results("fail"))
    newest = leave(github, event="schedule", conclusion="failure")
    done = step(tmp_path, github, fail_on="regression")
    assert done.exit_code == 1
    assert "**Against the baseline:** 2 broken" in done.summary
    assert f"run {newest} of main (schedule, " in done.summary
    assert f"baseline: run {newest} of main" in done.text


@pytest.mark.parametrize(
    "other",
    [
        {"head_repository": FORK},
        {"event": "pull_request"},
        {"event": "workflow_dispatch"},
        {"head_branch": "feature"},
        {"expired": True},
        {"name": "keystone-results-other"},
        {"status": "in_progress", "conclusion": None},
    ],
)
def test_runs_that_do_not_count(tmp_path: Path, github: FakeGitHub, other: dict[str, Any]) -> None:
    good = leave(github)
    leave(github, results("fail"), **other)
    done = step(tmp_path, github)
    assert f"baseline: run {good} of main" in done.text


EMPTY = {"results.json": render_results(whole([spec("alpha", [])]))}
UNFIT = [EMPTY, {"summary.md": "x"}, {"results.json": "{}"}, {"../results.json": "{}"}, b"no zip"]


@pytest.mark.parametrize("part", [results(cancelled=True), results(plan=SHARD), results("error"), *UNFIT])
def test_a_run_that_says_little_hides_no_regression(tmp_path: Path, github: FakeGitHub, part: Any) -> None:
    """Beside a cancelled run of main all that it had not reached would be new, and beside one without a grade nothing
    could be compared: the newest that can serve is taken."""
    good = leave(github)
    little = leave(github, part)
    done = step(tmp_path, github, fail_on="regression")
    assert f"baseline: run {good} of main" in done.text
    assert f"no baseline is run {little} of main" in done.text
    assert done.exit_code == 1


def test_not_all_artifacts_are_fetched(tmp_path: Path, github: FakeGitHub) -> None:
    leave(github)
    for _ in range(MAX_FOUND):
        leave(github, results(cancelled=True))
    done = step(tmp_path, github, fail_on="regression")
    assert "of a run that went to its end and graded something (5 looked at); of the newest: it did not" in done.summary


def test_an_artifact_that_is_too_large_is_not_fetched(
    tmp_path: Path, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "MAX_SIZE", 1 << 20)
    large = leave(github, {**results(), "cells/diff.patch": random.Random(0).randbytes(2 << 20)})
    done = step(tmp_path, github)
    assert f"keystone-results-agent of run {large} has 2 MiB; at most 1 are fetched" in done.summary
    assert "upload results.json alone" in done.summary


def test_what_was_there_when_it_was_listed_is_passed_over(tmp_path: Path, github: FakeGitHub) -> None:
    good = leave(github)
    leave(github, results("fail"))
    gone = max(github.state.artifacts)
    github.fault("GET", f"/actions/artifacts/{gone}/zip", status=410, message="Artifact has expired")
    assert f"baseline: run {good} of main" in step(tmp_path, github).text


def test_no_answer_ends_the_search_with_its_sentence(tmp_path: Path, github: FakeGitHub) -> None:
    leave(github)
    leave(github, results(cancelled=True))
    newest = max(github.state.artifacts)
    github.fault("GET", f"/actions/artifacts/{newest}/zip", status=403, message="Resource not accessible")
    done = step(tmp_path, github)
    assert "baseline: run" not in done.text
    assert f"no baseline: the artifact {newest} could not be downloaded" in done.summary


def test_what_failed_there_too_does_not_fail_the_step(tmp_path: Path, github: FakeGitHub) -> None:
    leave(github, results("fail"))
    done = step(tmp_path, github, fail_on="regression")
    assert (done.exit_code, done.outputs["verdict"]) == (0, "fail")


@pytest.mark.parametrize("fail_on", ["regression", "threshold"])
def test_none_is_said_and_the_threshold_decides(tmp_path: Path, github: FakeGitHub, fail_on: str) -> None:
    leave(github, expired=True)
    done = step(tmp_path, github, fail_on=fail_on)
    assert done.exit_code == 1
    assert (
        "no baseline: no run of evaluate.yml on main, from a push or schedule, has an unexpired artifact"
        in done.summary
    )
    assert ("threshold decides" in done.summary) == (fail_on == "regression")


def test_a_token_without_the_permission_names_it(tmp_path: Path, github: FakeGitHub) -> None:
    leave(github)
    value = github.token("read-only")
    known = github.state.tokens[value]
    github.state.private = True
    github.state.tokens[value] = replace(known, permissions={**known.permissions, "actions": ""})
    done = step(tmp_path, github)
    assert done.exit_code == 1
    assert "actions: read" in done.summary


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"keystone-results/results.json": "{}"}, "holds no results.json"),
        ({"results.json": "{"}, "is not a JSON document"),
        ({"results.json": "{}"}, "schema_version"),
        ({"../results.json": "{}"}, "no baseline"),
        (b"no zip", "the archive is broken"),
    ],
)
def test_an_artifact_that_is_none_changes_nothing_else(
    tmp_path: Path, github: FakeGitHub, files: Any, said: str
) -> None:
    leave(github, files)
    done = step(tmp_path, github, left="there", fail_on="regression")
    assert (done.exit_code, done.outputs["verdict"]) == (0, "pass")
    assert said in done.summary


def test_a_path_of_the_workspace(tmp_path: Path, github: FakeGitHub) -> None:
    first = step(tmp_path, github, left="there", baseline="")
    assert first.exit_code == 0
    before = tmp_path / "job" / "_work" / "evals" / "evals" / "keystone-results"
    (tmp_path / "again").mkdir()
    before.rename(tmp_path / "kept")
    payload = json.loads((EVENTS / "push.json").read_text().replace("octo/agents", REPOSITORY))
    job = FakeRunner(tmp_path / "again", payload=payload, repository=REPOSITORY, github=github)
    (job.workspace / "keystone.yaml").write_text(SPEC % "elsewhere")
    (tmp_path / "kept").rename(job.workspace / "before")
    inputs = {"baseline": "before", "fail-on": "regression", "comment": "never", "status-context": ""}
    done = job.step(inputs, env=ENGINE)
    assert done.exit_code == 1
    assert "**Against the baseline:** 2 broken" in done.summary
    missing = job.step({**inputs, "baseline": "nowhere", "output-dir": "other"}, env=ENGINE)
    assert missing.exit_code == 2
    assert "there is no baseline" in missing.summary


def test_a_mode_that_runs_nothing_refuses_it(tmp_path: Path, github: FakeGitHub) -> None:
    done = step(tmp_path, github, mode="plan", shards="2")
    assert done.exit_code == 2
    assert "since mode is plan" in done.text


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("agent", ("keystone-results-agent",)),
        ("agent one/ü", ("keystone-results-agent-one--",)),
        (
            "o/r/.github/workflows/e.yml@refs/pull/7/merge-__self-0",
            (
                "keystone-results-o-r--github-workflows-e-yml-__self-0".replace("_", "-"),
                "keystone-results-o-r--github-workflows-e-yml-refs-pull-7-merge-__self-0".replace("_", "-"),
            ),
        ),
    ],
)
def test_names_of_artifacts(key: str, names: tuple[str, ...]) -> None:
    """4: "all but letters, digits and `-` made `-`"; the branch of the default key is another one on the base."""
    environ = {"GITHUB_WORKFLOW_REF": "o/r/.github/workflows/e.yml@refs/pull/7/merge"}
    assert artifact_names(key, environ) == names
