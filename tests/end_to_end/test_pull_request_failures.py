"""When GitHub can't be told: verdict, exit code, summary and all files are there; the log says what was not posted."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import make_certificate
from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner, StepResult
from support.github_client import FakeTime
from support.kept_runs import KeptRuns
from support.pull_requests import HEAD, REPORTS, fake_github, own_comment, runner_of, waited_for

from keystone_action.action import main as action
from keystone_action.gate.change_base import ChangeBase
from keystone_action.github import progress as live
from keystone_action.github import reporting
from keystone_action.github.api.answers import Comment
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.comment import StickyComment
from keystone_action.github.progress import Pace
from keystone_action.options.model import Options
from keystone_action.report.comment.history import LastResult
from keystone_action.runner.progress import Progress

pytestmark = pytest.mark.usefixtures("kept_runs")


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with fake_github() as fake:
        yield fake


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(seconds=0.4, waiting=0.0, between_writes=0.0))
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(tries=1, seconds=0.4, waiting=0.0, between_writes=0.0))


def assert_complete(done: StepResult, runner: FakeRunner) -> None:
    """All that does not need GitHub. The verdict of the spec is fail."""
    assert (done.exit_code, done.outputs["verdict"], done.outputs["failed"], done.rejected) == (1, "fail", "1", [])
    assert "❌ Keystone: suite failed" in done.summary
    assert all((runner.workspace / "keystone-results" / name).stat().st_size for name in REPORTS)
    assert done.outputs["comment-written"] == "keystone-results/comment.md"
    assert (runner.workspace / "keystone-results" / "comment.md").read_text().startswith("## ❌ Keystone: ")


def warned(done: StepResult) -> str:
    return "\n".join(issue.message for issue in done.issues if issue.level == "warning")


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 500}, "GitHub answered 500"),
        ({"status": 503}, "GitHub answered 503"),
        ({"how": "hang"}, "did not answer within 0.4 s"),
        ({"how": "drip"}, "did not answer within 0.4 s"),
        ({"how": "reset"}, "cut the connection"),
        ({"status": 429, "headers": {"retry-after": "3600"}}, "asks to wait 3600 s"),
        ({"status": 403, "reset_in": 900, "message": "API rate limit exceeded"}, "limits the rate"),
        ({"status": 401, "message": "Bad credentials"}, "check the input github-token"),
        ({"status": 302, "headers": {"location": "https://elsewhere.example/"}}, "not followed"),
    ],
)
def test_an_api_that_fails_for_ever(tmp_path: Path, github: FakeGitHub, fault: dict[str, Any], said: str) -> None:
    for method in ("GET", "POST", "PATCH"):
        github.fault(method, "*", times=None, **fault)
    runner = runner_of(tmp_path, github)
    done = runner.step()
    assert_complete(done, runner)
    assert said in done.text
    assert "the comment is not posted on #17: " in warned(done)
    assert "the status is not set: the status keystone/evaluate of 2222222" in warned(done)
    assert len([issue for issue in done.issues if issue.level == "warning"]) == 1


@pytest.mark.usefixtures("no_waiting")
def test_an_api_that_nobody_serves(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, None)
    done = runner.step({"comment": "auto", "status-context": "keystone/evaluate"})
    assert_complete(done, runner)
    assert "can't be reached at 127.0.0.1" in warned(done)
    assert "the status keystone/evaluate of 2222222 could not be set" in warned(done)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("url", ["ftp://github.example", "https://user:pass@github.example", "nonsense"])
def test_an_address_that_is_none(tmp_path: Path, github: FakeGitHub, url: str) -> None:
    runner = runner_of(tmp_path, github)
    files = runner._new_files()
    stream = io.StringIO()
    environ = {**runner.environment({}, env={}, files=files), "GITHUB_API_URL": url}
    assert action.main(environ, stdout=stream) == 1
    assert "GITHUB_API_URL can't be used" in stream.getvalue()


@pytest.mark.usefixtures("no_waiting")
def test_a_comment_that_is_too_long_for_this_server(tmp_path: Path, github: FakeGitHub) -> None:
    github.fault("POST", "/issues/17/comments", status=422, message="Body is too long", times=None)
    runner = runner_of(tmp_path, github)
    done = runner.step()
    assert_complete(done, runner)
    assert "longer than GitHub takes" in warned(done)
    assert github.calls().count("POST /issues/17/comments") == 2


@pytest.mark.usefixtures("no_waiting")
def test_a_comment_that_was_made_although_502_was_answered(tmp_path: Path, github: FakeGitHub) -> None:
    github.fault("POST", "/issues/17/comments", status=502, done=True)
    done = runner_of(tmp_path, github).step()
    (comment,) = github.state.comments
    assert (done.outputs["comment-id"], done.outputs["comment-written"]) == (str(comment.id), "")


@pytest.mark.usefixtures("no_waiting")
def test_a_locked_conversation(tmp_path: Path, github: FakeGitHub) -> None:
    github.state.locked.add(17)
    runner = runner_of(tmp_path, github)
    done = runner.step()
    assert_complete(done, runner)
    assert "issue is locked" in warned(done)
    assert github.state.statuses[-1]["state"] == "failure"


@pytest.mark.usefixtures("no_waiting")
def test_an_enterprise_server_with_an_authority_of_its_own(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with FakeGitHub(prefix="/api/v3", certificate=certificate) as github:
        github.state.repository = "octo/agents"
        github.state.add_pull(17, head_sha=HEAD, head_repository="octo/agents")
        (tmp_path / "one").mkdir()
        untrusted = runner_of(tmp_path / "one", github)
        assert_complete(done := untrusted.step(), untrusted)
        assert "name the authority that signed it in the input ca-bundle" in warned(done)
        (tmp_path / "two").mkdir()
        pem = certificate.with_name("certificate.pem").read_text()
        done = runner_of(tmp_path / "two", github).step({"ca-bundle": pem})
        assert done.outputs["comment-id"] == str(github.state.comments[0].id)


def test_a_dead_api_does_not_delay_the_cells(
    tmp_path: Path, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, kept_runs: KeptRuns
) -> None:
    """They are done while the very first thing that was asked of GitHub still waits for its answer."""
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(tries=1, seconds=0.5, waiting=0.0, between_writes=0.0))
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(tries=1, seconds=600.0))
    monkeypatch.setattr(reporting, "PACE", Pace(first=0.0, between=0.01))
    monkeypatch.setattr(reporting, "_LIVE_SECONDS", 0.1)
    for method in ("GET", "POST", "PATCH"):
        github.fault(method, "*", how="hang", times=None)
    at_the_end: list[str] = []

    def engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        assert waited_for(lambda: bool(github.calls()))
        found = kept_runs(options, base, progress)
        at_the_end.extend(github.calls())
        assert "live report" in [thread.name for thread in threading.enumerate()]
        return found

    done = runner_of(tmp_path, github, replicas=2).step(evaluate=engine)
    assert done.outputs["verdict"] == "fail"
    assert at_the_end == [f"POST /statuses/{HEAD}"]


def test_a_long_run_shows_how_far_it_is(
    tmp_path: Path, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, kept_runs: KeptRuns
) -> None:
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(between_writes=0.0))
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(between_writes=0.0))
    monkeypatch.setattr(reporting, "PACE", Pace(first=0.01, between=0.01))

    def slow_engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        progress.started(cells=3, finished=2, output=tmp_path, notices=())
        assert waited_for(lambda: "Running" in comment.body)
        bodies.append(comment.body)
        return kept_runs(options, base, progress)

    bodies: list[str] = []
    comment = own_comment(github, LastResult("pass", 1.0, "1" * 40, {}))
    done = runner_of(tmp_path, github).step(evaluate=slow_engine)
    assert bodies[0].startswith("## ⏳ Running: 2 of 3 cells finished\n")
    assert comment.body.startswith("## ❌ Keystone: ")
    assert "Since the last comment" in comment.body
    assert [one["state"] for one in github.state.statuses] == ["pending", "failure"]
    assert done.outputs["comment-id"] == str(comment.id)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clients of both threads wait, which takes no time; nothing else moves their clock."""
    time = FakeTime()
    monkeypatch.setattr(reporting, "Clock", lambda **_: time.clock)
    monkeypatch.setattr(live, "Clock", lambda **_: time.clock)
    return time.waits


