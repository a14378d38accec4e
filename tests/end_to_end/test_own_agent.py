"""Keystone's own agent in whole runs: `agent: {type: anthropic}` and `openai`, in front of a model that follows a
script, in both sandboxes, with a key and without."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, Called, keystone
from support.images import BASE
from support.model_agents import REAL_KEY, trace_events
from support.model_server import KEY, ModelServer, Received, Reply
from support.page_examples import sections
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import Asked, Says, document, provider
from support.side_by_side import Spec, run_side_by_side

PRICES = "item,price\nbread,3.20\ncoffee,8.45\napples,4.10\ncheese,26.75\n"
ADDS_UP = "awk -F, 'NR > 1 {sum += $2} END {printf \"%.2f\\n\", sum}' prices.csv > total.txt"
DONE = Turn(text="The total is in total.txt.")
WORKS = (
    Turn(text="I look.", calls=[("read", {"path": "prices.csv"}), ("bash", {"command": "pwd; ls -a"})]),
    Turn(calls=[("write", {"path": "total.txt", "content": "41.00\n"})]),
    Turn(calls=[("edit", {"path": "total.txt", "old_text": "41.00", "new_text": "42.50"})]),
    DONE,
)
TOTAL = {"check": {"type": "file_content", "path": "total.txt", "pattern": r"^42\.50?\s*$"}}
SAID = {"check": {"type": "exact", "expected": "The total is in total.txt."}}


def runs(command: str) -> Turn:
    return Turn(calls=[("bash", {"command": command})])


def spec(agent: Mapping[str, Any], invariants: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "id": "loop",
        "task": {"prompt": "Add up the prices in prices.csv.", "system": "You are careful."},
        "workspace": "example",
        "agent": agent,
        "invariants": invariants or {"total": TOTAL},
        **fields,
    }


async def _never(_number: int) -> None:
    await asyncio.sleep(120)


def error(status: int, message: str, kind: str = "api_error") -> Says:
    return document({"type": "error", "error": {"type": kind, "message": message}}, status)


BUSY = replace(error(429, "slow down", "rate_limit_error"), headers=[("retry-after", "0.1")])


TOO_BUSY = [BUSY] * 5
"""The first try and those after it."""


def _later(*answers: Callable[[Asked], Says] | Says) -> Callable[[Asked], Says]:
    """One after the other, the last one again and again."""
    left = list(answers)

    def answer(asked: Asked) -> Says:
        one = left.pop(0) if len(left) > 1 else left[0]
        return one if isinstance(one, Says) else one(asked)

    return answer


def scripted(*turns: Turn) -> Callable[[Asked], Says]:
    return ScriptedModel(turns, offers_tools=False).answer


def anthropic(model: str, **fields: Any) -> dict[str, Any]:
    return {"type": "anthropic", "model": model, "timeout": "60s", **fields}


CASES: Mapping[str, tuple[dict[str, Any], Callable[[Asked], Says] | Says]] = {
    "anthropic": (spec(anthropic("anthropic"), {"total": TOTAL, "said": SAID}), scripted(*WORKS)),
    "openai": (spec({"type": "openai", "model": "openai"}, {"total": TOTAL, "said": SAID}), scripted(*WORKS)),
    "paragon": (spec({"type": "paragon", "model": "paragon"}), scripted(*WORKS)),
    "file": (
        spec(
            anthropic("file", output={"file": "total.txt"}),
            {"said": {"check": {"type": "regex", "pattern": "^42.50$"}}},
        ),
        scripted(runs(ADDS_UP), DONE),
    ),
    "endless": (spec(anthropic("endless", max_turns=3)), scripted(runs(ADDS_UP))),
    "endless-zero": (spec(anthropic("endless-zero", max_turns=3, must_exit_zero=True)), scripted(runs(ADDS_UP))),
    "refuses": (spec(anthropic("refuses")), scripted(runs(ADDS_UP), Turn())),
    "too-long": (
        spec(anthropic("too-long")),
        _later(scripted(runs(ADDS_UP)), error(400, "prompt is too long: 210000 tokens > 200000 maximum")),
    ),
    "no-model": (spec(anthropic("no-model")), lambda _: error(404, "model: no-model", "not_found_error")),
    "bad-request": (spec({"type": "openai", "model": "bad-request"}), lambda _: error(400, "tools are not known here")),
    "no-key": (spec(anthropic("no-key")), lambda _: error(401, "invalid x-api-key", "authentication_error")),
    "page": (
        spec(anthropic("page")),
        lambda _: Says(pieces=[b"<html>log in</html>"], headers=[("content-type", "text/html")]),
    ),
    "stalls": (spec(anthropic("stalls", timeout="3s")), lambda _: Says(before=_never)),
    "stalls-later": (
        spec(anthropic("stalls-later", timeout="20s")),
        _later(scripted(runs(ADDS_UP)), Says(before=_never)),
    ),
    "overloaded": (
        spec(anthropic("overloaded")),
        _later(scripted(runs("true")), error(529, "busy", "overloaded_error")),
    ),
    "busy": (spec(anthropic("busy")), _later(BUSY, BUSY, scripted(*WORKS))),
    "busy-openai": (spec({"type": "openai", "model": "busy-openai"}), _later(BUSY, BUSY, scripted(*WORKS))),
    "too-busy": (spec(anthropic("too-busy")), BUSY),
    "busy-again": (spec(anthropic("busy-again"), scoring={"retry_errors": 3}), _later(*TOO_BUSY, scripted(*WORKS))),
    "always-busy": (
        spec({"type": "openai", "model": "always-busy"}, scoring={"retry_errors": 3}),
        _later(scripted(runs("true")), BUSY),
    ),
    "cut": (
        spec(anthropic("cut")),
        _later(scripted(runs(ADDS_UP)), document({"type": "message", "role": "assistant", "stop_reason": "max_tokens",
                                                  "content": [{"type": "text", "text": "The total is"}]})),
    ),
    "budget": (spec(anthropic("budget"), gateway={"budget": {"max_requests": 2}}), scripted(runs(ADDS_UP))),
    "calls": (spec(anthropic("calls"), gateway={"budget": {"max_tool_calls": 2}}), scripted(runs(ADDS_UP))),
    "shut-out": (
        spec(
            anthropic("{{ params.model }}"),
            gateway={"models": ["claude-*"]},
            parallelism={"matrix": {"model": ["shut-out"]}},
        ),
        scripted(*WORKS),
    ),
    "forbidden": (
        spec(anthropic("forbidden"), forbidden={"commands": ["curl"], "tools": ["edit"]}),
        scripted(runs("curl --version > /dev/null"), runs(ADDS_UP), DONE),
    ),
    "allowed": (
        spec(anthropic("allowed"), forbidden={"commands": ["curl"], "tools": ["WebSearch"]}),
        scripted(
            Turn(calls=[("write", {"path": "total.txt", "content": "42.50"})]),
            Turn(calls=[("read", {"path": "curl"})]),
            DONE,
        ),
    ),
    "disk": (
        spec(anthropic("disk"), resources={"disk": "20Mi"}),
        scripted(runs(ADDS_UP), runs("head -c 60000000 /dev/zero > zeros; sleep 30"), DONE),
    ),
    "seen": (
        spec(anthropic("seen"), audit={"processes": True}),
        scripted(runs(ADDS_UP), runs("sleep 0.3; true"), DONE),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Called]:
    """All of them in one call, each in front of the model of its name."""

    def answer(asked: Asked) -> Says:
        found = CASES[asked.document["model"]][1]
        return found if isinstance(found, Says) else found(asked)

    specs = {name: Spec(one, {"example/prices.csv": PRICES}) for name, (one, _) in CASES.items()}
    with provider(answer) as behind:
        environ = {
            "ANTHROPIC_API_KEY": REAL_KEY,
            "ANTHROPIC_BASE_URL": behind.url,
            "OPENAI_API_KEY": REAL_KEY,
            "OPENAI_BASE_URL": f"{behind.url}/v1",
        }
        return run_side_by_side(tmp_path_factory, "tool-loop", specs, environ=environ)


def cell_of(called: Called) -> dict[str, Any]:
    (cell,) = called.cells
    return dict(cell)


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_it_does_its_task_and_the_gateway_sees_all(ran: Callable[[str], Called], name: str) -> None:
    called = ran(name)
    cell = cell_of(called)
    assert (cell["verdict"], cell["agent"]["exit_code"], cell["agent"]["note"]) == ("pass", 0, "")
    assert (cell["usage"]["requests"], cell["usage"]["tool_calls"], cell["trace"]["source"]) == (4, 4, "gateway")
    events = [(event["type"], event["payload"]) for event in trace_events(called)]
    assert [one["raw_name"] for kind, one in events if kind == "tool_call"] == ["read", "bash", "write", "edit"]
    (log,) = called.output.glob("cells/*/agent.stdout")
    assert log.read_text().startswith('I look.\n> read {"path": "prices.csv"}\nitem,price\nbread,3.20\n')
    written = b"".join(path.read_bytes() for path in called.output.rglob("*") if path.is_file())
    assert REAL_KEY.encode() not in written


def test_paragon_is_anthropic(ran: Callable[[str], Called]) -> None:
    assert cell_of(ran("paragon"))["verdict"] == "pass"


def test_its_output_may_be_a_file(ran: Callable[[str], Called]) -> None:
    assert (cell_of(ran("file"))["verdict"], cell_of(ran("file"))["agent"]["output"]) == ("pass", "42.50\n")


GRADED = {
    "endless": ("pass", "max_turns", "was stopped at a limit (max_turns: the model answered 3 times, 3 allowed)"),
    "endless-zero": ("fail", "max_turns", "was stopped at a limit (max_turns: the model answered 3 times, 3 allowed)"),
    "too-long": ("pass", None, "exited with 1; the conversation is longer than the model can read"),
    "cut": ("pass", None, "exited with 1; the model's last answer was cut at its limit of tokens"),
    "stalls-later": ("pass", None, "timed out"),
    "budget": ("pass", "budget", "was stopped at 2 of 2 requests"),
    "calls": ("pass", "budget", "was stopped at 2 of 2 tool calls"),
    "disk": ("pass", "disk", "was stopped at a limit (disk: "),
}
"""The work is done by then, so the checks pass: verdict, what stopped the agent, and the beginning of its note."""


@pytest.mark.parametrize("name", GRADED)
def test_an_agent_that_failed_is_graded(ran: Callable[[str], Called], name: str) -> None:
    verdict, stopped, note = GRADED[name]
    cell = cell_of(ran(name))
    assert (cell["verdict"], cell["agent"]["stopped"]) == (verdict, stopped), cell
    assert cell["agent"]["note"].startswith(note)
    assert cell["error"] is None


ERRORS = {
    "no-model": r"no model answered: the model's provider refused the request \(404\): model: no-model",
    "bad-request": r"no model answered: the model's provider refused the request \(400\): tools are not known here",
    "no-key": r"anthropic refused the key in ANTHROPIC_API_KEY \(401\)",
    "page": r"the provider|HTML|page",
    "stalls": r"no model answered: the agent's time limit came first",
    "overloaded": r"the provider failed: 529",
    "too-busy": r"the provider failed: 429 after 5 tries",
    "always-busy": r"the provider failed: 429 after 5 tries",
    "shut-out": r"no model answered: .*the model shut-out is not let through; gateway.models has claude-\*",
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_model_that_never_answered_is_an_error(ran: Callable[[str], Called], name: str) -> None:
    cell = cell_of(ran(name))
    assert (cell["verdict"], cell["composite"]) == ("error", None), cell
    assert re.search(ERRORS[name], cell["error"]), cell["error"]


@pytest.mark.parametrize(("name", "tries"), [("busy", 1), ("busy-openai", 1), ("busy-again", 2)])
def test_a_model_that_has_it_wait_is_asked_again(ran: Callable[[str], Called], name: str, tries: int) -> None:
    cell = cell_of(ran(name))
    assert (cell["verdict"], cell["agent"]["exit_code"], cell["attempts"]) == ("pass", 0, tries), cell


def test_a_cell_whose_agent_had_begun_is_run_again_once(ran: Callable[[str], Called]) -> None:
    """`retry_errors` asks for more; an agent can bring about itself that it has to wait."""
    assert cell_of(ran("always-busy"))["attempts"] == 2


def test_its_commands_are_held_to_the_rules_and_its_file_tools_run_none(ran: Callable[[str], Called]) -> None:
    broken = {one["rule"]: one["violated"] for one in cell_of(ran("forbidden"))["forbidden"]}
    assert (cell_of(ran("forbidden"))["verdict"], broken) == ("fail", {"tools": False, "commands": True})
    kept = {one["rule"]: one["violated"] for one in cell_of(ran("allowed"))["forbidden"]}
    assert (cell_of(ran("allowed"))["verdict"], kept) == ("pass", {"tools": False, "commands": False})


def test_the_processes_of_its_tools_are_seen(ran: Callable[[str], Called]) -> None:
    (log,) = ran("seen").output.glob("cells/*/audit.jsonl")
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert any("sleep" in str(one["details"]) for one in lines if one["type"] == "process")


def record_and_replay(folder: Path, loop: Mapping[str, Any], turns: tuple[Turn, ...], times: int) -> None:
    """It is recorded once, and replayed as often without a key, when nobody answers."""
    (folder / "example").mkdir()
    (folder / "example" / "prices.csv").write_text(PRICES)
    (folder / "keystone.yaml").write_text(json.dumps(loop))
    with provider(scripted(*turns)) as behind:
        environ = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": behind.url}
        environ |= {"OPENAI_API_KEY": REAL_KEY, "OPENAI_BASE_URL": f"{behind.url}/v1"}
        recorded = keystone("run", "--gateway", "record", "--output", "out", directory=folder, environ=environ)
    assert recorded.code == 0, recorded.out + recorded.err
    nobody = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "OPENAI_BASE_URL": "http://127.0.0.1:1"}
    for number in range(times):
        words = ["run", "--gateway", "replay", "--output", f"out-{number}"]
        replayed = keystone(*words, directory=folder, environ=nobody)
        assert replayed.code == 0, replayed.out + replayed.err
        document = json.loads((folder / f"out-{number}" / "results.json").read_text())
        (cell,) = document["specs"][0]["cells"]
        assert (cell["trace"]["replayed"], cell["usage"]["spent_usd"]) == ("exact", 0)
        assert cell["agent"]["output"] == recorded.cells[0]["agent"]["output"]


@pytest.mark.parametrize("api", ["anthropic", "openai"])
def test_it_replays_without_a_key(tmp_path: Path, api: str) -> None:
    record_and_replay(tmp_path, spec({"type": api, "model": "m-1"}, {"total": TOTAL, "said": SAID}), WORKS, 2)


@pytest.mark.parametrize("api", ["anthropic", "openai"])
def test_it_goes_on_with_its_conversation_turn_by_turn_and_replays(tmp_path: Path, api: str) -> None:
    turns = {"prompt": "Add up the prices in prices.csv.", "turns": ["Where is it?", "Thank you."]}
    said = {"check": {"type": "exact", "expected": "The total is in total.txt.\nkept\nYou are welcome."}}
    loop = spec({"type": api, "model": "m-1"}, {"total": TOTAL, "said": said}, task=turns)
    script = (runs(f"{ADDS_UP}; echo kept > ~/note"), DONE, runs("cat ~/note"), Turn(text="kept"))
    record_and_replay(tmp_path, loop, (*script, Turn(text="You are welcome.")), 1)


@pytest.mark.docker
@pytest.mark.parametrize("egress", ["allow", "deny"])
def test_in_a_container_its_tools_run_there_turn_by_turn_and_it_replays(tmp_path: Path, egress: str) -> None:
    where = runs("test -f /.dockerenv && echo inside > place; pwd; echo kept > ~/note; sleep 99 & true")
    task = {"prompt": "Add up the prices in prices.csv.", "turns": ["What did you note?"]}
    fields = {"base": BASE, "network": {"egress": {"default": egress}}, "task": task}
    checks = {
        "total": TOTAL,
        "inside": {"check": {"type": "file_content", "path": "place", "contains": "inside"}},
        "said": {"check": {"type": "exact", "expected": "The total is in total.txt.\nkept"}},
    }
    script = (where, *WORKS, runs("cat ~/note"), Turn(text="kept"))
    record_and_replay(tmp_path, spec(anthropic("m-1"), checks, **fields), script, 1)


def _messages(received: Received) -> Reply:
    """The scripted model server as a newcomer has it, who was told nothing but its address."""
    asked = sum(one["role"] == "assistant" for one in received.body["messages"])
    if asked:
        return Reply("The total is in total.txt.")
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": ADDS_UP}}
    message = {"type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use"}
    usage = {"input_tokens": 100, "output_tokens": 20}
    return Reply(body=json.dumps({**message, "model": received.body["model"], "usage": usage}))


def test_a_newcomer_has_a_green_run_and_a_red_one_with_nothing_installed(tmp_path: Path) -> None:
    made = keystone("init", "--agent", "anthropic", directory=tmp_path)
    assert made.code == 0, made.err
    (command,) = re.findall(r"^  keystone (.*)$", made.out, re.MULTILINE)
    (variable,) = re.findall(r"^  export (\w+)=\.\.\.", made.out, re.MULTILINE)
    without = keystone(*command.split(), "--output", "without", directory=tmp_path)
    assert without.code == 3
    assert f"Set {variable}" in without.err
    with ModelServer(_messages) as server:
        environ = {variable: KEY, "ANTHROPIC_BASE_URL": server.url}
        green = keystone(*command.split(), "--output", "green", directory=tmp_path, environ=environ)
        assert green.code == 0, green.out + green.err
        ((old, new),) = re.findall(r"write (\w+) for (\w+)", made.out)
        written = tmp_path / "keystone.yaml"
        written.write_text(written.read_text().replace(new, old))
        red = keystone(*command.split(), "--output", "red", directory=tmp_path, environ=environ)
    assert red.code == 1
    assert "total_is_right" in red.err


PAGE = dict(sections((ROOT / "docs" / "agents.md").read_text("utf-8"), "## "))


def blocks(text: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", blocks(PAGE["Keystone's own"]))
def test_the_blocks_of_its_page_run(tmp_path: Path, block: str) -> None:
    (task,) = blocks(PAGE["The task of the examples"])
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "prices.csv").write_text(PRICES)
    (tmp_path / "keystone.yaml").write_text(task + block)
    with provider(scripted(runs(ADDS_UP), DONE)) as behind:
        environ = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": behind.url}
        environ |= {"OPENAI_API_KEY": REAL_KEY, "OPENAI_BASE_URL": f"{behind.url}/v1"}
        called = keystone("run", "--output", "out", directory=tmp_path, environ=environ)
    assert called.code == 0, called.out + called.err
