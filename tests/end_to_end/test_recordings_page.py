"""docs/recordings.md: its commands run in their order, its fields load, its workflows do what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.artifacts import Artifacts
from support.command_line import ROOT, keystone
from support.fake_runner import EVENTS
from support.model_agents import REAL_KEY, behind, says, spec_of
from support.repositories import commit, git
from support.workflow_play import Player, in_this_process

from keystone_action.gateway.recordings.recording import SIZE_LIMIT
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.loader import load
from tools.readme_workflow import workflows

PAGE = (ROOT / "docs" / "recordings.md").read_text("utf-8")
REPLAY, LIVE, RECORD = workflows(PAGE)
FRAGMENTS = [
    text for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if text not in workflows(PAGE)
]
COMMANDS = re.findall(r"^\$ (keystone .*)$", PAGE, re.MULTILINE)
SCRIPT = """
status, answer = ask([user("Is it done?")], system=os.environ.get("SYSTEM", "You sort."))
print(answer["content"][0]["text"] if status == 200 else answer["error"]["message"])
"""
SPEC = spec_of(SCRIPT, id="triage", workspace="app")
FILE = "evals/recordings/triage/triage.r0.jsonl"


def put(folder: Path, **fields: Any) -> None:
    (folder / "evals" / "app").mkdir(parents=True, exist_ok=True)
    (folder / "evals" / "keystone.yaml").write_text(json.dumps({**SPEC, **fields}))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recorded")
    put(folder)
    with behind(says("done")) as (_, environ):
        called = keystone("run", "evals", "--gateway", "record", directory=folder, environ=environ)
    assert called.code == 0, called.err
    return (folder / FILE).read_text()


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_part_of_a_spec_loads(tmp_path: Path, fragment: str) -> None:
    (tmp_path / "keystone.yaml").write_text(yaml.safe_dump({**spec_of(SCRIPT), **yaml.safe_load(fragment)}))
    assert load(tmp_path / "keystone.yaml", CheckTypes()).spec.model_gateway is not None


def test_the_commands_run_in_their_order(tmp_path: Path) -> None:
    put(tmp_path)
    with behind(says("done")) as (provider, environ):
        for line in COMMANDS:
            called = keystone(*shlex.split(line)[1:], directory=tmp_path, environ=environ if "record " in line else {})
            assert called.code == 0, (line, called.err)
        assert len(provider.asked) == 1
    assert len(COMMANDS) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "evals", "first"]


def test_a_miss_is_told_as_shown(tmp_path: Path, recorded: str) -> None:
    put(tmp_path, agent={**SPEC["agent"], "env": {"SYSTEM": "You sort mail."}})
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(recorded)
    called = keystone("run", "evals", "--gateway", "replay", "--output", "out", directory=tmp_path)
    (shown,) = re.findall(r"^```text\n(.*)\n```", PAGE, re.MULTILINE)
    before, after = shown.split("…")
    assert called.code == 3
    assert re.search(f"{re.escape(before)}.*{re.escape(after)}", " ".join(called.cells[0]["error"].split()))


def test_numbers_and_words_are_those_of_the_code() -> None:
    assert f"has more than {SIZE_LIMIT >> 20} MiB" in PAGE
    schema = json.loads((ROOT / "docs" / "results.schema.json").read_text())
    fits = schema["$defs"]["TraceInfo"]["properties"]["replayed"]["anyOf"][0]["enum"]
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == ["replayed", *fits]


def checkout(recording: str) -> Callable[[Path], None]:
    def check_out(workspace: Path) -> None:
        put(workspace)
        (workspace / FILE).parent.mkdir(parents=True)
        (workspace / FILE).write_text(recording)

    return check_out


@pytest.mark.parametrize("event", ["pull_request", "pull_request_fork"])
def test_every_pull_request_is_replayed_without_a_key(tmp_path: Path, recorded: str, event: str) -> None:
    played = Player(tmp_path, REPLAY, checkout(recorded), event=event).play()
    assert played.result("replay") == "success", played.jobs["replay"][0].ours.text
    assert "Replayed, no model was asked" in played.jobs["replay"][0].ours.summary


@pytest.mark.parametrize(
    ("event", "label", "result"),
    [("schedule", None, "failure"), ("pull_request", "live", "failure"), ("pull_request", "bug", "skipped")],
)
def test_a_live_run_starts_at_night_and_by_its_label(
    tmp_path: Path, recorded: str, event: str, label: str | None, result: str
) -> None:
    """It fails here, since it has no key: so it asked for one."""
    payload = json.loads((EVENTS / f"{event}.json").read_text())
    if label is not None:
        payload["label"] = {"name": label}
    played = Player(tmp_path, LIVE, checkout(recorded), event=event, payload=payload).play()
    assert played.result("live") == result
    if result == "failure":
        assert "ANTHROPIC_API_KEY is not set" in played.jobs["live"][0].ours.text


GH = """#!/bin/sh
echo "$@" >> "$HOME/gh-calls"
"""


def test_new_recordings_become_a_pull_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin, programs = tmp_path / "origin", tmp_path / "bin"
    programs.mkdir()
    (programs / "gh").write_text(GH)
    (programs / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    commit(origin, {"evals/keystone.yaml": json.dumps(SPEC), "evals/app/README": "x"})

    def check_out(workspace: Path) -> None:
        git(workspace, "init", "-q", "-b", "main")
        git(workspace, "remote", "add", "origin", str(origin))
        git(workspace, "fetch", "-q", "origin")
        git(workspace, "reset", "-q", "--hard", "origin/main")

    given: list[dict[str, str]] = []
    with behind(says("done")) as (_, environ):

        def ours(job: str, runner: Any, inputs: Any, env: dict[str, str], masked: tuple[str, ...]) -> Any:
            given.append(env)
            return in_this_process(job, runner, inputs, {**env, **environ}, masked)

        artifacts = Artifacts(tmp_path / "artifacts")
        (tmp_path / "play").mkdir()
        played = Player(
            tmp_path / "play",
            RECORD,
            check_out,
            secrets={"ANTHROPIC_API_KEY": REAL_KEY},
            event="workflow_dispatch",
            artifacts=artifacts,
            action=ours,
        ).play()
    (leg,) = played.jobs["propose"]
    assert (played.result("record"), leg.result) == ("success", "success"), [step.log for step in leg.steps]
    assert [env["ANTHROPIC_API_KEY"] for env in given] == [REAL_KEY]
    text = git(origin, "show", f"recordings-1:{FILE}")
    assert json.loads(text.splitlines()[0])["cell"] == "triage.r0"
    assert git(origin, "show", "--format=%s", "--name-only", "recordings-1").split() == ["New", "recordings", FILE]
    assert leg.runner is not None
    calls = (leg.runner.home / "gh-calls").read_text().splitlines()
    assert calls[0] == "auth setup-git"
    assert calls[1].startswith("pr create --head recordings-1 --title New recordings")


def test_agents_run_only_where_nothing_can_be_written() -> None:
    for text in (REPLAY, LIVE, RECORD):
        document = yaml.safe_load(text)
        for job in document["jobs"].values():
            rights = job.get("permissions", document["permissions"])
            runs_agents = any(step.get("uses", "").startswith("keystone-action/") for step in job["steps"])
            assert not (runs_agents and rights["contents"] == "write")
    assert "secrets." not in REPLAY
