"""The built image, started by the runner's command line, tells a fake GitHub on this machine how its run ended."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from support.action_job import HEAD, RUNNER_USER, ActionJob
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, MERGE_SHA, TOKEN
from support.git_server import GitServer
from support.repositories import make_change

pytestmark = pytest.mark.docker

SPEC: dict[str, Any] = {
    "version": 1,
    "id": "suite",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": "touch done.txt"},
    "invariants": {"done": {"check": {"type": "file_exists", "path": "done.txt"}}},
}
FAILING = {**SPEC, "agent": {"type": "command", "command": "touch other.txt"}}
REPORTS = ("results.json", "summary.md", "report.html", "junit.xml")


def test_a_run_in_the_image_comments_and_sets_its_status(job: ActionJob, github_of_job: FakeGitHub) -> None:
    state = github_of_job.state
    state.add_pull(17, head_sha=MERGE_SHA, head_repository=job.runner.repository)
    job.write(SPEC)
    job.inputs["comment"] = "always"
    step = job.run()
    assert (step.exit_code, step.rejected) == (0, []), step.raw_log
    (comment,) = state.comments
    assert step.outputs["comment-id"] == str(comment.id)
    assert comment.body.startswith("## ✅ Keystone: ")
    assert [(one["state"], one["sha"]) for one in state.statuses] == [("pending", MERGE_SHA), ("success", MERGE_SHA)]
    before = github_of_job.calls()
    after = job.post()
    assert (after.exit_code, after.rejected, github_of_job.calls()) == (0, [], before), after.raw_log


def test_a_killed_step_is_an_error_on_the_pull_request(job: ActionJob, github_of_job: FakeGitHub) -> None:
    """The step can't say any more how it ended: its post step does."""
    state = github_of_job.state
    job.runner.happened("pull_request")
    job.write({**SPEC, "agent": {"type": "command", "command": "touch started; sleep 100"}})
    step = job.start()
    step.until(lambda: bool(state.statuses), "its status")
    assert step.kill().outputs == {}
    assert [one["state"] for one in state.statuses] == ["pending"]
    after = job.post()
    assert (after.exit_code, after.rejected) == (0, []), after.raw_log
    assert [(one["state"], one["sha"]) for one in state.statuses] == [("pending", HEAD), ("error", HEAD)]
    (comment,) = state.comments
    assert comment.body.startswith("## 💥 Keystone: ")
    assert "stopped before it could tell how it ended" in comment.body
    assert job.left() == []


def test_a_weakened_gate_of_a_shallow_checkout(job: ActionJob, github_of_job: FakeGitHub) -> None:
    """The base commit is fetched with the job's token; the checkout is another user's, and is left as it was."""
    base = {**SPEC, "scoring": {"pass_threshold": 0.9}}
    base["invariants"] = {**SPEC["invariants"], "b": {"gate": True, "check": {"type": "file_exists", "path": "b"}}}
    change = {"keystone.yaml": json.dumps({**SPEC, "scoring": {"pass_threshold": 0.5}})}
    made = make_change(job.runner.work.parent / "origin", {"keystone.yaml": json.dumps(base)}, change)
    made.check_out(job.runner.workspace, depth=1)
    payload = json.loads((EVENTS / "pull_request.json").read_text())
    payload["pull_request"]["base"]["sha"] = made.base
    job.runner.happened("pull_request", payload)
    said = "`keystone.yaml`: threshold 0.9 → 0.5; removed: b (a gate)"
    with GitServer(made.origin, host=job.gateway) as forge:
        job.runner.server = forge.url
        head = job.run()
        assert (head.exit_code, head.rejected) == (0, []), head.raw_log
        (comment,) = github_of_job.state.comments
        assert head.summary.startswith("> [!WARNING]\n> **This change alters its own gate, compared with ")
        assert said in head.summary
        first, _, rest = comment.body.partition("\n\n")
        assert first.startswith("## ✅ Keystone: ")
        assert rest.startswith("> [!WARNING]\n> **This change alters")
        assert said in comment.body
        assert job.left() == []
        job.inputs = {"spec-from": "base", "output-dir": "by-base", "comment": "never", "status-context": ""}
        by_base = job.run()
    assert (by_base.exit_code, by_base.outputs["verdict"]) == (1, "fail"), by_base.raw_log
    assert by_base.summary.startswith("> [!WARNING]\n> **The specs of the pull request's base main decided, as commit")
    assert forge.authorizations
    assert all("basic" in one for one in forge.authorizations)
    assert TOKEN not in head.raw_log + by_base.raw_log
    assert job.runner.foreign() == []


