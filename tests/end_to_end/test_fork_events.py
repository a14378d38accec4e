"""Code of a fork beside secrets: refused unless an input allows it, also when a comment asks for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.event_steps import HEAD, states, step
from support.fake_github import FakeGitHub

from keystone_action.github import pulls
from keystone_action.github.api.requests import RequestLimits


@pytest.mark.parametrize("fixture", ["pull_request_target_fork", "workflow_run_fork"])
def test_code_of_a_fork_beside_secrets_is_refused_with_an_explanation(
    tmp_path: Path, github: FakeGitHub, fixture: str
) -> None:
    done = step(tmp_path, github, fixture)
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert "allow-pull-request-target" in done.issues[0].message
    assert "Run on pull_request" in done.summary
    assert states(github) == [("error", HEAD)]
    assert not list(tmp_path.rglob("results.json"))


@pytest.mark.parametrize("fixture", ["pull_request_target_fork", "workflow_run_fork"])
def test_it_runs_where_it_is_allowed(tmp_path: Path, github: FakeGitHub, fixture: str) -> None:
    done = step(tmp_path, github, fixture, **{"allow-pull-request-target": "true"})
    assert (done.exit_code, done.outputs["verdict"]) == (0, "pass")
    assert states(github) == [("pending", HEAD), ("success", HEAD)]
    assert len(github.state.comments) == (1 if fixture.startswith("pull_request") else 0)


@hostile(
    "pull request",
    "a comment on a fork's pull request runs its code",
    held_by="GitHub is asked whose code it is",
    sandbox="none",
)
@pytest.mark.parametrize("head", ["mallory/agents", None])
@pytest.mark.parametrize("mode", [{}, {"mode": "plan", "shards": "2"}])
def test_a_comment_on_a_forks_pull_request_runs_nothing(
    tmp_path: Path, github: FakeGitHub, head: str | None, mode: dict[str, str]
) -> None:
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository=head)
    done = step(tmp_path, github, "issue_comment", **mode)
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert "issue_comment would run the code of a fork" in done.issues[0].message
    assert "allow-pull-request-target" in done.issues[0].message
    assert not list(tmp_path.rglob("results.json"))


@hostile(
    "pull request", "a comment on a pull request whose origin nobody can tell", held_by="it is refused", sandbox="none"
)
@pytest.mark.parametrize("fault", [{"status": 404}, {"status": 403}, {"how": "reset"}])
def test_a_comment_on_a_pull_request_that_nobody_knows_runs_nothing(
    tmp_path: Path, github: FakeGitHub, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "_PATIENCE", RequestLimits(tries=1, waiting=0.0))
    github.fault("GET", "/pulls/17", times=None, **fault)
    done = step(tmp_path, github, "issue_comment")
    assert (done.exit_code, done.outputs["verdict"]) == (2, "error")
    assert "code of unknown origin (pull request #17 could not be read" in done.issues[0].message


@honest(
    "pull request",
    "a comment on a fork's pull request runs its code",
    "a comment on a pull request whose origin nobody can tell",
    sandbox="none",
)
@pytest.mark.parametrize("fixture", ["issue_comment", "issue_comment_on_issue"])
def test_a_comment_on_a_pull_request_of_ones_own_and_on_an_issue_runs(
    tmp_path: Path, github: FakeGitHub, fixture: str
) -> None:
    """The honest twins."""
    done = step(tmp_path, github, fixture)
    assert (done.exit_code, done.outputs["verdict"]) == (0, "pass")
    assert github.calls() == (["GET /pulls/17"] if fixture == "issue_comment" else [])


def test_a_comment_on_a_forks_pull_request_runs_where_it_is_allowed(tmp_path: Path, github: FakeGitHub) -> None:
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    done = step(tmp_path, github, "issue_comment", **{"allow-pull-request-target": "true"})
    assert (done.exit_code, done.outputs["verdict"], github.calls()) == (0, "pass", [])
