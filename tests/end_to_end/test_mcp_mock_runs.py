"""An mcp_mock through the real command: its record is evidence, in the process sandbox and in containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, run_spec
from support.images import BASE

SPEC = """version: 1
id: shop
task: {prompt: "Refund order 7."}
agent: {type: command, command: 'sh "{{ agent.dir }}/agent.sh" "{{ services.shop.command }}"', dir: agent}
services:
  - name: shop
    type: mcp_mock
    tools:
      - name: get_order
        input_schema: {type: object, properties: {id: {type: integer}}, required: [id]}
        template: '{"id": {{ arguments.id }}, "state": "paid"}'
      - {name: refund, result: done}
invariants:
  looked_first:
    check: {type: mcp_assertions, service: shop, assertions: [{field: "calls[0].tool", equals: get_order}]}
  refunded_once:
    check:
      type: mcp_assertions
      service: shop
      assertions:
        - {field: call_count, filters: {tool: refund, arguments: {order: 7}}, equals: 1}
        - {field: last_call.result, equals: done}
        - {field: "calls[0].result.state", equals: paid}
        - {field: call_count, filters: {is_error: true}, equals: 0}
"""
CALLS = """
call() {
  printf '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "%s", "arguments": %s}}\\n' "$1" "$2"
}
"""
GOOD = CALLS + """{ call get_order '{"id": 7}'; call refund '{"order": 7}'; } | "$1" """
BAD = CALLS + """{ call refund '{"order": 7}'; call get_order '{"id": "7"}'; call refnd '{}'; } | "$1" """


def run(tmp_path: Path, agent: str, spec: str = SPEC, **more: Any) -> Called:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.sh").write_text(agent)
    document = spec + "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items())
    called = run_spec(tmp_path, document, environ={"A_SECRET": "a-long-secret-0123"})
    assert not called.has_traceback
    return called


def audit_of(called: Called) -> list[dict[str, Any]]:
    (log,) = called.output.glob("cells/*/audit.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def require_refund(called: Called) -> None:
    assert called.code == 0, called.out + called.err + str(called.checks)
    told = [line["details"] for line in audit_of(called) if line["type"] == "mcp_call"]
    assert [(one["service"], one["tool"], one["is_error"]) for one in told] == [
        ("shop", "get_order", False),
        ("shop", "refund", False),
    ]
    assert json.loads(told[0]["result"]) == {"id": 7, "state": "paid"}


def test_an_agent_that_calls_as_it_should(tmp_path: Path) -> None:
    require_refund(run(tmp_path, GOOD))


@pytest.mark.docker
def test_an_agent_in_a_container_that_calls_as_it_should(tmp_path: Path, image: Any) -> None:
    image(BASE)
    require_refund(run(tmp_path, GOOD, base=BASE))


def test_an_agent_that_does_not(tmp_path: Path) -> None:
    called = run(tmp_path, BAD)
    assert called.code == 1
    assert {name: one["status"] for name, one in called.checks.items()} == {
        "looked_first": "fail",
        "refunded_once": "fail",
    }
    message = called.checks["refunded_once"]["message"]
    assert "last_call.result: expected 'done' (text), found 'Unknown tool: refnd' (text)." in message
    assert "call_count: expected 0 (integer), found 2 (integer)" in message
    errors = [line["details"]["result"] for line in audit_of(called) if line["details"]["is_error"]]
    assert errors == ["Input validation error: id: '7' is not of type 'integer'", "Unknown tool: refnd"]


@pytest.mark.docker
@pytest.mark.parametrize(("excepted", "broken"), [([], True), (["shop"], False)])
def test_a_rule_on_hosts_counts_its_calls(tmp_path: Path, image: Any, excepted: list[str], broken: bool) -> None:
    image(BASE)
    egress = {"egress": {"default": "deny"}}
    called = run(tmp_path, GOOD, base=BASE, forbidden={"http_except": excepted}, network=egress)
    (rule,) = called.cells[0]["forbidden"]
    assert rule["violated"] is broken, called.err
    assert ("call of get_order (service shop)" in rule["details"]) is broken


def test_a_secret_in_arguments_is_found(tmp_path: Path) -> None:
    agent = (
        CALLS
        + """
    { call get_order '{"id": 7}'; call refund "{\\"order\\": 7, \\"note\\": [\\"$WORD\\"]}"; } | "$1" >/dev/null
    """
    )
    spec = SPEC.replace("dir: agent}", 'dir: agent, env: {WORD: "{{ secrets.A_SECRET }}"}}')
    called = run(tmp_path, agent, spec, forbidden={"secrets_in_logs": "deny"}, secrets=["A_SECRET"])
    (rule,) = called.cells[0]["forbidden"]
    assert "A_SECRET is in the arguments of call 2 of a tool of shop" in rule["details"]
    assert "a-long-secret" not in (called.output / "results.json").read_text() + called.out + called.err


REFUSED = {
    "a service that does not record": (
        SPEC.replace("type: mcp_mock", "type: mcp_mock\n    record: false"),
        "the service 'shop' does not record its calls",
    ),
    "an http_mock": (
        SPEC.replace("- name: shop", "- {name: web, type: http_mock, record: true}\n  - name: shop").replace(
            "service: shop, assertions", "service: web, assertions"
        ),
        "the service 'web' records no calls, found http_mock, expected a service of type mcp_mock",
    ),
    "a tool twice": (SPEC.replace("name: refund,", "name: get_order,"), "the tool 'get_order' is there twice"),
    "two answers": (SPEC.replace("result: done", "result: done, json: 1"), "'json' beside 'result'"),
    "an answer beside a sequence": (
        SPEC.replace("result: done", "result: done, sequence: [{result: x}]"),
        "'result' beside 'sequence'",
    ),
    "a misspelt keyword": (SPEC.replace("required: [id]", "requierd: [id]"), "'required' is one"),
    "a schema of something else": (
        SPEC.replace("{type: object, properties", "{type: array, properties"),
        "its schema has type: object",
    ),
    "a pattern that is none": (
        SPEC.replace("{type: integer}", '{type: string, pattern: "("}'),
        "'(' is not a 'regex'",
    ),
    "an address that it has not": (
        SPEC.replace("{{ services.shop.command }}", "{{ services.shop.password }}"),
        "expected one of services.shop.command, services.shop.host",
    ),
    "a misspelt filter": (
        SPEC.replace("filters: {is_error: true}", "filters: {is_eror: true}"),
        "is not a filter of calls",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    text, sentence = REFUSED[name]
    assert text != SPEC
    called = run(tmp_path, GOOD, text)
    assert (called.code, sentence in called.err) == (2, True), called.err
    assert "keystone.yaml:" in called.err
