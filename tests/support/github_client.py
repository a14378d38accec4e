"""A client of a fake GitHub whose clock only its own waits move, and whose log is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.fake_github import FakeGitHub

from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.requests import Clock, RequestLimits


@dataclass
class FakeTime:
    """waits: what was slept, in seconds."""

    at: float = 1_000_000.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Takes no time of ours."""
        self.waits.append(seconds)
        self.at += seconds

    def now(self) -> float:
        """Where the waits have brought it."""
        return self.at

    @property
    def clock(self) -> Clock:
        """As the client takes it."""
        return Clock(monotonic=self.now, now=self.now, sleep=self.sleep)


@dataclass
class Probe:
    """A client with all that it said and slept."""

    client: GitHubClient
    time: FakeTime
    log: list[str]


def probe(github: FakeGitHub, kind: str = "write", *, limits: RequestLimits | None = None, **more: Any) -> Probe:
    """A client of the fake with a token of a kind, closed with the fake."""
    time, log = FakeTime(), []
    given = {"token": github.token(kind), **more}
    client = GitHubClient.from_environ(github.environ(), log=log.append, limits=limits, clock=time.clock, **given)
    return Probe(github.clients.enter_context(client), time, log)


def nothing() -> None:
    """Looks for a comment and finds none."""
    return
