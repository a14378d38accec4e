"""docs/forks.md: its two workflows keep to the schema and to least permissions, and do what the page says when they
are played by the fake runner."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fake_github import FakeGitHub
from support.fake_runner import ROOT, FakeRunner, StepResult
from support.workflow_expressions import Open, interpolate

from keystone_action.github import foreign_comment as comment_mode
from keystone_action.github import reporting
from keystone_action.github.api.requests import RequestLimits

PAGE = (ROOT / "docs" / "forks.md").read_text("utf-8")
WORKFLOWS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FIRST, SECOND = (yaml.safe_load(text) for text in WORKFLOWS)
HEAD = "2" * 40
SPEC = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: "touch done.txt"}
invariants:
  done: {check: {type: file_exists, path: NAME}}
"""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reporting, comment_mode):
        monkeypatch.setattr(module, "LIMITS", RequestLimits(waiting=0.0, between_writes=0.0))


@pytest.fixture
def workflows(tmp_path: Path) -> Path:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    for number, text in enumerate(WORKFLOWS):
        (folder / f"{number}.yml").write_text(text)
    return tmp_path


def tool(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_they_keep_to_the_schema_of_workflows(workflows: Path) -> None:
    files = [str(path) for path in workflows.rglob("*.yml")]
    assert len(files) == 2
    assert tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files) == ""


def test_they_keep_to_the_rules_of_security(workflows: Path) -> None:
    assert tool("zizmor", "--offline", "--quiet", "--no-config", str(workflows)) == ""


def test_permissions_are_least() -> None:
    assert FIRST["permissions"] == {"contents": "read"}
    assert SECOND["permissions"] == {}
    (comment,) = SECOND["jobs"].values()
    assert comment["permissions"] == {"actions": "read", "pull-requests": "write"}
    assert not [step for step in comment["steps"] if "checkout" in step["uses"] or "secrets." in str(step)]


def test_actions_of_others_are_pinned() -> None:
    used = re.findall(r"uses: (\S+)@(\S+)", PAGE)
    assert len(used) == 5
    assert all(re.fullmatch("[0-9a-f]{40}", ref) for name, ref in used if not name.startswith("keystone-action/"))


def step_of(workflow: dict[str, Any], name: str) -> dict[str, Any]:
    (job,) = workflow["jobs"].values()
    (step,) = [step for step in job["steps"] if step["uses"].startswith(name)]
    return step.get("with", {})


def play(tmp_path: Path, github: FakeGitHub, *, passes: bool) -> tuple[StepResult, StepResult]:
    """Both workflows' steps for a fork's pull request; the artifact goes as their steps say."""
    first = FakeRunner(tmp_path / "first", event="pull_request_fork", github=github, token="read-only")
    (first.workspace / "keystone.yaml").write_text(SPEC.replace("NAME", "done.txt" if passes else "other.txt"))
    ran = first.step(step_of(FIRST, "keystone-action/"))
    second = FakeRunner(tmp_path / "second", event="workflow_run_fork", github=github)
    upload, download = step_of(FIRST, "actions/upload"), step_of(SECOND, "actions/download")
    assert upload["name"] == download["name"]
    path = interpolate(upload["path"], {"steps": {"keystone": {"outputs": Open(ran.outputs)}}})
    shutil.copytree(first.workspace / path, second.workspace / download["path"])
    return ran, second.step(step_of(SECOND, "keystone-action/"))


@pytest.mark.parametrize("passes", [True, False])
def test_a_fork_gets_its_comment(tmp_path: Path, passes: bool) -> None:
    with FakeGitHub() as github:
        github.state.repository = "octo/agents"
        github.state.add_pull(17, head_sha=HEAD, head_ref="topic", head_repository="mallory/agents")
        ran, commented = play(tmp_path, github, passes=passes)
        (comment,) = github.state.comments
        assert github.state.statuses == []
    assert (ran.exit_code, ran.outputs["comment-written"]) == (0 if passes else 1, "keystone-results/comment.md")
    assert (commented.exit_code, commented.outputs["comment-id"]) == (0, str(comment.id))
    assert ran.outputs["verdict"] == ("pass" if passes else "fail")
    # What a fork's results say leads no later step of a job that may write.
    assert not any(value for name, value in commented.outputs.items() if name != "comment-id")
    assert comment.body.startswith("## ✅ Keystone: " if passes else "## ❌ Keystone: ")
    assert "`mallory/agents`" in comment.body or "mallory/agents" in comment.body
    assert "ended with success" in comment.body
    assert json.dumps(ran.rejected + commented.rejected) == "[]"
