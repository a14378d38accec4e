"""A step of the action for an open pull request on a fake GitHub, and the comment of an earlier run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner
from support.github_state import ACTIONS_BOT, FakeComment

from keystone_action.report import words
from keystone_action.report.comment.history import LastResult, Marker

HEAD = "2" * 40
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "AGENT"}
parallelism: {replicas: REPLICAS, max_concurrency: 1}
invariants:
  done: {check: {type: file_exists, path: other.txt}}
"""
REPORTS = ("results.json", "summary.md", "report.html", "junit.xml")


@contextmanager
def fake_github() -> Iterator[FakeGitHub]:
    """One with an open pull request."""
    with FakeGitHub() as fake:
        fake.state.repository = "octo/agents"
        fake.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="octo/agents")
        yield fake


def runner_of(root: Path, github: FakeGitHub | None, *, agent: str = "true", replicas: int = 1) -> FakeRunner:
    runner = FakeRunner(root, event="pull_request", github=github)
    text = SPEC.replace("AGENT", agent).replace("REPLICAS", str(replicas))
    (runner.workspace / "keystone.yaml").write_text(text)
    return runner


def waited_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def own_comment(github: FakeGitHub, result: LastResult) -> FakeComment:
    """What an earlier run has left on the pull request."""
    marker = Marker.of_key("octo/agents/.github/workflows/evaluate.yml@refs/heads/main-evaluate-__self-0")
    headline = f"## {words.ICONS[result.verdict]} {words.TITLES[result.verdict]}: an earlier run\n\nwhy\n"
    return github.state.add_comment(17, marker.sign(headline, result.encode()), created_by=ACTIONS_BOT)
