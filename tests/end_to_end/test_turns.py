"""`task.turns` by `keystone run`: agents of every kind that run once a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called
from support.model_agents import behind, run, says, spec_of, trace_events
from support.touchstone import run_case, write_case

pytestmark = pytest.mark.sandbox
SAYS = """
echo "$KEYSTONE_TURN: $1 $(cat "$KEYSTONE_PROMPT_FILE") $KEYSTONE_PROMPT $(cat)"
echo "$KEYSTONE_TURN" >> "$HOME/turns"
echo "since $(tr -d "\\n" < "$HOME/turns")"
(sleep 60 &)
"""
AGENT = """
class Talks:
    def run(self, input, context):
        said = [(one["prompt"], one["output"]) for one in context["history"]]
        calls = [{"name": "look", "arguments": {"at": input}}]
        return {"output": f"{input}: {said}", "tool_calls": calls, "token_usage": {"input_tokens": 10}}
"""


def talk(folder: Path, agent: Mapping[str, Any], turns: list[str], **fields: Any) -> Called:
    spec = {
        "version": 1,
        "id": "talk",
        "task": {"prompt": "Begin", "turns": turns} if turns else {"prompt": "Begin"},
        "agent": agent,
        "invariants": {"there": {"check": {"type": "file_absent", "path": "nothing"}}},
        **fields,
    }
    return run(folder, spec, {})


def events(called: Called) -> list[dict[str, Any]]:
    (path,) = called.output.glob("cells/*/audit.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_command_runs_once_a_turn_with_its_text_and_its_home(tmp_path: Path) -> None:
    agent = {"type": "command", "command": ["sh", "-c", SAYS, "sh", "{{ task.prompt }}"], "stdin": "prompt"}
    check = 'test "$(cat $KEYSTONE_PROMPT_FILE)" = Begin && test -z "$KEYSTONE_TURN"'
    invariants = {
        "first": {"check": {"type": "command_exit", "command": check}},
        "apart": {
            "check": {
                "type": "regex",
                "input_from": "conversation",
                "pattern": r"(?s)turn 1, the user (\w+) ===\nBegin\n=== turn 1, the agent \1 ===\n1: Begin.*"
                r"turn 2, the user \1 ===\nGo on 0\n=== turn 2, the agent \1 ===\n2: Go on 0 ",
            }
        },
    }
    called = talk(tmp_path, agent, ["Go on {{ cell.replica }}"], audit={"processes": True}, invariants=invariants)
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert cell["agent"]["output"] == (
        "1: Begin Begin Begin Begin\nsince 1\n2: Go on 0 Go on 0 Go on 0 Go on 0\nsince 12\n"
    )
    assert "2 of its processes outlived it" in cell["agent"]["note"]
    assert cell["prompts"] == ["Begin", "Go on 0"]
    page, summary = [(called.output / name).read_text("utf-8") for name in ("report.html", "summary.md")]
    assert "Turn 2:\n\n```text\nGo on 0\n```" in summary
    assert '"asked":[["Prompt","Begin"],["Turn 2","Go on 0"]]' in page
    seen = [event for event in events(called) if event["type"] == "process"]
    assert {event["turn"] for event in seen} == {1, 2}
    assert (called.output / "cells" / cell["id"] / "agent.stdout").read_text() == cell["agent"]["output"]


def test_without_turns_nothing_speaks_of_them(tmp_path: Path) -> None:
    agent = {"type": "command", "command": "env; exit 3"}
    called = talk(tmp_path, agent, [], audit={"processes": True})
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert "KEYSTONE_TURN" not in cell["agent"]["output"]
    assert all("turn" not in event for event in events(called))
    assert "turn" not in json.dumps(cell).lower().replace("returned", "")


def test_a_turn_that_fails_is_the_last_and_what_was_done_is_graded(tmp_path: Path) -> None:
    agent = {"type": "command", "command": 'echo "$KEYSTONE_TURN"; test "$KEYSTONE_TURN" != 2'}
    called = talk(tmp_path, agent, ["two", "three"])
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert (cell["agent"]["output"], cell["agent"]["exit_code"]) == ("1\n2\n", 1)
    assert cell["agent"]["failure"] == "the conversation ended with turn 2 of 3"
    (tmp_path / "strict").mkdir()
    strict = talk(tmp_path / "strict", {**agent, "must_exit_zero": True}, ["two", "three"])
    assert (strict.code, strict.cells[0]["reason"]) == (1, "the agent exited with 1, and must_exit_zero is set")


def test_an_agent_that_answers_nothing_and_so_hears_no_further_turn_has_failed(tmp_path: Path) -> None:
    """It is never told what its checks look for."""
    agent = {"type": "command", "command": "echo garbage", "output": {"json": "stdout"}}
    called = talk(tmp_path, agent, ["do what is forbidden"])
    assert called.code == 0, called.err + called.out
    assert "The conversation ended with turn 1 of 2" in called.out + called.err
    (tmp_path / "strict").mkdir()
    strict = talk(tmp_path / "strict", {**agent, "must_exit_zero": True}, ["do what is forbidden"])
    assert strict.code == 1
    reason = strict.cells[0]["reason"]
    assert reason.startswith("the conversation ended with turn 1 of 2 (the JSON document on stdout is malformed")
    assert reason.endswith("and must_exit_zero is set")


def test_the_time_limit_is_of_each_turn(tmp_path: Path) -> None:
    agent = {"type": "command", "command": 'test "$KEYSTONE_TURN" = 1 || sleep 60', "timeout": 3}
    called = talk(tmp_path, agent, ["two", "three"])
    (cell,) = called.cells
    assert cell["agent"]["timed_out"] is True
    assert cell["agent"]["failure"] == "the conversation ended with turn 2 of 3"


def test_the_limit_of_the_cell_holds_all_turns_and_its_error_says_which_one_it_met(tmp_path: Path) -> None:
    agent = {"type": "command", "command": 'echo "$KEYSTONE_TURN"; test "$KEYSTONE_TURN" = 1 || sleep 60'}
    called = talk(tmp_path, agent, ["two", "three"], resources={"timeout": 8})
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error"), called.out
    assert cell["error"] == "the cell took longer than resources.timeout (8 s); it was in: agent, turn 2"
    assert cell["prompts"] == ["Begin", "two", "three"]


def test_an_agent_that_takes_its_own_program_away_has_failed(tmp_path: Path) -> None:
    setup = {"files": [{"path": "agent.sh", "content": "#!/bin/sh\necho hello\nrm agent.sh\n", "mode": "0755"}]}
    called = talk(tmp_path, {"type": "cli", "binary": "./agent.sh"}, ["two"], setup=setup)
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert (cell["agent"]["exit_code"], cell["agent"]["output"]) == (127, "hello\n")
    assert "in turn 2: the agent's program ./agent.sh is not in this sandbox" in cell["agent"]["note"]


def test_a_python_agent_gets_the_history_and_its_calls_have_their_turn(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "talks.py").write_text(AGENT)
    agent = {"type": "python", "entrypoint": "talks:Talks", "dir": "code"}
    invariants = {"called": {"check": {"type": "trace", "require_tools": [{"name": "look"}], "max_tool_calls": 2}}}
    called = talk(tmp_path, agent, ["Two"], gateway="off", invariants=invariants)
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert cell["agent"]["output"] == "Begin: []\nTwo: [('Begin', 'Begin: []')]"
    assert cell["usage"]["input_tokens"] == 20
    calls = [event for event in trace_events(called) if event["type"] == "tool_call"]
    assert [(event["turn"], event["payload"]["input"]) for event in calls] == [
        (1, {"at": "Begin"}), (2, {"at": "Two"})
    ]  # fmt: skip


def test_requests_have_their_turn_and_the_budget_is_of_the_cell(tmp_path: Path) -> None:
    script = "print(ask([user(os.environ['KEYSTONE_PROMPT'])]))"
    task = {"prompt": "one", "turns": ["two", "three", "four"]}
    invariants = {"said": {"check": {"type": "regex", "pattern": "done"}}}
    with behind(says("done", tokens=(100, 10))) as (_, environ):
        spec = spec_of(script, task=task, gateway={"budget": {"max_requests": 2}}, invariants=invariants)
        called = run(tmp_path, spec, environ)
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    asked = [event["turn"] for event in events(called) if event["type"] == "model_request"]
    assert asked == [1, 2]
    assert [event["turn"] for event in trace_events(called) if event["type"] == "message"] == [1, 2]
    assert (cell["agent"]["stopped"], cell["usage"]["input_tokens"]) == ("budget", 200)
    assert cell["agent"]["failure"].startswith("the conversation ended with turn ")


def test_a_case_of_touchstone_with_turns(tmp_path: Path) -> None:
    graders = '  - {type: command, cmd: \'test "$(cat said)" = "do it {{ x }},and {{ then }},"\'}\n'
    script = "Path('said').open('a').write(sys.argv[2] + ',')"
    write_case(tmp_path, graders, script, task={"prompt": "do it {{ x }}", "turns": ["and {{ then }}"]})
    path = tmp_path / "harnesses.yaml"
    path.write_text(path.read_text().replace('"{model}"', '"{model}", "{prompt}"'))
    called = run_case(tmp_path, "--param", "model=good")
    assert called.code == 0, called.out + called.err
