"""Agents that are services of others: nobody sees what they do, and nothing is taken for granted of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE, Called, keystone
from support.http_agents import Served, reply, serving

pytestmark = pytest.mark.sandbox


def asked(directory: Path, served: Served, environ: dict[str, str] | None = None, **more: Any) -> Called:
    """A run of a spec whose agent is this server. more: fields of the spec, and those of its agent under `agent`."""
    agent = {"type": "http", "url": served.url, "body": {"said": "{{ turn }}"}, "output_path": "reply"}
    spec = {"version": 1, "id": "elsewhere", "task": {"prompt": "go"}, **more, "agent": agent | more.pop("agent", {})}
    nothing = {"there": {"check": {"type": "file_absent", "path": "x"}}}
    (directory / "keystone.yaml").write_text(json.dumps({"invariants": nothing, **spec}))
    return keystone("run", ".", "--output", "out", directory=directory, environ={**NO_ENGINE, **(environ or {})})


def test_what_no_gateway_sees_is_not_taken_for_nothing(tmp_path: Path) -> None:
    """An agent behind an external service asks its models by itself: its calls and its costs are not known."""
    checks = {
        "calls": {"check": {"type": "trace", "forbid_tools": [{"name": "evil"}], "max_tool_calls": 0}},
        "cost": {"check": {"type": "budget", "max_tokens": 1, "max_cost_usd": 0.01}},
    }
    with serving(reply('{"reply": "hi"}')) as served:
        called = asked(
            tmp_path,
            served,
            agent={"url": "{{ services.far.url }}"},
            services=[{"name": "far", "type": "external", "url": served.url}],
            network={"egress": {"default": "deny"}},
            gateway={},
            invariants=checks,
        )
    states = {name: check["status"] for name, check in called.checks.items()}
    assert states == {"calls": "skip", "cost": "skip"}, called.out + called.err


def test_calls_that_are_not_told_fail_only_what_needs_them(tmp_path: Path) -> None:
    """The output is there, and the conversation goes on; what the agent called is not known in one of its turns."""
    turns = iter(['{"reply": "one"}', '{"reply": "two", "calls": [{"name": "look"}]}'])
    with serving(lambda connection: connection.sendall(reply(next(turns)))) as served:
        called = asked(
            tmp_path,
            served,
            agent={"tool_calls_path": "calls", "must_exit_zero": True},
            task={"prompt": "go", "turns": ["on"]},
            gateway="off",
            invariants={
                "said": {"check": {"type": "exact", "expected": "one\ntwo"}},
                "calls": {"check": {"type": "trace", "require_tools": [{"name": "look"}]}},
            },
        )
    assert len(served.requests) == 2
    states = {name: check["status"] for name, check in called.checks.items()}
    assert states == {"said": "pass", "calls": "fail"}, called.out + called.err
    assert "there is nothing" in called.checks["calls"]["message"]


def test_braces_in_a_secret_are_no_expression(tmp_path: Path) -> None:
    word = "a{{ turn }}b\\\\{{{c"
    with serving(reply('{"reply": "hi"}')) as served:
        called = asked(
            tmp_path,
            served,
            environ={"WORD": word},
            secrets=["WORD"],
            agent={
                "headers": {"X-Word": "<{{ secrets.WORD }}>"},
                "body": {
                    "said": "{{ turn }} {{ secrets.WORD }}",
                    "whole": "{{ secrets.WORD }}",
                    "literal": "\\{{ x }}",
                },
            },
        )
    assert called.cells[0]["verdict"] == "pass", called.out + called.err
    assert f"\r\nX-Word: <{word}>\r\n" in served.requests[0]
    assert json.loads(served.body) == {"said": f"go {word}", "whole": word, "literal": "{{ x }}"}
