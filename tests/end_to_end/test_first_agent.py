"""A newcomer's first verdicts: `keystone init --agent NAME`, and nothing but what it printed; the real programs, in
front of a model that follows a script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.agent_clients import CLIENTS, Client, installed
from support.command_line import ENVIRONMENT, Called, keystone
from support.model_agents import REAL_KEY
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import provider

from keystone_action.gateway.upstreams import VARIABLES

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

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


def test_an_agent_that_only_says_that_it_has_done_it_fails(tmp_path: Path) -> None:
    client = CLIENTS["claude-code"]
    called = keystone("init", "--agent", client.kind, directory=tmp_path, environ=path(client))
    red = follow(tmp_path, called.out, client, client.ends)
    assert (red.code, red.cells[0]["verdict"]) == (1, "fail")
    assert "total.txt does not exist" in red.err
