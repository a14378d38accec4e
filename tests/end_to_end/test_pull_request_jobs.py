"""Several jobs, several attempts and several runs that write one comment and one status: none hides a worse verdict of
the commit that people look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner, StepResult

from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.progress import Pace
from keystone_action.report.comment.history import Marker, Previous

pytestmark = pytest.mark.usefixtures("kept_runs")

HEAD = "2" * 40
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "touch done.txt"}
invariants:
  NAME: {check: {type: file_exists, path: FILE}}
"""
SHARED = {"comment-key": "ours", "status-context": "gate"}


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))
    monkeypatch.setattr(reporting, "PACE", Pace(first=600.0))
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="octo/agents")
        yield fake


class Workflow:
    """Runs of one workflow on one pull request."""

    def __init__(self, root: Path, github: FakeGitHub) -> None:
        self.github = github
        self._root = root
        self._steps = 0

    def job(self, name: str, outcome: str, *, attempt: int = 1, run: str = "77", **inputs: str) -> StepResult:
        """outcome: pass, fail or error."""
        self._steps += 1
        runner = FakeRunner(self._root / str(self._steps), event="pull_request", github=self.github)
        runner.job, runner.attempt, runner.run_number = name, attempt, run
        spec = SPEC.replace("FILE", "done.txt" if outcome == "pass" else "other.txt").replace("NAME", f"of_{name}")
        (runner.workspace / "keystone.yaml").write_text("version: 1\n" if outcome == "error" else spec)
        return runner.step({**SHARED, **inputs})

    @property
    def comment(self) -> str:
        (comment,) = self.github.state.comments
        return comment.body

    @property
    def state(self) -> str:
        return str(self.github.state.statuses[-1]["state"])

    @property
    def icon(self) -> str:
        """Of the comment's first line."""
        return self.comment.split()[1]


@pytest.fixture
def workflow(tmp_path: Path, github: FakeGitHub) -> Workflow:
    return Workflow(tmp_path, github)


@pytest.mark.parametrize("outcomes", [("fail", "pass"), ("pass", "fail"), ("fail", "error"), ("error", "fail")])
def test_two_jobs_under_one_key_show_the_worse(workflow: Workflow, outcomes: tuple[str, str]) -> None:
    first = workflow.job("unit", outcomes[0])
    second = workflow.job("browser", outcomes[1])
    worst = "error" if "error" in outcomes else "fail"
    assert workflow.icon == {"fail": "❌", "error": "💥"}[worst]
    assert workflow.state == {"fail": "failure", "error": "error"}[worst]
    assert ("`of_unit`" if outcomes[0] == "fail" else "`of_browser`") in workflow.comment or worst == "error"
    assert "give each a `comment-key` of its own" in workflow.comment
    warned = "\n".join(issue.message for issue in second.issues if issue.level == "warning")
    assert "give each a `comment-key` of its own" in warned
    assert "give each a `status-context` of its own" in warned or outcomes[1] == "error"
    assert not [issue for issue in first.issues if issue.level == "warning"]


def overwritten(workflow: Workflow, outcomes: tuple[str, str]) -> str:
    """What the second job writes over the comment of an earlier run, which is there; it did not see the first's."""
    workflow.job("earlier", "pass", run="76")
    (comment,) = workflow.github.state.comments
    before, statuses = comment.body, len(workflow.github.state.statuses)
    workflow.job("browser", outcomes[1])
    late, comment.body = comment.body, before
    del workflow.github.state.statuses[statuses:]
    return late


def patches(workflow: Workflow) -> int:
    return len([call for call in workflow.github.calls() if call.startswith("PATCH")])


@pytest.mark.parametrize("outcomes", [("fail", "pass"), ("pass", "fail"), ("error", "fail"), ("pass", "pass")])
def test_a_job_that_is_written_over_in_the_same_second_is_in_the_comment(
    workflow: Workflow, outcomes: tuple[str, str]
) -> None:
    late = overwritten(workflow, outcomes)
    (comment,) = workflow.github.state.comments
    workflow.github.after("PATCH", "/issues/comments/*", lambda: setattr(comment, "body", late))
    workflow.job("unit", outcomes[0])
    memory = Previous.read(workflow.comment, Marker.of_key("ours"))
    assert sorted(verdict for _, verdict in memory.jobs.ended.values()) == sorted(outcomes)
    worst = next(one for one in ("error", "fail", "pass") if one in outcomes)
    assert workflow.icon == {"pass": "✅", "fail": "❌", "error": "💥"}[worst]


def test_a_job_that_nobody_writes_over_writes_once(workflow: Workflow) -> None:
    """The honest twin."""
    overwritten(workflow, ("pass", "pass"))
    before = patches(workflow)
    workflow.job("unit", "pass")
    assert patches(workflow) == before + 1


