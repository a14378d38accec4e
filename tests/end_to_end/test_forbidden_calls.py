"""`forbidden.tools` and `forbidden.commands`: what the agent asked tools to do, as the gateway saw it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called
from support.model_agents import behind, calls, run, says, spec_of
from support.odd_calls import chat, end_of_chat, piece
from support.scripted_provider import stream
from support.side_by_side import Spec, run_side_by_side
from support.started_as import keystone_in

SAYS_DONE = """
status, first = ask([user("do it")], tools=("Bash", "Read"))
results = [one for call in first["content"] for one in result(call["id"], "ok")["content"]]
ask([user("do it"), {"role": "assistant", "content": first["content"]}, user(results)])
print("done")
"""
READ = ("toolu_0", "Read", {"path": "a.txt"})


def bash(command: Any, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return ("toolu_1", "Bash", {"command": command, **more})


CALLS: list[tuple[dict[str, Any], Any, str | None]] = [
    ({"tools": ["Bash"]}, bash("ls"), "tools"),
    ({"tools": ["execute"]}, bash("ls"), "tools"),
    ({"tools": ["fetch", "write"]}, bash("ls"), None),
    ({"tools": []}, bash("ls"), None),
    ({"commands": [r"\brm\s+-rf\b"]}, bash("cd /tmp && rm  -rf x"), "commands"),
    ({"commands": [r"\brm\s+-rf\b"]}, bash(["bash", "-lc", "rm -rf x"]), "commands"),
    ({"commands": ["^git push"]}, bash(["git", "push", "origin"]), "commands"),
    ({"commands": ["rm -rf"]}, bash("ls", description="rm -rf x"), "commands"),
    ({"commands": ["rm -rf"]}, bash("ls", description="lists it"), None),
    ({"commands": ["rm -rf"]}, ("toolu_1", "mcp__shell__go", {"description": "rm -rf x"}), "commands"),
    ({"commands": ["rm -rf"]}, ("toolu_1", "mcp__shell__go", {"deep": [{"in": ["it", "rm -rf x"]}]}), "commands"),
    ({"commands": ["a.sh"]}, bash("ls"), None),
]
"""Rules, the second of two calls that a model asks for, and the rule that it breaks."""


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Called]:
    """The runs of all these by one call, each with a provider of its own."""
    specs = {}
    with contextlib.ExitStack() as providers:
        for number, (rules, asked, _) in enumerate(CALLS):
            scripted, _ = providers.enter_context(behind(calls(READ, asked), says("done")))
            gateway = {"providers": [{"name": "own", "api": "anthropic", "base_url": scripted.url}]}
            specs[str(number)] = Spec(spec_of(SAYS_DONE, forbidden=rules, gateway=gateway))
        return run_side_by_side(tmp_path_factory, "forbidden_calls", specs)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_call_that_a_rule_forbids_fails_the_cell(run_of: Callable[[str], Called], number: int) -> None:
    _, asked, broken = CALLS[number]
    called = run_of(str(number))
    (cell,) = called.cells
    (rule,) = cell["forbidden"]
    assert rule["violated"] == (broken is not None)
    if broken is None:
        assert (called.code, cell["verdict"], rule["details"]) == (0, "pass", "")
        return
    assert (called.code, cell["verdict"], cell["composite"], rule["rule"]) == (1, "fail", 0.0, broken)
    assert rule["details"].startswith(f"call 2 of 2: {asked[1]} (")
    assert re.search(r" at 20\d\d-[\d:T.-]+Z, seen by the gateway$", rule["details"])
    assert cell["invariants"][0]["status"] == "pass"
    assert f"forbidden.{broken} was violated: call 2 of 2" in cell["reason"]


def test_a_command_at_the_end_of_a_long_text_is_seen(tmp_path: Path) -> None:
    with behind(calls(bash(" " * (200 << 10) + "rm -rf x")), says("done")) as (_, environ):
        called = run(tmp_path, spec_of(SAYS_DONE, forbidden={"commands": [r"rm\s+-rf"]}), environ)
    assert called.cells[0]["forbidden"][0]["violated"]


def test_where_no_model_answered_while_egress_was_open_nothing_is_known(tmp_path: Path) -> None:
    with behind(says("done")) as (_, environ):
        called = run(tmp_path, spec_of('print("done")', forbidden={"tools": ["Bash"]}), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "forbidden.tools: nothing was observed" in cell["error"]
    assert cell["usage"]["cost_usd"] is None


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take its own namespaces away")
@pytest.mark.parametrize("namespaces", [True, False], ids=["namespace", "ports"])
def test_it_is_said_where_the_network_is_not_closed_by_its_namespace(tmp_path: Path, namespaces: bool) -> None:
    """By ports alone, a port of the cell's may be another's by the time it is asked: the gateway isn't the only way."""
    tmp_path.chmod(0o755)
    with behind(calls(bash("ls")), says("done")) as (scripted, _):
        gateway = {"providers": [{"name": "own", "api": "anthropic", "base_url": scripted.url}]}
        closed = {"egress": {"default": "deny"}}
        spec = spec_of(SAYS_DONE, forbidden={"commands": ["rm"]}, gateway=gateway, network=closed)
        called = keystone_in(None, tmp_path, json.dumps(spec), namespaces=namespaces)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (0, "pass"), called.out + called.err
    assert called.document["sandbox"]["egress"] == ("namespace" if namespaces else "ports")
    note = "forbidden.tools and forbidden.commands hold as far as the gateway saw: network.egress is denied by ports"
    told = [notice for notice in cell["notices"] if "as far as the gateway saw" in notice]
    assert told == ([] if namespaces else [note])


