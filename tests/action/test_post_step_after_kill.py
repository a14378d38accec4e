"""The post step of a step that was killed: nothing on the pull request says for ever that it runs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner
from support.github_state import ACTIONS_BOT

from keystone_action.action import post as after
from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits
from keystone_action.report.comment.history import LastResult, Marker
from keystone_action.report.comment.render import CommentFacts, CommentProgress, render_running

HEAD = "2" * 40
MARKER = Marker.of_key("mine")
INPUTS = {"comment-key": "mine"}
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "true"}
invariants:
  done: {check: {type: file_absent, path: other.txt}}
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keystone_action.engine.connect._DEFAULT", "unix:///does/not/exist/docker.sock")
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="octo/agents")
        yield fake


def post(runner: FakeRunner, state: dict[str, str], **inputs: str) -> str:
    stream = io.StringIO()
    kept = {f"STATE_{name}": value for name, value in state.items()}
    environ = runner.environment({**INPUTS, **inputs}, env=kept, files={})
    assert after.main(environ, stdout=stream) == 0
    return stream.getvalue()


def test_a_killed_step_is_an_error_and_keeps_what_was_known(tmp_path: Path, github: FakeGitHub) -> None:
    known = LastResult("pass", 1.0, "1" * 40, {})
    running = render_running(CommentProgress(3, 1), MARKER, CommentFacts(before=known))
    comment = github.state.add_comment(17, running, created_by=ACTIONS_BOT)
    post(FakeRunner(tmp_path, event="pull_request", github=github), {"run": "1-1-0123abcd"})
    assert comment.body.startswith("## 💥 Keystone: ")
    assert "stopped before it could tell how it ended" in comment.body
    assert LastResult.decode(MARKER.memory(comment.body)) == known
    assert [(one["state"], one["sha"]) for one in github.state.statuses] == [("error", HEAD)]


def test_a_step_that_reported_is_not_contradicted(tmp_path: Path, github: FakeGitHub) -> None:
    runner = FakeRunner(tmp_path, event="pull_request", github=github)
    (runner.workspace / "keystone.yaml").write_text(SPEC)
    step = runner.step(INPUTS)
    assert (step.exit_code, step.state["reported"]) == (0, "true")
    before = github.calls()
    post(runner, step.state)
    assert github.calls() == before
    assert github.state.comments[0].body.startswith("## ✅ Keystone: ")


@pytest.mark.parametrize("change", ["", "forged", "link", "run"])
def test_what_a_step_had_no_time_to_tell_is_told_if_it_is_what_the_step_left(
    tmp_path: Path, github: FakeGitHub, change: str
) -> None:
    runner = FakeRunner(tmp_path, event="pull_request", github=github)
    (runner.workspace / "keystone.yaml").write_text(SPEC)
    state = runner.step({**INPUTS, "comment": "never", "status-context": ""}).state
    del state["reported"]
    results = runner.workspace / "keystone-results" / "results.json"
    if change == "forged":
        results.write_text(results.read_text().replace("suite", "other"))
    elif change == "link":
        results.symlink_to(results.rename(tmp_path / "elsewhere.json"))
    elif change == "run":
        state["run"] = "1-1-0123abcd"
    post(runner, state)
    first = "## 💥 Keystone: " if change else "## ✅ Keystone: "
    assert github.state.comments[0].body.startswith(first)
    assert [one["state"] for one in github.state.statuses] == ["error" if change else "success"]


def test_results_that_lay_there_before_are_not_what_the_step_came_to(tmp_path: Path, github: FakeGitHub) -> None:
    runner = FakeRunner(tmp_path, event="pull_request", github=github)
    (runner.workspace / "keystone.yaml").write_text(SPEC)
    (runner.workspace / "keystone-results").mkdir()
    (runner.workspace / "keystone-results" / "results.json").write_text("{}")
    assert runner.step(INPUTS).exit_code == 2
    assert "results" not in runner.saved_state()


@pytest.mark.parametrize(
    ("event", "inputs"), [("pull_request_fork", {}), ("pull_request", {"shard": "1/2"}), ("schedule", {})]
)
def test_where_nothing_is_posted_nothing_is_posted_of_a_kill(
    tmp_path: Path, github: FakeGitHub, event: str, inputs: dict[str, str]
) -> None:
    post(FakeRunner(tmp_path, event=event, github=github), {"run": "1-1-0123abcd"}, **inputs)
    assert github.calls() == []


def test_a_dead_api_does_not_fail_the_post_step(tmp_path: Path, github: FakeGitHub) -> None:
    for method in ("GET", "POST"):
        github.fault(method, "*", status=500, times=None)
    log = post(FakeRunner(tmp_path, event="pull_request", github=github), {"run": "1-1-0123abcd"})
    assert "the comment is not posted on #17" in log
