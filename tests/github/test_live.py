"""What GitHub is told while cells run: pending at once, progress in long runs, one sentence when it can't be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.fake_github import FakeGitHub

from keystone_action.github import reporting
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import Unavailable
from keystone_action.github.api.requests import Clock, RequestLimits
from keystone_action.github.progress import Live, Pace, Show
from keystone_action.github.status import CommitStatus
from keystone_action.report.comment.render import CommentProgress

STATUS = CommitStatus("2" * 40, "keystone/evaluate", None)
FAST = Pace(first=0.01, between=0.01)


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


class Run:
    """A run's live report, with all that it logged and showed."""

    def __init__(
        self,
        github: FakeGitHub,
        *,
        status: CommitStatus | None = None,
        pace: Pace = FAST,
        limits: RequestLimits | None = None,
        after: Callable[[CommentProgress], bool] | None = None,
    ) -> None:
        self.log: list[str] = []
        self.shown: list[CommentProgress] = []
        self.after = after or (lambda progress: True)
        self._github = github
        show: Show | None = None if after is None else self._show
        limits = limits or RequestLimits(tries=1, seconds=5.0, between_writes=0.0)
        self.live = Live(self._connect, status=status, show=show, pace=pace, limits=limits, log=self.log.append)

    def _connect(self, limits: RequestLimits, clock: Clock) -> GitHubClient:
        token = self._github.token("write")
        return GitHubClient.from_environ(
            self._github.environ(), token=token, log=self.log.append, limits=limits, clock=clock
        )

    def _show(self, client: GitHubClient, progress: CommentProgress) -> bool:
        self.shown.append(progress)
        return self.after(progress)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Counted:
    """The end of a run, after so many waits, whose seconds it keeps."""

    def __init__(self, waits: int) -> None:
        self.asked: list[float] = []
        self._waits = waits

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return len(self.asked) > self._waits


def test_progress_is_shown_after_half_a_minute_and_then_ever_less_often(github: FakeGitHub) -> None:
    """A repository's jobs share a thousand requests an hour: one of six hours must not use them up."""
    run = Run(github, pace=reporting.PACE, after=lambda progress: True)
    end = Counted(8)
    run.live._stop = end  # type: ignore[assignment]
    run.live.cells(3, 0)
    run.live._run()
    assert end.asked == [30, 30, 60, 120, 240, 300, 300, 300, 300]
    assert len(run.shown) == 8


def test_pending_is_set_even_of_the_shortest_run(github: FakeGitHub) -> None:
    run = Run(github, status=STATUS)
    run.live.start()
    assert run.live.stop(30)
    assert [one["state"] for one in github.state.statuses] == ["pending"]


def test_a_short_run_shows_no_progress(github: FakeGitHub) -> None:
    run = Run(github, pace=Pace(first=60.0, between=60.0), after=lambda progress: True)
    run.live.start()
    run.live.cells(2, 0)
    assert run.live.stop(30)
    assert run.shown == []
    assert github.calls() == []


def test_progress_counts_what_passed_and_what_did_not(github: FakeGitHub) -> None:
    run = Run(github, after=lambda progress: True)
    run.live.start()
    run.live.cells(5, 1)
    run.live.cell(passed=True)
    run.live.cell(passed=False)
    until(lambda: bool(run.shown) and run.shown[-1].finished == 3)
    assert run.live.stop(30)
    last = run.shown[-1]
    assert (last.cells, last.passed, last.failed) == (5, 2, 1)


def test_before_there_are_cells_nothing_is_shown(github: FakeGitHub) -> None:
    run = Run(github, pace=reporting.PACE, after=lambda progress: True)
    end = Counted(3)
    run.live._stop = end  # type: ignore[assignment]
    run.live._run()
    assert end.asked == [30, 30, 30, 30]
    assert run.shown == []
    assert run.log == []


def test_where_there_is_no_comment_to_keep_it_ends(github: FakeGitHub) -> None:
    run = Run(github, after=lambda progress: False)
    run.live.start()
    run.live.cells(5, 0)
    until(lambda: not run.live.is_alive)
    assert len(run.shown) == 1


@pytest.mark.parametrize(
    ("error", "said"), [(Unavailable("GitHub is down"), "GitHub is down"), (KeyError("x"), "KeyError: 'x'")]
)
def test_a_failure_is_said_once_and_ends_it(github: FakeGitHub, error: Exception, said: str) -> None:
    def fail(progress: CommentProgress) -> bool:
        raise error

    run = Run(github, after=fail)
    run.live.start()
    run.live.cells(5, 0)
    until(lambda: not run.live.is_alive)
    assert len(run.shown) == 1
    assert run.log == [f"while cells run, nothing is posted: {said}"]


def test_a_pending_status_that_fails_leaves_the_comment_alone(github: FakeGitHub) -> None:
    github.fault("POST", "/statuses/*", status=403, message="Resource not accessible by integration")
    run = Run(github, status=STATUS, after=lambda progress: False)
    run.live.start()
    run.live.cells(5, 0)
    until(lambda: not run.live.is_alive)
    assert len(run.shown) == 1
    (line,) = run.log
    assert "statuses: write" in line


def test_a_wait_for_the_api_ends_with_the_run(github: FakeGitHub) -> None:
    """It would be for an hour."""
    github.fault("POST", "/statuses/*", status=429, headers={"retry-after": "3600"}, times=None)
    run = Run(github, status=STATUS, limits=RequestLimits(tries=4, waiting=7200.0))
    run.live.start()
    until(lambda: any("waiting 3600 s" in line for line in run.log))
    assert run.live.stop(30)
    assert github.state.statuses == []


def test_what_was_never_started_is_at_its_end(github: FakeGitHub) -> None:
    run = Run(github)
    run.live.start()
    assert run.live.stop(0.0)
    assert github.calls() == []
