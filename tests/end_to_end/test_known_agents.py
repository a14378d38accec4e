"""Known agents by `keystone run`: the real programs, behind the gateway, in front of a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent_clients import CLIENTS, Client, image_with, installed
from support.command_line import Called
from support.hostile import everything_written
from support.images import BASE
from support.model_agents import REAL_KEY, run, trace_events
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import ScriptedProvider, provider

from keystone_action.agents.presets.preset import load_preset
from keystone_action.gateway.upstreams import VARIABLES
from keystone_action.pricing import cost_of

HARMLESS = (
    "egress: deny leaves ports of this machine open",
    "egress: deny lets single datagrams through",
    " × result or message that was kept only in part",
)
"""Notices of what these specs ask for: no egress, and a very long prompt."""
pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(params=[client.kind for client in CLIENTS.values() if client.command])
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def called_with(
    folder: Path, client: Client, turns: list[Turn], *, offers_tools: bool = True, **fields: Any
) -> tuple[Called, ScriptedModel]:
    """One run of a spec whose agent is this one, as users write it."""
    place, model = installed(client.kind), ScriptedModel(turns, offers_tools)
    agent = {"type": client.kind, "model": client.model, "binary": str(place.program), "timeout": "4m"}
    spec = {
        "version": 1,
        "id": "known",
        "task": {"prompt": "Write hello.txt."},
        "agent": agent,
        "resources": {"readable": [str(place.folder)]},
        "invariants": {"written": {"check": {"type": "file_content", "path": "hello.txt", "contains": "hello"}}},
        **fields,
    }
    with provider(model.answer) as behind:
        return run(folder, spec, environ(client, behind)), model


def environ(client: Client, behind: ScriptedProvider) -> dict[str, str]:
    key, base = VARIABLES[client.api]
    return {key: REAL_KEY, base: behind.url + ("/v1" if client.api == "openai" else "")}


def require_told(client: Client, called: Called, model: ScriptedModel) -> None:
    """The task is done, and all that is told of it is what the provider said; the program's own transcript agrees, or
    there would be a notice."""
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert cell["trace"] == {"source": "gateway", "replayed": None, "recorded_at": None, "differs": ""}
    told = [event["payload"] for event in trace_events(called) if event["type"] == "tool_call"]
    told = [call for call in told if "told_by" not in call]
    assert [(call["raw_name"], call["input"]) for call in told] == [(name, dict(given)) for name, given in model.calls]
    read, cached, written = (sum(getattr(turn, name) for turn in model.said) for name in ("read", "cached", "written"))
    usage = cell["usage"]
    asked = [(one.target, len(one.body)) for one in model.asked]
    assert (usage["input_tokens"], usage["cache_read_tokens"]) == (read - cached, cached), asked
    assert (usage["output_tokens"], usage["requests"]) == (written, len(model.said))
    cost = sum(
        cost_of(client.api, name, uncached=turn.read - turn.cached, output=turn.written, cache_read=turn.cached)
        for turn, name in zip(model.said, model.models, strict=True)
    )
    assert usage["cost_usd"] == pytest.approx(cost)
    assert [notice for notice in cell["notices"] if not any(one in notice for one in HARMLESS)] == []
    (log,) = called.output.glob("cells/*/audit.jsonl")
    first = json.loads(log.read_text("utf-8").partition("\n")[0])
    assert (first["type"], first["details"]["version"]) == ("known_agent", load_preset(client.kind).seen)


def require_key_with_provider_alone(client: Client, called: Called, model: ScriptedModel) -> None:
    """The real key is in the headers of what the provider got, and nowhere else."""
    assert len(model.asked) == len(model.said)
    for asked in model.asked:
        assert asked.target.startswith(client.path)
        assert REAL_KEY in {value.removeprefix("Bearer ") for _, value in asked.headers}
        assert "keystone-" not in str(asked.headers)
        assert REAL_KEY.encode() not in asked.body
    assert [where for where, data in everything_written(called).items() if REAL_KEY.encode() in data] == []


def test_it_does_its_task_and_all_that_is_told_is_what_the_provider_said(tmp_path: Path, client: Client) -> None:
    """Its prompt is longer than any argument of a program, and it would search where that is denied."""
    prompt = "Write hello.txt.\n" + "".join(f"{number} é " for number in range(30_000)) + "the end of it"
    assert len(prompt.encode()) > 200 << 10
    file, looks = str(tmp_path / "never"), "cat hello.txt; env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"
    turns = [
        *client.searches("weather"),
        client.runs("printf 'hello' > hello.txt"),
        client.runs(looks),
        client.runs(f"ls {file}"),
        *client.ends,
    ]
    gateway = {"provider_tools": "deny"}
    called, model = called_with(tmp_path, client, turns, task={"prompt": prompt}, gateway=gateway)
    require_told(client, called, model)
    require_key_with_provider_alone(client, called, model)
    bodies = [json.dumps(asked.document, ensure_ascii=False) for asked in model.asked]
    whole = [body for body in bodies if " 15000 é 15001 é " in body and "29998 é 29999 é the end of it" in body]
    assert whole
    assert '"web_search"' not in "".join(bodies)
    results = [event["payload"]["output"] for event in trace_events(called) if event["type"] == "tool_result"]
    assert any("_KEY=keystone-" in result for result in results)  # it saw its environment


@pytest.mark.parametrize(("name", "broken"), [("Write", False), ("mcp__files__Write", True)])
def test_what_a_known_tool_writes_into_a_file_is_no_command(tmp_path: Path, name: str, broken: bool) -> None:
    claude, given = CLIENTS["claude-code"], {"file_path": "hello.txt", "content": "hello: never rm -rf"}
    turns = [Turn(calls=[(name, given)]), claude.runs("printf 'hello' > hello.txt"), *claude.ends]
    called, _ = called_with(tmp_path, claude, turns, forbidden={"commands": [r"rm\s+-rf"]})
    assert called.cells[0]["forbidden"][0]["violated"] is broken
    assert called.code == (1 if broken else 0), called.err + called.out


def test_aider_which_has_no_tools_edits_what_the_model_writes_down(tmp_path: Path) -> None:
    block = "hello.txt\n```\n<<<<<<< SEARCH\n=======\nhello\n>>>>>>> REPLACE\n```\n"
    invariants = {
        "written": {"check": {"type": "file_content", "path": "hello.txt", "pattern": "^hello\n$"}},
        "alone": {"check": {"type": "diff", "only": ["hello.txt"]}},
    }
    aider, turns = CLIENTS["aider"], [Turn(text=block, cached=100)]
    called, model = called_with(tmp_path, aider, turns, offers_tools=False, invariants=invariants)
    require_told(aider, called, model)
    require_key_with_provider_alone(aider, called, model)


def test_in_processes_that_reach_nothing_but_the_gateway(tmp_path: Path, client: Client) -> None:
    turns = [*client.searches("weather"), client.runs("echo hello > hello.txt"), *client.ends]
    called, model = called_with(tmp_path, client, turns, network={"egress": {"default": "deny"}})
    assert called.document["sandbox"]["egress"] in ("namespace", "ports")
    require_told(client, called, model)
    require_key_with_provider_alone(client, called, model)


@pytest.mark.docker
def test_in_a_container_that_reaches_nothing_but_the_gateway(
    tmp_path: Path, client: Client, image: Callable[[str], str]
) -> None:
    fields = {
        "base": image_with([client.kind for client in CLIENTS.values() if client.command], image(BASE)),
        "agent": {"type": client.kind, "model": client.model, "timeout": "2m"},
        "network": {"egress": {"default": "deny"}},
        "resources": {},
    }
    turns = [*client.searches("weather"), client.runs("echo hello > hello.txt"), *client.ends]
    called, model = called_with(tmp_path, client, turns, **fields)
    require_told(client, called, model)
    require_key_with_provider_alone(client, called, model)


def test_the_budget_of_an_endless_loop_bites(tmp_path: Path, client: Client) -> None:
    loops = [client.runs("echo hello >> hello.txt")]
    called, model = called_with(tmp_path, client, loops, gateway={"budget": {"max_tool_calls": 3}})
    (cell,) = called.cells
    assert cell["agent"]["stopped"] == "budget", (cell["agent"], called.err)
    assert "stopped at 3 of 3 tool calls" in cell["agent"]["note"]
    assert cell["usage"]["tool_calls"] == len(model.calls) == 3
    # It is graded on what it left.
    assert cell["verdict"] == "pass"


NPM = """#!/bin/sh
# Stands for npm: what it is told to install is a program that does nothing but ask its model once.
case $3 in @openai/codex@*) version=${3##*@} ;; *) exit 9 ;; esac
cat > /usr/local/bin/codex <<END
#!/usr/bin/python3
import json, os, re, sys, urllib.request
if "--version" in sys.argv:
    sys.exit(print("codex-cli $version"))
base = re.search('base_url="([^"]+)"', " ".join(sys.argv))[1]
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
body = json.dumps({"model": "gpt-5", "input": [], "tools": [{"type": "function", "name": "t"}]}).encode()
urllib.request.urlopen(urllib.request.Request(base + "/responses", body, headers)).read()
open("hello.txt", "w").write("hello from $version")
END
chmod 755 /usr/local/bin/codex
"""


@pytest.mark.docker
@pytest.mark.parametrize("version", ["0.169.0", "latest"])
def test_the_version_that_a_spec_names_is_installed_in_its_image(
    tmp_path: Path, image: Callable[[str], str], version: str
) -> None:
    npm = (
        NPM if version != "latest" else NPM.replace("@openai/codex@*) version=${3##*@}", "@openai/codex) version=9.9.9")
    )
    fields = {
        "base": image(BASE),
        "setup": {
            "files": [{"path": "npm", "content": npm, "mode": "0755"}],
            "commands": ["mv npm /usr/local/bin/npm"],
        },
        "agent": {"type": "codex", "model": "gpt-5", "version": version},
        "resources": {},
    }
    called, _ = called_with(tmp_path, CLIENTS["codex"], [Turn(text="Done.")], **fields)
    assert called.code == 0, called.err + called.out
    told = [notice for notice in called.cells[0]["notices"] if notice.startswith("agent.version: latest")]
    assert len(told) == (version == "latest")