def test_a_rule_switches_the_gateway_on(tmp_path: Path) -> None:
    spec = spec_of(SAYS_DONE, forbidden={"commands": ["rm"]})
    del spec["gateway"]
    with behind(calls(bash("rm x")), says("done")) as (_, environ):
        called = run(tmp_path, spec, environ)
    assert called.cells[0]["forbidden"][0]["violated"]


CLAUDE = """import json
call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "rm -rf x"}}
print(json.dumps({"type": "assistant", "message": {"id": "m1", "role": "assistant", "content": [call]}}))
print(json.dumps({"type": "result", "subtype": "success", "result": "done"}))
"""


@pytest.mark.parametrize(
    ("script", "details"),
    [(CLAUDE, "by the agent's own word"), ("", "the trace on stdout is empty")],
    ids=["told", "untold"],
)
def test_without_the_gateway_a_declared_trace_is_read_and_whose_word_it_is_said(
    tmp_path: Path, script: str, details: str
) -> None:
    agent = {"trace": {"format": "claude", "stdout": True}}
    spec = spec_of("", forbidden={"commands": ["rm -rf"]}, gateway="off")
    spec["agent"] = {"type": "command", "command": ["python3", "-c", script], **agent}
    called = run(tmp_path, spec, {})
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["composite"]) == (1, "fail", 0.0)
    assert details in cell["forbidden"][0]["details"]


def test_a_journal_in_which_the_rule_was_not_judged_earns_nothing(tmp_path: Path) -> None:
    with behind(calls(bash("rm -rf x")), says("done")) as (_, environ):
        called = run(tmp_path, spec_of(SAYS_DONE, forbidden={"commands": ["rm"]}), environ)
        journal = called.output / "journal.jsonl"
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        for line in lines:
            if "cell" in line:
                line["cell"] |= {"verdict": "pass", "composite": 1.0, "reason": "", "forbidden": []}
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (called.output / "results.json").unlink()
        again = run(tmp_path, spec_of(SAYS_DONE, forbidden={"commands": ["rm"]}), environ, "--resume", "out")
    assert again.code != 0


