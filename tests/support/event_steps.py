"""A step of the action for an event, on a fake GitHub that holds the pull requests which events name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_github import FakeGitHub
from support.fake_runner import MERGE_SHA, FakeRunner, StepResult

from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits

HEAD = "2" * 40
PASSING = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "touch done.txt"}
invariants:
  done: {check: {type: file_exists, path: done.txt}}
"""


@pytest.fixture(name="github")
def github_of_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """Pull request 17 of the events; two open ones of the commit that was pushed, one closed, one of another base.
    Nothing waits between two calls."""
    monkeypatch.setattr(reporting, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        own = {"head_ref": "topic", "head_repository": "octo/agents"}
        fake.state.add_pull(17, head_sha=HEAD, **own)
        for number in (18, 19):
            fake.state.add_pull(number, head_sha=MERGE_SHA, **own)
        fake.state.add_pull(20, head_sha=MERGE_SHA, state="closed", **own)
        yield fake


def step(
    root: Path, github: FakeGitHub, fixture: str, token: str = "write", *, spec: str = PASSING, **inputs: str
) -> StepResult:
    actor = "dependabot[bot]" if fixture.endswith("dependabot") else "ada"
    root.mkdir(exist_ok=True, parents=True)
    name = str(len(list(root.iterdir())))
    runner = FakeRunner(root / name, event=fixture, github=github, token=token, actor=actor)
    (runner.workspace / "keystone.yaml").write_text(spec)
    return runner.step(inputs)


def states(github: FakeGitHub) -> list[tuple[str, str]]:
    return [(one["state"], one["sha"]) for one in github.state.statuses]
