"""Rules on calls of tools, where they can't be judged, and what of a call is a command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.errors import HarnessError
from keystone_action.evidence.trace import GATEWAY, ToolCall, Trace
from keystone_action.evidence.trace_readers.builder import tool_kind
from keystone_action.runner.cell import forbidden_rules as calls
from keystone_action.runner.cell.forbidden_rules import command_texts, judge_calls
from keystone_action.spec.models.policies import Forbidden


def trace(arguments: Any, name: str = "Bash", kind: Any = "execute") -> Trace:
    return Trace(source=GATEWAY, tool_calls=(ToolCall("1", name, name, kind, arguments),))


def test_a_pattern_that_hits_its_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SECONDS", 0.2)
    rules, seen = Forbidden(commands=["(a|aa)+$"]), trace({"command": "a" * 60 + "!"})
    with pytest.raises(HarnessError, match="hit the time limit"):
        judge_calls(rules, seen, has_gateway=True)


def test_a_command_that_could_not_be_read_is_an_error_and_that_of_a_harmless_tool_is_none() -> None:
    rules = Forbidden(commands=["rm"])
    with pytest.raises(HarnessError, match="what Bash was asked to run could not be read"):
        judge_calls(rules, trace(None), has_gateway=True, harmless={"Read"})
    with pytest.raises(HarnessError, match="what Read was asked to run could not be read"):
        judge_calls(rules, trace(None, "Read", "read"), has_gateway=True)
    (rule,) = judge_calls(rules, trace(None, "Read", "read"), has_gateway=True, harmless={"Read"})
    assert not rule.violated


@pytest.mark.parametrize("place", [0, 1])
def test_a_call_that_could_not_be_read_hides_no_other_that_breaks_a_rule(place: int) -> None:
    (unread,), (forbidden,) = trace(None).tool_calls or (), trace({"command": "rm x"}).tool_calls or ()
    both = [unread]
    both.insert(place, forbidden)
    seen = Trace(source=GATEWAY, tool_calls=tuple(both))
    (rule,) = judge_calls(Forbidden(commands=["rm"]), seen, has_gateway=True)
    assert rule.violated
    tools, commands = judge_calls(Forbidden(tools=["Bash"], commands=["git push"]), seen, has_gateway=True)
    assert (tools.violated, commands.violated) == (True, False)
    with pytest.raises(HarnessError, match="could not be read"):
        judge_calls(Forbidden(tools=["Read"], commands=["git push"]), seen, has_gateway=True)


def test_calls_that_nobody_saw_are_an_error_unless_one_that_was_seen_breaks_the_rule() -> None:
    seen = replace(trace({"command": "rm x"}), uncertain="its transcript tells of 1 call that did not pass the gateway")
    with pytest.raises(HarnessError, match=r"forbidden\.commands: not certain: its transcript tells of 1 call"):
        judge_calls(Forbidden(commands=["git push"]), seen, has_gateway=True)
    (rule,) = judge_calls(Forbidden(commands=["rm"]), seen, has_gateway=True)
    assert rule.violated


WRITES = {"file_path": "clean.md", "content": "`rm -rf build` removes it"}
"""What a tool that writes files is asked; an agent's own tool of that name can run it."""


@pytest.mark.parametrize(
    ("name", "harmless", "broken"),
    [("Write", None, True), ("Write", {"Write"}, False), ("mcp__files__Write", {"Write"}, True)],
    ids=["any agent", "known agent", "server of a known agent"],
)
def test_a_name_tells_what_a_tool_does_only_of_an_agent_that_is_known(
    name: str, harmless: set[str] | None, broken: bool
) -> None:
    seen = trace(WRITES, name, tool_kind(name))
    (rule,) = judge_calls(Forbidden(commands=["rm -rf"]), seen, has_gateway=True, harmless=harmless)
    assert rule.violated is broken
    assert ("Write (write by its name)" in rule.details) is (broken and name == "Write")


@pytest.mark.parametrize(
    ("name", "arguments", "harmless", "broken"),
    [
        ("read_file", {"path": "rm -rf x"}, None, True),
        ("read_file", {}, None, False),
        ("Bash", {"command": "ls"}, None, False),
        ("Read", {"file_path": "a"}, {"Read"}, False),
    ],
)
def test_a_tool_with_a_text_is_of_unknown_kind_where_no_name_is_known(
    name: str, arguments: Any, harmless: set[str] | None, broken: bool
) -> None:
    seen = trace(arguments, name, tool_kind(name))
    (rule,) = judge_calls(Forbidden(tools=["other"]), seen, has_gateway=True, harmless=harmless)
    assert rule.violated is broken


def test_no_shell_of_a_known_agent_is_harmless() -> None:
    shells = {"Bash", "exec_command", "write_stdin", "run_shell_command", "bash", "Agent", "task", "Skill"}
    shells |= {"agent", "skill", "monitor", "cron_create", "loop_wakeup", "send_message"}
    for name in preset_names():
        harmless = load_preset(name).harmless_tools
        assert not harmless & shells
        assert {tool_kind(one) for one in harmless} <= {"read", "write", "search", "fetch", "other"}


@pytest.mark.parametrize("seen", [None, Trace(source="claude", tool_calls=()), Trace(source=GATEWAY)])
def test_beside_a_gateway_nobody_s_word_is_taken(seen: Trace | None) -> None:
    with pytest.raises(HarnessError, match="nothing was observed"):
        judge_calls(Forbidden(tools=["x"]), seen, has_gateway=True)


def test_without_a_rule_nothing_is_judged() -> None:
    assert judge_calls(Forbidden(), None, has_gateway=True) == ()


def test_many_violations_are_counted_and_the_first_shown() -> None:
    call = ToolCall("1", "Bash", "Bash", "execute", {"command": "x" * 1000})
    (rule,) = judge_calls(
        Forbidden(tools=["execute"]), Trace(source=GATEWAY, tool_calls=(call,) * 25), has_gateway=True
    )
    lines = rule.details.splitlines()
    assert (len(lines), lines[-1]) == (11, "and 15 more")
    assert all(len(line) < 400 for line in lines)


values = st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(), values), st.text(min_size=1))
def test_no_text_hides_at_any_depth(arguments: dict[str, Any], hidden: str) -> None:
    found = set(command_texts({**arguments, "deep": [{"er": [hidden, arguments]}], "command": "ls"}, is_known=True))
    assert hidden in found
    assert "ls" in found


def test_the_words_for_people_beside_a_command_are_none() -> None:
    assert list(command_texts({"command": "ls", "description": "rm"}, is_known=True)) == ["ls"]
    assert list(command_texts({"description": "rm"}, is_known=True)) == ["rm"]
    assert list(command_texts({"command": "ls", "description": "rm"}, is_known=False)) == ["ls", "rm", "ls rm"]


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ({"program": "rm", "args": ["-rf", "x"]}, "rm -rf x"),
        ({"a": "rm", "b": {"c": "-rf", "d": "x"}}, "rm -rf x"),
        ({"rm -rf x": True}, "rm -rf x"),
    ],
)
def test_a_command_in_parts_is_one(arguments: dict[str, Any], whole: str) -> None:
    assert whole in command_texts(arguments, is_known=False)


def test_names_of_arguments_are_none() -> None:
    assert list(command_texts({"format": "x", "file_path": 3, "$ref": None}, is_known=False)) == ["x"]
