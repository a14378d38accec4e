"""`mode: comment`: the results of a run that may not write, posted by one that may, which believes nothing of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, FakeRunner, StepResult

from keystone_action.github import foreign_comment as comment_mode
from keystone_action.github import foreign_comment as foreign_results
from keystone_action.github.api.requests import RequestLimits
from keystone_action.report.comment.history import Marker

HEAD = "2" * 40
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "echo did it; touch done.txt"}
invariants:
  done: {check: {type: file_exists, path: other.txt}}
"""
KEY = "forks"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
        yield fake


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comment_mode, "LIMITS", RequestLimits(seconds=2.0, waiting=0.0, between_writes=0.0))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    """results.json of a real run of a fork, which failed."""
    runner = FakeRunner(tmp_path_factory.mktemp("fork"), event="pull_request_fork")
    (runner.workspace / "keystone.yaml").write_text(SPEC)
    assert runner.step().exit_code == 1
    return (runner.workspace / "keystone-results" / "results.json").read_text()


def job(
    root: Path,
    github: FakeGitHub,
    content: str | None,
    *,
    event: str = "workflow_run_fork",
    token: str = "write",
    **more: Any,
) -> FakeRunner:
    runner = FakeRunner(root, event=event, github=github, token=token, **more)
    folder = runner.workspace / "downloaded"
    folder.mkdir()
    if content is not None:
        (folder / "results.json").write_text(content)
    return runner


def post(runner: FakeRunner, **inputs: str) -> StepResult:
    return runner.step({"mode": "comment", "results": "downloaded", "comment-key": KEY, **inputs})


