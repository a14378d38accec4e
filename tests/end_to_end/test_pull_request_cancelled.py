"""A job that is cancelled: what its status and comment say, and how soon it ends."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import ROOT, FakeRunner
from support.kept_runs import KeptRuns
from support.pull_requests import HEAD, REPORTS, fake_github, own_comment, runner_of, waited_for
from support.runner_rules import parse_env_file

from keystone_action.action import main as action
from keystone_action.action import post as after
from keystone_action.gate.change_base import ChangeBase
from keystone_action.github import reporting
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.status import CommitStatus
from keystone_action.options.model import Options
from keystone_action.report.comment.history import LastResult
from keystone_action.runner.progress import Progress


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with fake_github() as fake:
        yield fake


def started(runner: FakeRunner, files: dict[str, Path], **inputs: str) -> subprocess.Popen[str]:
    """The step in a process of its own, as the image's entrypoint starts it."""
    environ = runner.environment(inputs, env={}, files=files)
    return subprocess.Popen([sys.executable, ROOT / "entrypoint.py"], env=environ, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("known", [None, LastResult("pass", 1.0, "1" * 40, {}), LastResult("fail", 0.5, HEAD, {})])
def test_a_cancelled_run_updates_a_comment_and_makes_none(
    tmp_path: Path, github: FakeGitHub, known: LastResult | None
) -> None:
    """One that shows the verdict of this very commit goes on showing it."""
    comment = known and own_comment(github, known)
    runner = runner_of(tmp_path, github, agent="sleep 600")
    files = runner._new_files()
    process = started(runner, files)
    assert waited_for((runner.workspace / "keystone-results" / "journal.jsonl").exists)
    assert waited_for(lambda: bool(github.state.statuses))
    process.send_signal(signal.SIGINT)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 130, log
    assert github.state.statuses[-1]["state"] == "error"
    outputs = parse_env_file(files["GITHUB_OUTPUT"].read_text())
    if comment is None or known is None:
        assert (github.state.comments, outputs["comment-id"]) == ([], "")
        return
    assert (len(github.state.comments), outputs["comment-id"]) == (1, str(comment.id))
    if known.sha == HEAD:
        assert comment.body.startswith(
            "## ❌ Failed: an earlier run\n\n> [!NOTE]\n> **Since then:** another run of this"
        )
        assert "was cancelled before its end" in comment.body
    else:
        assert comment.body.startswith("## ⏹️ ")


@pytest.mark.parametrize("policy", ["auto", "always", "on-failure"])
def test_a_run_that_was_cancelled_makes_no_comment_whatever_had_passed_by_then(
    tmp_path: Path, github: FakeGitHub, kept_runs: KeptRuns, policy: str
) -> None:
    def engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        found = kept_runs(options, base, progress)
        return replace(found, run=replace(found.run, verdict="fail", cancelled=True))

    done = runner_of(tmp_path, github).step({"comment": policy}, evaluate=engine)
    assert (github.state.comments, done.outputs["comment-written"]) == ([], "")


def test_a_cancelled_run_that_had_no_time_to_tell_makes_no_comment_later(tmp_path: Path, github: FakeGitHub) -> None:
    """The post step does not take it for one that broke."""
    runner = runner_of(tmp_path, github)
    files = runner._new_files()
    state = {"run": "1-1-0123abcd", "cancelled": "true"}
    environ = runner.environment({}, env={f"STATE_{name}": value for name, value in state.items()}, files=files)
    assert after.main(environ, stdout=io.StringIO()) == 0
    assert github.state.comments == []
    assert [one["state"] for one in github.state.statuses] == ["error"]


def test_a_step_says_to_its_post_step_that_it_was_cancelled(tmp_path: Path, github: FakeGitHub) -> None:
    def engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        raise KeyboardInterrupt

    assert runner_of(tmp_path, github).step(evaluate=engine).state["cancelled"] == "true"


def test_a_cancelled_step_has_not_told_while_it_may_still_say_that_it_runs(
    tmp_path: Path, github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, kept_runs: KeptRuns
) -> None:
    pending, ended = CommitStatus.pending, threading.Event()

    def slow_pending(self: CommitStatus, client: GitHubClient) -> None:
        assert ended.wait(60)
        pending(self, client)

    def engine(options: Options, base: ChangeBase, progress: Progress) -> action.EngineResult:
        found = kept_runs(options, base, progress)
        return replace(found, run=replace(found.run, cancelled=True))

    # With a second between writes it would find the run ended while it waits.
    monkeypatch.setattr(reporting, "LIVE_LIMITS", RequestLimits(between_writes=0.0))
    monkeypatch.setattr(CommitStatus, "pending", slow_pending)
    step = runner_of(tmp_path, github).step(evaluate=engine)
    ended.set()
    assert waited_for(lambda: len(github.state.statuses) == 2)
    assert [one["state"] for one in github.state.statuses] == ["error", "pending"]
    assert "reported" not in step.state


@pytest.mark.parametrize("signals", [1, 2])
def test_a_job_that_is_cancelled_while_it_posts_ends_soon(tmp_path: Path, github: FakeGitHub, signals: int) -> None:
    """The API hangs: without the signal it would go on for as long as the limits say. The post step has the time."""
    faults = [
        github.fault(method, "*", how="hang", times=None, skip=1 if method == "POST" else 0)
        for method in ("GET", "POST")
    ]
    runner = runner_of(tmp_path, github)
    files = runner._new_files()
    process = started(runner, files)
    assert waited_for(lambda: len(github.calls()) >= 2)
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 1, log
    assert "the job is being cancelled" in log
    outputs = parse_env_file(files["GITHUB_OUTPUT"].read_text())
    assert (outputs["verdict"], outputs["comment-written"]) == ("fail", "keystone-results/comment.md")
    assert "## ❌ Keystone: " in files["GITHUB_STEP_SUMMARY"].read_text()
    assert all((runner.workspace / "keystone-results" / name).stat().st_size for name in REPORTS)
    for fault in faults:
        fault.times = 0
    state = {f"STATE_{name}": value for name, value in parse_env_file(files["GITHUB_STATE"].read_text()).items()}
    environ = runner.environment({}, env={**state, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}, files={})
    assert after.main(environ, stdout=io.StringIO()) == 0
    assert [one["state"] for one in github.state.statuses] == ["pending", "failure"]
    assert github.state.comments[0].body.startswith("## ❌ Keystone: ")
