"""Rules on calls of tools, where they can't be judged, and what of a call is a command."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import HarnessError
from keystone_action.evidence.trace import GATEWAY, ToolCall, Trace
from keystone_action.runner.cell.forbidden import calls
from keystone_action.runner.cell.forbidden.calls import command_texts, judge_calls
from keystone_action.spec.models.policies import Forbidden


def trace(arguments: Any, name: str = "Bash", kind: Any = "execute") -> Trace:
    return Trace(source=GATEWAY, tool_calls=(ToolCall("1", name, name, kind, arguments),))


def test_a_pattern_that_hits_its_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SECONDS", 0.2)
    rules, seen = Forbidden(commands=["(a|aa)+$"]), trace({"command": "a" * 60 + "!"})
    with pytest.raises(HarnessError, match="hit the time limit"):
        judge_calls(rules, seen, has_gateway=True)


def test_a_command_that_could_not_be_read_is_an_error_and_that_of_another_kind_is_none() -> None:
    rules = Forbidden(commands=["rm"])
    with pytest.raises(HarnessError, match="what Bash was asked to run could not be read"):
        judge_calls(rules, trace(None), has_gateway=True)
    (rule,) = judge_calls(rules, trace(None, "Read", "read"), has_gateway=True)
    assert not rule.violated


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
    found = set(command_texts({**arguments, "deep": [{"er": [hidden, arguments]}], "command": "ls"}))
    assert hidden in found
    assert "ls" in found


def test_the_words_for_people_beside_a_command_are_none() -> None:
    assert list(command_texts({"command": "ls", "description": "rm"})) == ["ls"]
    assert list(command_texts({"description": "rm"})) == ["rm"]