def test_a_baseline_of_the_base_branch(job: ActionJob, github_of_job: FakeGitHub) -> None:
    """What was broken before does not fail the step; what the change breaks does."""
    state = github_of_job.state
    two = {**SPEC["invariants"], "never": {"check": {"type": "file_exists", "path": "never.txt"}}}
    job.inputs = {"output-dir": "before", "comment": "never", "status-context": "", "comment-key": "mine"}
    job.write({**SPEC, "invariants": two})
    assert job.run().exit_code == 1
    results = (job.runner.workspace / "before" / "results.json").read_bytes()
    run = state.add_run(workflow="evaluate.yml", head_repository=job.runner.repository, conclusion="failure")
    state.add_artifact(run.id, "keystone-results-mine", {"results.json": results})
    job.runner.happened("pull_request")
    job.inputs = {"baseline": "auto", "fail-on": "regression", "comment-key": "mine"}
    same = job.run()
    assert (same.exit_code, same.outputs["verdict"], same.rejected) == (0, "fail", []), same.raw_log
    assert f"baseline: run {run.id} of main" in same.text
    job.write({**FAILING, "invariants": two})
    shutil.rmtree(job.runner.workspace / "keystone-results")
    broken = job.run()
    assert (broken.exit_code, broken.outputs["verdict"], broken.rejected) == (1, "fail", []), broken.raw_log
    (comment,) = state.comments
    for text in (broken.summary, comment.body):
        assert "**Against the baseline:** 1 broken · " in text
        assert "| ❌ `suite` › `done`<br>broken | pass → fail" in text
        assert "`never`<br>broken" not in text
    assert [one["state"] for one in state.statuses] == ["pending", "failure", "pending", "failure"]


def test_results_of_a_fork_are_posted_by_a_second_workflow(job: ActionJob, github_of_job: FakeGitHub) -> None:
    state = github_of_job.state
    state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
    job.runner.happened("pull_request_fork")
    job.runner.token = "read-only"
    job.write(FAILING)
    of_fork = job.run()
    assert (of_fork.exit_code, of_fork.rejected, github_of_job.calls()) == (1, [], []), of_fork.raw_log
    assert of_fork.outputs["comment-written"] == "keystone-results/comment.md"
    assert (job.runner.workspace / "keystone-results" / "comment.md").stat().st_uid == RUNNER_USER
    job.runner.happened("workflow_run_fork")
    job.runner.token = "write"
    job.inputs = {"mode": "comment", "results": "keystone-results"}
    posted = job.run()
    assert (posted.exit_code, posted.rejected) == (0, []), posted.raw_log
    (comment,) = state.comments
    assert comment.body.startswith("## ❌ Keystone: ")
    assert "code from mallory/agents, without secrets of this repository" in comment.body
    assert (posted.outputs["comment-id"], state.statuses) == (str(comment.id), [])


def test_a_dead_api_takes_nothing_but_the_comment(job: ActionJob, github_of_job: FakeGitHub) -> None:
    for method in ("GET", "POST", "PATCH"):
        github_of_job.fault(method, "*", status=503, times=None)
    job.runner.happened("pull_request")
    job.write(FAILING)
    step = job.run()
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (1, "fail", []), step.raw_log
    assert "❌ Keystone: suite failed" in step.summary
    assert step.outputs["comment-written"] == "keystone-results/comment.md"
    for name in (*REPORTS, "comment.md"):
        file = (job.runner.workspace / "keystone-results" / name).stat()
        assert (file.st_uid, bool(file.st_size)) == (RUNNER_USER, True), name
    warnings = [one.message for one in step.issues if one.level == "warning"]
    assert len(warnings) == 1, warnings
    assert "the status is not set: " in warnings[0]
    assert "the comment is not posted on #17: " in warnings[0]
    assert "GitHub answered 503" in warnings[0]
    assert job.left() == []
    assert "the comment that was not posted is in keystone-results/comment.md" in step.text
