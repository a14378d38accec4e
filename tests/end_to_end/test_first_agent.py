"""A newcomer's first verdicts: `keystone init --agent NAME`, and nothing but what it printed; the real programs, in
front of a model that follows a script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.agent_clients import CLIENTS, Client, installed
from support.command_line import ENVIRONMENT, Called, keystone
from support.fake_github import FakeGitHub
from support.fake_runner import FakeRunner, StepResult
from support.model_agents import REAL_KEY
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import provider
from support.workflow_play import Player

from keystone_action.cli.found_agents import FoundAgent
from keystone_action.cli.scaffold import agent_files
from keystone_action.gateway.upstreams import VARIABLES

ADDS_UP = "awk -F, 'NR > 1 {sum += $2} END {printf \"%.2f\\n\", sum}' prices.csv > total.txt"


@pytest.fixture(params=[client.kind for client in CLIENTS.values() if client.command])
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def follow(directory: Path, printed: str, client: Client, turns: list[Turn]) -> Called:
    """Do as it said: set the key, run the command."""
    (key,) = re.findall(r"^  export (\w+)=\.\.\.", printed, re.MULTILINE)
    (command,) = re.findall(r"^  keystone (.*)$", printed, re.MULTILINE)
    with provider(ScriptedModel(turns).answer) as behind:
        base = dict(VARIABLES.values())[key]
        environ = {key: REAL_KEY, base: behind.url + ("/v1" if key == "OPENAI_API_KEY" else "")}
        return keystone(*command.split(), "--output", "out", directory=directory, environ={**environ, **path(client)})


def path(client: Client) -> dict[str, str]:
    return {"PATH": f"{installed(client.kind).program.parent}:{ENVIRONMENT['PATH']}"}


@pytest.mark.sandbox
@pytest.mark.slow
def test_a_first_green_verdict_and_a_first_red_one(tmp_path: Path, client: Client) -> None:
    called = keystone("init", "--agent", client.kind, directory=tmp_path, environ=path(client))
    assert called.code == 0, called.err
    green = follow(tmp_path, called.out, client, [client.runs(ADDS_UP), *client.ends])
    assert green.code == 0, green.out + green.err
    assert green.cells[0]["trace"]["source"] == "gateway"
    assert green.cells[0]["usage"]["requests"] >= 1
    green.output.rename(tmp_path / "green")
    ((old, new),) = re.findall(r"write (\w+) for (\w+)", called.out)
    spec = tmp_path / "keystone.yaml"
    spec.write_text(spec.read_text().replace(new, old))
    red = follow(tmp_path, called.out, client, [client.runs(ADDS_UP), *client.ends])
    assert (red.code, red.cells[0]["verdict"]) == (1, "fail"), red.out + red.err
    assert "total_is_right" in red.err


@pytest.mark.sandbox
@pytest.mark.slow
def test_an_agent_that_only_says_that_it_has_done_it_fails(tmp_path: Path) -> None:
    client = CLIENTS["claude-code"]
    called = keystone("init", "--agent", client.kind, directory=tmp_path, environ=path(client))
    red = follow(tmp_path, called.out, client, client.ends)
    assert (red.code, red.cells[0]["verdict"]) == (1, "fail")
    assert "total.txt does not exist" in red.err


@pytest.mark.docker
@pytest.mark.parametrize(("total", "result"), [("42", "success"), ("43", "failure")])
def test_its_workflow_judges_a_pull_request(tmp_path: Path, agent_installers: str, total: str, result: str) -> None:
    def checkout(workspace: Path) -> None:
        assert keystone("init", "--agent", "codex", directory=workspace).code == 0
        spec = workspace / "container.yaml"
        spec.write_text(re.sub("^base: .*", f"base: {agent_installers}", spec.read_text(), flags=re.MULTILINE))
        spec.write_text(spec.read_text().replace("42", total))

    workflow = agent_files(FoundAgent("codex", None))[".github/workflows/agent.yml"]
    with provider(ScriptedModel([Turn(text="Done.")]).answer) as behind, FakeGitHub() as github:

        def step(
            _job: str, runner: FakeRunner, inputs: dict[str, str], env: dict[str, str], masked: tuple[str, ...]
        ) -> StepResult:
            return runner.step(inputs, env={**env, "OPENAI_BASE_URL": behind.url + "/v1"}, masked=masked)

        github.state.repository = "octo/agents"
        github.state.add_pull(17, head_sha="2" * 40, head_ref="topic", head_repository="octo/agents")
        given = {"secrets": {"OPENAI_API_KEY": REAL_KEY}, "event": "pull_request", "github": github, "action": step}
        played = Player(tmp_path, workflow, checkout, **given).play()
        (comment,) = github.state.comments
    (leg,) = played.jobs["evaluate"]
    assert played.result("evaluate") == result, leg.ours.text
    assert "first-spec" in comment.body
    assert REAL_KEY not in comment.body + leg.ours.text
    assert played.artifacts.names == ["keystone-results"]