@pytest.mark.parametrize("fault", [{}, {"status": 422}, {"status": 403, "message": "Repository is archived"}])
def test_between_what_two_threads_write_there_is_a_second_however_the_first_ended(
    tmp_path: Path, github: FakeGitHub, slept: list[float], fault: dict[str, Any]
) -> None:
    if fault:
        github.fault("POST", f"/statuses/{HEAD}", **fault)
    runner_of(tmp_path, github).step()
    writes = [call for call in github.calls() if call.startswith(("POST /statuses", "POST /issues"))]
    assert slept == [1.0] * (len(writes) - 1)
    assert len(writes) >= 2


@pytest.mark.usefixtures("slept")
def test_after_a_refusal_that_asks_for_an_hour_nothing_more_is_written(tmp_path: Path, github: FakeGitHub) -> None:
    github.fault("POST", f"/statuses/{HEAD}", status=429, headers={"retry-after": "3600"}, times=None)
    runner = runner_of(tmp_path, github)
    done = runner.step()
    assert_complete(done, runner)
    assert [call for call in github.calls() if call.startswith("POST ")] == [f"POST /statuses/{HEAD}", "POST /graphql"]
    assert "GitHub limits the rate and asks to wait 3600 s more, longer than the 60 s left for reporting" in done.text


