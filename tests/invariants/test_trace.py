"""Touchstone's `trace`, against 004_722b8593dcd13c4e.txt and spec.md 5.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import call, evidence, traced, unreadable_call

from keystone_action.evidence.trace import Permission, Trace, Usage

HERE = Path(__file__).parent
EXAMPLE = """
type: trace
require_tools: [{kind: write}] # ≥1 tool_call of each listed Tool Kind
require_no_denied: true # no permission request ended in a deny
max_tool_calls: 30 # budgets on tool calls / tokens / cost
"""
"""004: the example under "trace", its commented line included; its `weight: 1.0` is the invariant's."""

READ = call("Read", "read", file_path="src/a.py")
WRITE = call("Write", "write", file_path="src/a.py")
TEST = call("Bash", "execute", command="pytest -q")


def trace(document: str | dict[str, Any], observed: Trace | None, workspace: Path = HERE):
    loaded = yaml.safe_load(document) if isinstance(document, str) else {"type": "trace", **document}
    return grade(loaded, workspace, evidence=evidence("ok", observed))


@pytest.mark.parametrize(
    ("observed", "score"),
    [
        (traced(READ, WRITE, permissions=(Permission("1", True),)), 1.0),
        (traced(READ, permissions=(Permission("1", True),)), 2 / 3),
        (traced(WRITE, permissions=(Permission("1", True), Permission("2", False))), 2 / 3),
        (traced(*[READ] * 31, permissions=(Permission("1", False),)), 0.0),
        (traced(WRITE, permissions=(Permission("1", None),)), 1.0),
    ],
)
def test_the_example_of_the_page_passes_and_fails(observed: Trace, score: float) -> None:
    outcome = trace(EXAMPLE, observed)
    assert outcome.score == pytest.approx(score)
    assert outcome.status == ("pass" if score == 1.0 else "fail")


def test_skipped_without_a_trace() -> None:
    """004: "Skipped if the harness produced no Trace."; released Touchstone fails the cell."""
    assert trace(EXAMPLE, None).status == "skip"


def test_a_trace_that_can_not_be_used_fails() -> None:
    outcome = trace(EXAMPLE, Trace(source="claude", problem="the trace on stdout is malformed: line 1"))
    assert (outcome.status, outcome.message) == ("fail", "the trace on stdout is malformed: line 1.")


def test_what_the_trace_does_not_tell_leaves_the_score_and_is_named() -> None:
    outcome = trace(EXAMPLE, traced(WRITE))
    assert (outcome.status, outcome.score) == ("pass", 1.0)
    assert "Not observed: require_no_denied (the trace does not tell of permissions)." in outcome.message
    assert trace({"max_cost_usd": 1, "max_tokens": 5}, traced(WRITE)).status == "skip"
    assert trace({"forbid_tools": [{"kind": "write"}], "order": [{}]}, Trace(source="otel")).status == "skip"


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({"require_tools": [{"kind": "read"}, {"kind": "fetch"}]}, 0.5),
        ({"require_tools": [{"kind": "read", "name": "Write"}]}, 0.0),
        ({"require_tools": [{"name": "Bash", "args": {"command": "pytest -q"}}]}, 1.0),
        ({"require_tools": [{}]}, 1.0),
        ({"forbid_tools": [{"kind": "fetch"}, {"name": "Bash"}]}, 0.5),
        ({"forbid_tools": [{}]}, 0.0),
        ({"max_tool_calls": 3}, 1.0),
        ({"max_tool_calls": 2}, 0.0),
        ({"max_tool_calls": {"write": 0, "execute": 1, "fetch": 0}}, 2 / 3),
        ({"max_tokens": 100, "max_cost_usd": 0.01}, 0.5),
        ({"order": [{"kind": "read"}, {"kind": "execute"}]}, 1.0),
        ({"order": [{"kind": "write"}, {"kind": "read"}]}, 0.0),
        ({"order": [{"kind": "read"}, {"kind": "read"}]}, 0.0),
        ({"order": True, "require_tools": [{"kind": "read"}, {"kind": "write"}]}, 1.0),
        ({"order": True, "require_tools": [{"kind": "execute"}, {"kind": "write"}]}, 2 / 3),
    ],
)
def test_each_matcher_kind_and_limit_is_one_assertion(fields: dict[str, Any], score: float) -> None:
    outcome = trace(fields, traced(READ, WRITE, TEST, usage=Usage(60, 40, 0.02)))
    assert outcome.score == pytest.approx(score)
    assert outcome.status == ("pass" if score == 1.0 else "fail")


