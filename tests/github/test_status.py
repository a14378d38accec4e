"""The commit status: of which commit, which state, what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_github import FakeGitHub
from support.github_client import probe

from keystone_action.github.event import Event, read_event
from keystone_action.github.status import CommitStatus, description_of, status_sha
from keystone_action.report.escape import visible
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import RunResult, SpecResult

EVENTS = Path(__file__).parents[1] / "data" / "events"
HEAD, MERGE = "2" * 40, "3" * 40


def result(verdict: Verdict = "pass", composite: float | None = 1.0, **more: object) -> RunResult:
    spec = SpecResult("s", "k.yaml", "0" * 64, "spec", verdict, composite, 0.85, None, ())
    counts = {"cells": 3, "passed": 2, "failed": 1, "errors": 0}
    run = RunResult(
        run_id="r",
        keystone_version="0.1.0",
        git_sha=None,
        verdict=verdict,
        composite=composite,
        started_at="2026-01-01T00:00:00Z",
        duration_s=1.0,
        specs=(spec,),
        counts=counts,
    )
    return replace(run, **more)  # type: ignore[arg-type]


def sha_of(name: str, fixture: str | None = None) -> str | None:
    path = str(EVENTS / f"{fixture or name}.json")
    environ = {"GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": path, "GITHUB_REPOSITORY": "octo/agents"}
    return status_sha(read_event({**environ, "GITHUB_SHA": MERGE}))


@pytest.mark.parametrize(
    ("name", "fixture", "sha"),
    [
        ("pull_request", "pull_request", HEAD),
        ("pull_request", "pull_request_fork", HEAD),
        ("pull_request_target", "pull_request_target", HEAD),
        ("merge_group", "merge_group", HEAD),
        ("workflow_run", "workflow_run", HEAD),
        ("push", "push", MERGE),
        ("push", "push_tag", MERGE),
        ("schedule", "schedule", None),
        ("workflow_dispatch", "workflow_dispatch", None),
        ("pull_request", "missing", None),
        ("workflow_run", "missing", None),
        ("push", "missing", MERGE),
        ("merge_group", "missing", MERGE),
    ],
)
def test_of_which_commit(name: str, fixture: str, sha: str | None) -> None:
    assert sha_of(name, fixture) == sha


@pytest.mark.parametrize("sha", [None, "", "HEAD", "2" * 39, "../../user", "2" * 40 + "\n"])
def test_no_commit_no_status(sha: str | None) -> None:
    assert status_sha(Event("push", head_sha=sha)) is None


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (result("pass"), "success"),
        (result("flaky", 0.9), "success"),
        (result("fail", 0.2), "failure"),
        (result("error", None), "error"),
        (result("error", None, error="bad spec"), "error"),
        (result("pass", cancelled=True), "error"),
    ],
)
def test_the_state_is_the_verdict(run: RunResult, state: str) -> None:
    with FakeGitHub() as github:
        CommitStatus(HEAD, "keystone/evaluate", None).result(probe(github).client, run)
        assert [one["state"] for one in github.state.statuses] == [state]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (result("pass", 0.9), "Keystone: s passed: 2 of 3 cells"),
        (result("flaky", 0.9), "Keystone: s passed, but is flaky: 2 of 3 cells"),
        (result("fail", 0.2), "Keystone: s failed in 1 of 3 cells: composite 0.20 is below the threshold 0.85"),
        (
            result("error", None, error="a.yaml:1:1: unknown key\nmore"),
            "Keystone: s ended with an error: a.yaml:1:1: unknown key",
        ),
    ],
)
def test_what_it_says(run: RunResult, said: str) -> None:
    assert description_of(run) == said


@given(st.text(max_size=400))
def test_it_is_one_short_line_whatever_the_error(text: str) -> None:
    said = description_of(result("error", None, error=text))
    assert len(said) <= 140
    assert said == visible(said)
    assert len(said.splitlines()) == 1
    assert all(ord(character) < 0x10000 for character in said)


def test_pending_then_the_result() -> None:
    with FakeGitHub() as github:
        status = CommitStatus(HEAD, "keystone/evaluate", "https://github.com/o/r/actions/runs/1/attempts/1")
        client = probe(github).client
        status.pending(client)
        status.result(client, result("fail", 0.2))
        assert [(one["state"], one["context"], one["sha"]) for one in github.state.statuses] == [
            ("pending", "keystone/evaluate", HEAD),
            ("failure", "keystone/evaluate", HEAD),
        ]
        assert {one["target_url"] for one in github.state.statuses} == {status.target_url}
