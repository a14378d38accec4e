"""Known agents with an mcp_mock: real programs find it in their own settings, and call its tools as a model asks them
to; recorded once, and replayed elsewhere without a key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.agent_clients import CLIENTS, Client, image_with, installed
from support.command_line import Called
from support.images import BASE
from support.model_agents import REAL_KEY, run, trace_events
from support.replayed_agents import Project, require_equal_turns
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import provider

from keystone_action.gateway.upstreams import VARIABLES

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
TOOL: Mapping[str, str] = {
    "claude-code": "mcp__desk__get_order",
    "codex": "mcp__desk/get_order",
    "gemini": "mcp_desk_get_order",
    "opencode": "desk_get_order",
    "qwen-code": "mcp__desk__get_order",
}
"""What a model calls the tool, by the client."""
DESK = {
    "name": "desk",
    "type": "mcp_mock",
    "tools": [
        {
            "name": "get_order",
            "description": "Returns the state of an order.",
            "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            "template": "order {{ arguments.id }} is paid",
        }
    ],
}
ASKED = {
    "check": {
        "type": "mcp_assertions",
        "service": "desk",
        "assertions": [
            {"field": "call_count", "equals": 2},
            {"field": "calls[0].arguments", "equals": {"id": 7}},
            {"field": "last_call.result", "equals": "order 8 is paid"},
        ],
    }
}
WRITTEN = {"check": {"type": "file_content", "path": "hello.txt", "pattern": "^hello$"}}


@dataclass
class AskingModel(ScriptedModel):
    """It asks the desk twice, and writes the file."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        asks = [Turn(calls=[(TOOL[self.client.kind], {"id": number})]) for number in (7, 8)]
        self.turns = [*asks, self.client.runs("printf hello > hello.txt"), *self.client.ends]


def require_asked(called: Called, kind: str) -> None:
    assert called.code == 0, called.err + called.out
    (log,) = called.output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [line["details"] for line in lines if line["type"] == "mcp_call"]
    assert [(one["arguments"], one["result"]) for one in calls] == [
        ({"id": 7}, "order 7 is paid"),
        ({"id": 8}, "order 8 is paid"),
    ]
    events = trace_events(called)
    told = [event["payload"] for event in events if event["type"] == "tool_call"]
    assert [one["raw_name"] for one in told][:2] == [TOOL[kind].replace("/", "__")] * 2
    results = [event["payload"]["output"] for event in events if event["type"] == "tool_result"]
    assert ["order 7 is paid" in results[0], "order 8 is paid" in results[1]] == [True, True]


def require_recorded_and_replayed(folder: Path, client: Client, base: str = "") -> None:
    project = Project(folder / "here" / "project", client, base)
    alone: Any = {"check": {"type": "diff", "only": ["hello.txt"]}}
    project.write(services=[DESK], invariants={"written": WRITTEN, "asked": ASKED, "alone": alone})
    require_asked(project.record(AskingModel), client.kind)
    elsewhere = project.elsewhere(folder / "another" / "place" / "clone")
    for _ in range(2):
        again = elsewhere.replay()
        require_asked(again, client.kind)
        assert again.cells[0]["trace"]["replayed"] == "exact", again.cells[0]


@pytest.mark.parametrize("kind", TOOL)
def test_it_asks_the_mock_recorded_and_replayed(tmp_path: Path, kind: str) -> None:
    require_recorded_and_replayed(tmp_path, CLIENTS[kind])


@dataclass
class LastingModel(ScriptedModel):
    """In each of three turns it asks the desk for one more order, and writes down that it did."""

    client: Client = field(kw_only=True)

    def __post_init__(self) -> None:
        self.turns = [
            turn
            for number in (7, 8, 9)
            for turn in (
                Turn(calls=[(TOOL[self.client.kind], {"id": number})]),
                self.client.runs(f"echo {number} >> hello.txt"),
                Turn(text=f"Asked for {number}."),
            )
        ]


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
def test_it_asks_the_mock_in_three_turns_recorded_and_replayed(tmp_path: Path, kind: str) -> None:
    project = Project(tmp_path / "here" / "project", CLIENTS[kind])
    invariants: Any = {
        "written": {"check": {"type": "file_content", "path": "hello.txt", "pattern": "^7\n8\n9\n$"}},
        "asked": {"check": {**ASKED["check"], "assertions": [{"field": "call_count", "equals": 3}]}},
    }
    task = {"prompt": "Write hello.txt.", "turns": ["And the next one.", "And the last one."]}
    project.write(task=task, services=[DESK], invariants=invariants)
    first = project.record(LastingModel)
    (log,) = first.output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    calls = [(one["turn"], one["details"]) for one in lines if one["type"] == "mcp_call"]
    assert [(turn, told["arguments"], told["result"]) for turn, told in calls] == [
        (turn, {"id": number}, f"order {number} is paid") for turn, number in enumerate((7, 8, 9), 1)
    ]
    require_equal_turns(kind, first, project.elsewhere(tmp_path / "another" / "place" / "clone"))


@pytest.mark.docker
@pytest.mark.parametrize("kind", ["claude-code", "codex"])
def test_it_asks_the_mock_from_a_container(tmp_path: Path, kind: str, image: Callable[[str], str]) -> None:
    base = image_with([client.kind for client in CLIENTS.values() if client.command], image(BASE))
    require_recorded_and_replayed(tmp_path, CLIENTS[kind], base)


def test_claude_code_reads_what_artifacts_become(tmp_path: Path) -> None:
    """The places into which `artifacts` of a Touchstone case are put: its model is told of the skill, the command, and
    the plugin's skill, and the server of `.mcp.json` is started."""
    client, place = CLIENTS["claude-code"], installed("claude-code")
    skill = "---\nname: {0}\ndescription: Knows {0}\n---\nLook twice.\n"
    server = {"mcpServers": {"own": {"command": "sh", "args": ["-c", "touch started; exit 1"]}}}
    files = {
        ".claude/skills/marmalade/SKILL.md": skill.format("marmalade"),
        ".claude/commands/preserve.md": "---\ndescription: Preserves fruit\n---\nPreserve $ARGUMENTS\n",
        ".claude/plugins/pantry/.claude-plugin/plugin.json": json.dumps({"name": "pantry", "version": "1.0.0"}),
        ".claude/plugins/pantry/skills/chutney/SKILL.md": skill.format("chutney"),
        ".mcp.json": json.dumps(server),
    }
    agent = {"type": client.kind, "model": client.model, "binary": str(place.program), "timeout": "4m"}
    spec = {
        "version": 1,
        "id": "artifacts",
        "task": {"prompt": "Write hello.txt."},
        "agent": {**agent, "args": ["--plugin-dir=.claude/plugins/pantry"]},
        "setup": {"files": [{"path": path, "content": content} for path, content in files.items()]},
        "resources": {"readable": [str(place.folder)]},
        "invariants": {"written": WRITTEN, "started": {"check": {"type": "file_exists", "path": "started"}}},
    }
    model = ScriptedModel([client.runs("printf hello > hello.txt"), *client.ends])
    with provider(model.answer) as behind:
        key, base = VARIABLES[client.api]
        called = run(tmp_path, spec, {key: REAL_KEY, base: behind.url})
    assert called.code == 0, called.err + called.out
    told = "".join(json.dumps(asked.document) for asked in model.asked)
    assert [word for word in ("marmalade", "preserve", "pantry:chutney") if word not in told] == []