def test_after_one_that_asks_for_little_the_next_write_waits_so_long(
    tmp_path: Path, github: FakeGitHub, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest twin."""
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(tries=1))
    github.fault("POST", f"/statuses/{HEAD}", status=429, headers={"retry-after": "7"})
    runner_of(tmp_path, github).step()
    assert slept[0] == 7
    assert github.state.statuses[-1]["state"] == "failure"
    assert len(github.state.comments) == 1


@pytest.mark.usefixtures("slept")
@pytest.mark.parametrize("message", ["Resource not accessible by integration", "Repository was archived"])
def test_what_github_forbids_is_not_sent_again(tmp_path: Path, github: FakeGitHub, message: str) -> None:
    github.fault("POST", f"/statuses/{HEAD}", status=403, message=message, times=None)
    done = runner_of(tmp_path, github).step()
    assert github.calls().count(f"POST /statuses/{HEAD}") == 1
    assert "the status is not set: " in done.text
    assert len(github.state.comments) == 1


@pytest.mark.usefixtures("slept")
def test_what_github_forbids_once_by_mistake_of_another_kind_is(tmp_path: Path, github: FakeGitHub) -> None:
    """The honest twin: an error that says nothing of rights."""
    github.fault("POST", f"/statuses/{HEAD}", status=422)
    runner_of(tmp_path, github).step()
    assert github.calls().count(f"POST /statuses/{HEAD}") == 2
    assert [one["state"] for one in github.state.statuses] == ["failure"]


def test_how_far_a_run_is_never_replaces_how_it_ended(
    tmp_path: Path, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, kept_runs: KeptRuns
) -> None:
    """GitHub is slow to say which comments there are, and has said it to the live report only after the end."""
    comment = own_comment(github, LastResult("pass", 1.0, "1" * 40, {}))
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(between_writes=0.0))
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(between_writes=0.0))
    monkeypatch.setattr(reporting, "PACE", Pace(first=0.01, between=0.01))
    monkeypatch.setattr(reporting, "_LIVE_SECONDS", 0.1)
    find, asked, ended, waiting = StickyComment.find, threading.Event(), threading.Event(), []

    def slow_find(self: StickyComment) -> list[Comment]:
        found = find(self)
        if threading.current_thread().name == "live report":
            waiting.append(threading.current_thread())
            asked.set()
            assert ended.wait(60)
        return found

    def engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        progress.started(cells=3, finished=2, output=tmp_path, notices=())
        assert asked.wait(60)
        return kept_runs(options, base, progress)

    monkeypatch.setattr(StickyComment, "find", slow_find)
    done = runner_of(tmp_path, github).step(evaluate=engine)
    ended.set()
    waiting[0].join(60)
    assert comment.body.startswith("## ❌ Keystone: ")
    assert done.outputs["comment-id"] == str(comment.id)
    assert len([call for call in github.calls() if call.startswith("PATCH")]) == 1