@pytest.mark.parametrize(
    ("args", "status", "told"),
    [
        ({"comand": "pytest -q"}, "fail", "'comand' may be 'command' misspelt"),
        ({"COMMAND": "pytest -q"}, "fail", "'COMMAND' may be 'command' misspelt"),
        # Without that name no call fits either: the other argument differs.
        ({"comand": "pytest -q", "timeout": 3}, "pass", ""),
        # An argument that calls need not have.
        ({"run_in_background": True}, "pass", ""),
    ],
)
def test_a_forbidden_argument_that_no_call_has_is_told(args: dict[str, Any], status: str, told: str) -> None:
    outcome = trace({"forbid_tools": [{"name": "Bash", "args": args}]}, traced(READ, TEST))
    assert outcome.status == status, outcome.message
    assert told in outcome.message
    assert ("no call that fits by its name has an argument" in " ".join(outcome.notices)) == (status == "pass")


def test_a_forbidden_argument_with_another_value_or_of_no_call_is_not_told() -> None:
    for args in ({"command": "rm -rf /"}, {}):
        assert trace({"forbid_tools": [{"name": "Ls", "args": args}]}, traced(READ, TEST)).notices == ()
    assert trace({"forbid_tools": [{"name": "Bash", "args": {"command": "ls"}}]}, traced(READ, TEST)).notices == ()


def test_the_message_says_what_does_not_hold_and_what_was_seen() -> None:
    outcome = trace({"require_tools": [{"kind": "fetch"}], "forbid_tools": [{"name": "Bash"}]}, traced(READ, TEST))
    assert outcome.message == (
        "0 of 2 assertions about the trace hold.\n"
        "require_tools {kind: fetch}: does not hold; the calls were: Read, Bash.\n"
        "forbid_tools {name: Bash}: does not hold; Bash was called."
    )


def test_a_forbidden_call_is_not_hidden_by_arguments_that_nobody_can_read() -> None:
    forbidden = {"forbid_tools": [{"kind": "write", "path_glob": ".env"}]}
    outcome = trace(forbidden, traced(unreadable_call("Write", "write")))
    assert outcome.status == "fail"
    assert "could not be read" in outcome.message
    assert trace(forbidden, traced(unreadable_call("Read", "read"))).status == "pass"


def test_what_was_not_understood_of_a_trace_is_said() -> None:
    outcome = trace({"max_tool_calls": 1}, traced(READ, not_understood=("3 events of type x",)))
    assert "3 events of type x" in outcome.message


@pytest.mark.parametrize("usage", [Usage(cost_usd=-1.0), Usage(cost_usd=float("nan")), Usage(input_tokens=-1)])
def test_senseless_numbers_make_the_trace_malformed(usage: Usage) -> None:
    for fields in ({"max_cost_usd": 1}, {"max_tool_calls": 5}):
        outcome = trace(fields, traced(READ, usage=usage))
        assert (outcome.status, outcome.score) == ("fail", 0.0)
        assert "malformed" in outcome.message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"require_no_denied": False},
        {"order": False},
        {"order": True},
        {"require_tools": []},
        {"require_tools": [{"kind": "wrote"}]},
        {"require_tools": [{"path": "x"}]},
        {"require_tools": ["write"]},
        {"require_tools": {"kind": "write"}},
        {"forbid_tools": [{"args": ["x"]}]},
        {"max_tool_calls": -1},
        {"max_tool_calls": {}},
        {"max_tool_calls": {"writing": 1}},
        {"max_tool_calls": True},
        {"max_cost_usd": float("inf")},
        {"max_calls": 1},
    ],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "trace", **fields})