ASKS_IN_CHAT = """
body = {"model": "m", "messages": [user("do it")], "stream": True}
for _ in range(2):
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60).read()
    except urllib.error.HTTPError as refused:
        refused.read()
print("done")
"""
LS, PATH = '{"command": "ls"}', '{"path": "a"}'
UNDER_ONE_INDEX = [piece(PATH, "read", index=0, id="t1"), piece(LS, "bash", index=0, id="t2")]
NAMED_TWICE = [piece(PATH[:4], "read", index=0, id="t1"), piece(PATH[4:], "read", index=0, id="t1")]
IN_PIECES = [piece("", "ba", index=0, id="t1"), piece(LS, "sh", index=0)]
LIMITS: dict[str, Any] = {
    "said": {"check": {"type": "regex", "pattern": "done"}},
    "forbids": {"check": {"type": "trace", "forbid_tools": [{"name": "bash"}]}},
    "few": {"check": {"type": "trace", "max_tool_calls": 2}},
    "spends": {"check": {"type": "budget", "max_tool_calls": 2}},
}


def asked_in_chat(folder: Path, told: list[dict[str, Any]], **fields: Any) -> Called:
    """A run whose agent asks twice and is answered by these pieces of calls."""
    provider = stream(*(chat(one) for one in told), end_of_chat())
    with behind(provider) as (scripted, _):
        gateway = {"providers": [{"name": "router", "api": "openai", "base_url": f"{scripted.url}/v1"}]}
        gateway |= fields.pop("gateway", {})
        return run(folder, spec_of(ASKS_IN_CHAT, gateway=gateway, **fields), {})


def test_parallel_calls_under_one_index_are_two_calls(tmp_path: Path) -> None:
    rules = {"tools": ["bash"], "commands": ["^ls$"]}
    called = asked_in_chat(tmp_path, UNDER_ONE_INDEX, forbidden=rules, invariants=LIMITS)
    (cell,) = called.cells
    assert called.code == 1
    assert [rule["violated"] for rule in cell["forbidden"]] == [True, True]
    assert cell["forbidden"][0]["details"].startswith('call 2 of 4: bash (execute) {"command": "ls"}')
    assert {name: check["status"] for name, check in called.checks.items()} == {
        "said": "pass", "forbids": "fail", "few": "fail", "spends": "fail"}  # fmt: skip


def test_parallel_calls_under_one_index_spend_the_budget_of_calls(tmp_path: Path) -> None:
    called = asked_in_chat(tmp_path, UNDER_ONE_INDEX, gateway={"budget": {"max_tool_calls": 2}})
    assert called.cells[0]["agent"]["stopped"] == "budget"


def test_a_name_that_is_told_in_each_piece_is_one_call(tmp_path: Path) -> None:
    called = asked_in_chat(tmp_path, NAMED_TWICE, forbidden={"tools": ["bash"], "commands": ["ls"]}, invariants=LIMITS)
    assert called.code == 0, called.out + called.err
    assert {check["status"] for check in called.checks.values()} == {"pass"}


@pytest.mark.parametrize(
    "fields",
    [
        {"forbidden": {"tools": ["write"]}},
        {"forbidden": {"commands": ["rm"]}},
        {"gateway": {"budget": {"max_tool_calls": 100}}},
        {"invariants": {"said": LIMITS["said"], "few": {"check": {"type": "trace", "max_tool_calls": 100}}}},
        {"invariants": {"said": LIMITS["said"], "few": {"check": {"type": "budget", "max_tool_calls": 100}}}},
        {"invariants": {"said": LIMITS["said"], "few": {"check": {"type": "tool_correctness", "expected": ["x"]}}}},
    ],
)
def test_calls_that_can_be_read_in_two_ways_are_an_error_under_a_rule_or_a_limit(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    called = asked_in_chat(tmp_path, IN_PIECES, **fields)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    said = [cell["error"], *(check["message"] for check in cell["invariants"])]
    assert any("calls of tools can be read in two ways" in one for one in said if one)


def test_calls_that_can_be_read_in_two_ways_break_no_rule_that_nobody_made(tmp_path: Path) -> None:
    assert asked_in_chat(tmp_path, IN_PIECES).code == 0


def test_a_rule_is_violated_when_either_reading_violates_it(tmp_path: Path) -> None:
    called = asked_in_chat(tmp_path, IN_PIECES, forbidden={"tools": ["bash"]})
    assert (called.code, called.cells[0]["forbidden"][0]["violated"]) == (1, True)