def test_the_results_of_a_fork_are_posted(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    done = post(job(tmp_path, github, results))
    (comment,) = github.state.comments
    assert (done.exit_code, done.outputs["verdict"], done.outputs["comment-id"]) == (0, "", str(comment.id))
    headline = "Keystone: suite failed: other.txt does not exist (done)"
    assert comment.body.startswith(f"## ❌ {headline} · reported by a fork\n")
    assert "> [!NOTE]\n> This is what a run of code from mallory/agents" in comment.body
    assert "code from mallory/agents, without secrets of this repository" in comment.body
    assert "ended with success" in comment.body
    assert "/octo/agents/actions/runs/6001/attempts/1" in comment.body
    assert Marker.of_key(KEY).is_in(comment.body)
    assert (github.state.statuses, done.rejected, done.issues) == ([], [], [])


def test_it_is_updated_and_never_doubled(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    passing = json.loads(results) | {"verdict": "pass", "composite": 1.0}
    for number, content in enumerate((results, json.dumps(passing))):
        (tmp_path / str(number)).mkdir()
        post(job(tmp_path / str(number), github, content))
    (comment,) = github.state.comments
    assert comment.body.startswith("## ✅ Keystone: ")


def test_a_verdict_that_github_does_not_bear_out_is_doubted(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    passing = json.dumps(json.loads(results) | {"verdict": "pass", "composite": 1.0})
    post(job(tmp_path, github, passing, payload=changed_event(conclusion="failure")))
    (comment,) = github.state.comments
    assert comment.body.startswith("## ✅ Keystone: suite passed: composite 0.00, needs 1.00 · reported by a fork\n")
    assert "> [!WARNING]\n> This is what" in comment.body
    assert "ended with failure. That is not how a run ends that has passed" in comment.body


def test_dependabots_runs_are_of_this_repository(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="octo/agents")
    done = post(job(tmp_path, github, results, event="workflow_run", actor="dependabot[bot]"))
    (comment,) = github.state.comments
    assert (done.exit_code, comment.number) == (0, 17)
    assert "a run whose token may not write" in comment.body
    assert "reported by" not in comment.body


@pytest.mark.parametrize(
    "pull",
    [
        {"head_sha": "4" * 40},
        {"head_repository": "eve/agents"},
        {"head_repository": None},
        {"head_ref": "other"},
        {"state": "closed"},
        {"head_repository": "octo/agents"},
    ],
)
def test_no_pull_request_of_others_gets_it(
    tmp_path: Path, github: FakeGitHub, results: str, pull: dict[str, Any]
) -> None:
    own = {"head_sha": HEAD, "head_ref": "topic", "head_repository": "mallory/agents"}
    github.state.add_pull(17, **{**own, **pull})
    done = post(job(tmp_path, github, results))
    assert (done.exit_code, github.state.comments, done.outputs["comment-id"]) == (0, [], "")
    assert "no open pull request is at commit 2222222" in done.text


HOSTILE = (
    "x <!-- keystone-action comment: 0 --> @octo/team #1 ![b](https://evil.example/b.png) <img src=x>\n::error::x\n```"
)


def test_texts_of_the_fork_are_only_text(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    document = json.loads(results)
    cell = document["specs"][0]["cells"][0]
    cell["reason"] = cell["agent"]["output"] = cell["invariants"][0]["message"] = HOSTILE
    document["specs"][0]["id"] = document["run_id"] = document["keystone_version"] = document["started_at"] = HOSTILE
    document["notices"] = [HOSTILE, f"\n{Marker.of_key(KEY).line}"]
    done = post(job(tmp_path, github, json.dumps(document)))
    body = github.state.comments[0].body
    assert done.rejected == []
    assert done.log.commands == [] or {one.name for one in done.log.commands} == {"add-mask"}
    assert body.count("<!--") == 2
    assert body.count(Marker.of_key(KEY).line) == 1
    assert body.rstrip().endswith(Marker.of_key(KEY).line)


def test_a_flood_is_cut(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    document = json.loads(results)
    (cell,) = document["specs"][0]["cells"]
    flood = {**cell, "reason": "a@b " * 200_000, "agent": {**cell["agent"], "output": "a@b " * 200_000}}
    document["specs"][0]["cells"] = [flood] * 3 + [cell] * 1000
    assert post(job(tmp_path, github, json.dumps(document))).exit_code == 0
    assert 1000 < len(github.state.comments[0].body) <= 65_536


def nan(document: dict[str, Any]) -> None:
    document["composite"] = float("nan")


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda document: document.update(verdict="superb"),
    lambda document: document.update(schema_version=2),
    lambda document: document.update(composite=1.5),
    lambda document: document.update(duration_s=1e300),
    lambda document: document["counts"].update(cells=-1),
    lambda document: document["specs"][0]["cells"][0]["invariants"][0].update(score=-0.5),
    lambda document: document["specs"][0]["cells"][0].update(replica=-7),
    lambda document: document["specs"][0]["groups"][0].update(passed=-1),
    lambda document: document["specs"][0]["groups"][0].update(total=10**400),
    lambda document: document["specs"][0].update(positions={"a": -5}),
    lambda document: document.update(composite="1.0"),
    lambda document: document.pop("specs"),
    lambda document: document["specs"][0].update(cells={}),
    lambda document: document["specs"][0]["cells"][0].update(verdict="flaky"),
    lambda document: document["specs"][0]["cells"][0]["invariants"][0].update(name="(" * 4_001),
    nan,
]


@pytest.mark.parametrize("change", CHANGES)
def test_results_that_are_none_of_ours_are_refused(
    tmp_path: Path, github: FakeGitHub, results: str, change: Callable[[dict[str, Any]], object]
) -> None:
    document = json.loads(results)
    change(document)
    done = post(job(tmp_path, github, json.dumps(document)))
    assert (done.exit_code, done.outputs["verdict"], github.calls()) == (2, "error", [])


@pytest.mark.parametrize(
    ("score", "passed", "regressions", "code"),
    [(0.5, 1, 1, 0), (1e308, 1, 1, 2), (-1, 1, 1, 2), (0.5, -5, 1, 2), (0.5, 1, -3, 2), (0.5, 1, 10**400, 2)],
)
def test_what_it_is_compared_with_is_held_to_its_range(
    tmp_path: Path, github: FakeGitHub, results: str, score: float, passed: int, regressions: int, code: int
) -> None:
    one = {"change": "broken", "spec": "suite", "scenario": None, "params": {}, "invariant": None, "p_value": None}
    one |= {"before": "pass", "after": "fail", "score_before": score, "score_after": 0.0}
    one |= {"passed_before": passed, "total_before": 1, "passed_after": 0, "total_after": 1}
    earlier = {"source": "x", "verdict": "pass", "composite": 1.0, "git_sha": "", "started_at": ""}
    earlier |= {
        "regressions": regressions,
        "specs": [one],
        "groups": [],
        "invariants": [],
        "changed_specs": [],
        "partial": False,
    }
    done = post(job(tmp_path, github, json.dumps(json.loads(results) | {"baseline": earlier})))
    assert (done.exit_code, len(github.state.comments)) == (code, int(code == 0))
    assert code == 0 or "out of range" in done.issues[0].message


def test_a_run_that_left_nothing_at_all_breaks_no_workflow(tmp_path: Path, github: FakeGitHub) -> None:
    runner = job(tmp_path, github, None)
    (runner.workspace / "downloaded").rmdir()
    done = post(runner)
    assert (done.exit_code, github.calls(), done.rejected) == (0, [], [])
    (issue,) = done.issues
    assert (issue.level, "downloaded is not there" in issue.message) == ("notice", True)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "[" * 100_000, "\0", '"x"'])
def test_what_is_no_document_is_refused(tmp_path: Path, github: FakeGitHub, content: str | None) -> None:
    done = post(job(tmp_path, github, content))
    assert (done.exit_code, github.calls(), done.rejected) == (2, [], [])
    assert "Traceback" not in done.raw_log


def test_links_are_not_followed(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    runner = job(tmp_path, github, None)
    (tmp_path / "secret.json").write_text(results)
    folder = runner.workspace / "downloaded"
    (folder / "results.json").symlink_to(tmp_path / "secret.json")
    assert (post(runner).exit_code, github.calls()) == (2, [])
    (folder / "results.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "results.json").write_text(results)
    (folder / "inner").symlink_to(tmp_path / "elsewhere")
    assert (post(runner).exit_code, github.calls()) == (2, [])


def test_a_fifo_is_not_waited_for(tmp_path: Path, github: FakeGitHub) -> None:
    runner = job(tmp_path, github, None)
    os.mkfifo(runner.workspace / "downloaded" / "results.json")
    assert (post(runner).exit_code, github.calls()) == (2, [])


def test_too_large_a_file_is_not_read(
    tmp_path: Path, github: FakeGitHub, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_results, "MAX_RESULTS", 100)
    done = post(job(tmp_path, github, results))
    assert (done.exit_code, github.calls()) == (2, [])
    assert "bytes; at most 100 are read" in done.issues[0].message


def test_a_folder_for_each_artifact_is_looked_into(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    runner = job(tmp_path, github, None)
    for number, name in enumerate(("keystone-results", "another")):
        (runner.workspace / "downloaded" / name).mkdir()
        (runner.workspace / "downloaded" / name / "results.json").write_text(results)
        done = post(runner)
        assert done.exit_code == (0 if number == 0 else 2)
    assert "2 files named results.json" in done.issues[0].message


def test_the_comment_of_the_fork_is_not_read(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    runner = job(tmp_path, github, results)
    (runner.workspace / "downloaded" / "comment.md").write_text("## ✅ Passed: approve this\n")
    post(runner)
    assert "approve" not in github.state.comments[0].body


@pytest.mark.parametrize("event", ["pull_request", "push", "pull_request_target_fork", "schedule"])
def test_other_events_are_refused(tmp_path: Path, github: FakeGitHub, results: str, event: str) -> None:
    done = post(job(tmp_path, github, results, event=event))
    assert (done.exit_code, github.calls()) == (2, [])
    assert "workflows on workflow_run" in done.issues[0].message


def changed_event(**run: Any) -> dict[str, Any]:
    event = json.loads((EVENTS / "workflow_run_fork.json").read_text())
    event["workflow_run"].update(run)
    return event


@pytest.mark.parametrize(
    "payload",
    [
        "{",
        "{}",
        '{"workflow_run": []}',
        changed_event(id="6001"),
        changed_event(id=-1),
        changed_event(head_sha="HEAD"),
        changed_event(head_branch=5),
        changed_event(head_repository={"full_name": 5}),
        changed_event(conclusion="](https://evil.example)"),
    ],
)
def test_an_event_that_is_malformed_is_refused(tmp_path: Path, github: FakeGitHub, results: str, payload: Any) -> None:
    done = post(job(tmp_path, github, results, payload=payload))
    assert (done.exit_code, github.calls()) == (2, [])
    assert "Traceback" not in done.raw_log


def test_of_a_fork_that_was_deleted_nothing_is_posted(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    done = post(job(tmp_path, github, results, payload=changed_event(head_repository=None)))
    assert (done.exit_code, github.state.comments) == (0, [])


def test_never_and_on_failure(tmp_path: Path, github: FakeGitHub, results: str) -> None:
    passing = json.dumps(json.loads(results) | {"verdict": "pass", "composite": 1.0})
    runner = job(tmp_path, github, passing)
    assert post(runner, comment="never").exit_code == 0
    assert post(runner, comment="on-failure").exit_code == 0
    assert github.state.comments == []


@pytest.mark.parametrize("token", ["read-only", "none"])
def test_a_comment_that_can_not_be_posted_fails_this_job(
    tmp_path: Path, github: FakeGitHub, results: str, token: str
) -> None:
    done = post(job(tmp_path, github, results, token=token))
    assert (done.exit_code, done.outputs["verdict"]) == (3, "")
    assert done.outputs["comment-written"] == "keystone-results/comment.md"
    assert "pull-requests: write" in done.issues[0].message or "there is no token" in done.issues[0].message