def test_a_job_that_is_written_over_again_and_again_gives_up(workflow: Workflow) -> None:
    late = overwritten(workflow, ("fail", "pass"))
    (comment,) = workflow.github.state.comments
    workflow.github.after("PATCH", "/issues/comments/*", lambda: setattr(comment, "body", late), times=None)
    before = patches(workflow)
    done = workflow.job("unit", "fail")
    assert patches(workflow) == before + 6
    assert done.exit_code == 1


def test_two_jobs_that_pass_are_a_success_with_a_warning(workflow: Workflow) -> None:
    """The honest twin."""
    workflow.job("unit", "pass")
    done = workflow.job("browser", "pass")
    assert (workflow.icon, workflow.state) == ("✅", "success")
    assert len([issue for issue in done.issues if issue.level == "warning"]) == 2


def test_by_default_two_jobs_and_two_jobs_of_a_matrix_share_nothing(workflow: Workflow) -> None:
    for name, index, outcome in (("unit", 0, "fail"), ("models", 0, "pass"), ("models", 1, "fail")):
        runner = FakeRunner(workflow._root / f"{name}{index}", event="pull_request", github=workflow.github)
        runner.job, runner.run_number, runner.job_index, runner.job_total = (
            name,
            "77",
            index,
            1 if name == "unit" else 2,
        )
        spec = SPEC.replace("FILE", "done.txt" if outcome == "pass" else "other.txt").replace("NAME", "done")
        (runner.workspace / "keystone.yaml").write_text(spec)
        done = runner.step()
        assert not [issue for issue in done.issues if issue.level == "warning"]
    assert len(workflow.github.state.comments) == 3
    ended = {one["context"]: one["state"] for one in workflow.github.state.statuses}
    assert ended == {"keystone/unit": "failure", "keystone/models/0": "success", "keystone/models/1": "failure"}


def test_a_job_that_is_run_again_replaces_its_own_result(workflow: Workflow) -> None:
    workflow.job("unit", "fail")
    workflow.job("browser", "pass")
    workflow.job("unit", "pass", attempt=2)
    assert (workflow.icon, workflow.state) == ("✅", "success")


def test_a_job_that_is_run_again_does_not_replace_another_jobs(workflow: Workflow) -> None:
    """Nobody has the text of the other any more; that it failed is still known."""
    workflow.job("unit", "fail")
    workflow.job("browser", "error")
    workflow.job("browser", "pass", attempt=2)
    assert (workflow.icon, workflow.state) == ("❌", "failure")
    assert "another job of this run failed" in workflow.comment.splitlines()[0]
    workflow.job("unit", "pass", attempt=2)
    assert (workflow.icon, workflow.state) == ("✅", "success")


def test_jobs_of_a_matrix_under_one_key_are_told_apart_by_their_inputs(workflow: Workflow) -> None:
    workflow.job("models", "fail", params="")
    workflow.job("models", "pass", spec="*.yaml")
    assert (workflow.icon, workflow.state) == ("❌", "failure")


def test_a_later_run_replaces_what_an_earlier_one_found(workflow: Workflow) -> None:
    workflow.job("unit", "fail")
    done = workflow.job("browser", "pass", run="78")
    assert (workflow.icon, workflow.state) == ("✅", "success")
    assert not [issue for issue in done.issues if issue.level == "warning"]


def test_a_run_that_judged_nothing_does_not_hide_the_commits_failure(workflow: Workflow) -> None:
    workflow.job("unit", "fail")
    workflow.job("unit", "error", run="78")
    assert workflow.comment.startswith("## ❌ ")
    assert "**Since then:** another run of this commit came to no verdict on the agent: " in workflow.comment
    workflow.job("unit", "error", run="79")
    assert workflow.comment.count("Since then:") == 1
    workflow.job("unit", "pass", run="80")
    assert (workflow.icon, workflow.comment.count("Since then:")) == ("✅", 0)


def test_a_run_that_judged_nothing_is_shown_where_the_commit_had_passed(workflow: Workflow) -> None:
    workflow.job("unit", "pass")
    workflow.job("unit", "error", run="78")
    assert workflow.icon == "💥"


def test_a_status_that_can_not_be_read_is_set_all_the_same(workflow: Workflow) -> None:
    workflow.github.fault("GET", f"/commits/{HEAD}/statuses", status=403, times=None, message="Resource not accessible")
    done = workflow.job("unit", "pass")
    assert workflow.state == "success"
    assert "whether another job sets the status gate is not known" in done.text
    assert not [issue for issue in done.issues if issue.level == "warning"]
