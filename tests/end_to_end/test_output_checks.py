"""The scorers of AgenticAssure (002_220bb8e992e29d33.txt) and Touchstone's graders of traces
(004_722b8593dcd13c4e.txt), with the examples of their pages, through the real command: an agent that passes them all,
and one that fails them all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, run_spec

CHECKS = """
  # 002, "Tool arguments check"
  passfail:
    check:
      type: passfail
      expected_tools: [query_orders]
      expected_tool_args: {query_orders: {order_id: "12345"}}
      expected_output: "order #12345"
  # 002, "use the Regex scorer with a pattern like (?=.*phrase one)(?=.*phrase two)"
  regex: {check: {type: regex, pattern: '(?=.*order)(?=.*way)'}}
  exact: {check: {type: exact, expected: "your order #12345 is on its way."}}
  # 004, "trace"
  trace: {check: {type: trace, require_tools: [{kind: write}], max_tool_calls: 30}}
  # 004, "efficiency"
  efficiency:
    weight: 2.0
    check:
      {type: efficiency, target_cost_usd: 0.30, target_tokens: 2000, target_tool_calls: 20, pass_threshold: 0.8}
  tool_correctness: {check: {type: tool_correctness, expected: [query_orders, {kind: write, path_glob: "*.md"}]}}
  budget: {check: {type: budget, max_cost_usd: 0.5, max_tokens: 5000, max_seconds: 60, max_tool_calls: 5}}
"""
GOOD = {
    "output": "Your order #12345 is on its way.",
    "tool_calls": [
        {"name": "query_orders", "arguments": {"order_id": "12345", "verbose": True}, "result": "sent"},
        {"name": "write_file", "arguments": {"path": "notes.md", "content": "sent"}},
    ],
    "token_usage": {"prompt_tokens": 900, "completion_tokens": 100, "cost_usd": 0.1},
}
BAD = {
    "output": "No idea.",
    "tool_calls": [{"name": "query_orders", "arguments": {"order_id": 12345}}] * 40,
    "token_usage": {"input_tokens": 90_000, "output_tokens": 10_000, "cost_usd": 3},
}


def run(directory: Path, result: Any, checks: str = CHECKS) -> Called:
    """The command, with an agent that prints this result: a JSON value, or the text as it is."""
    (directory / "agent").mkdir()
    (directory / "agent" / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))
    return run_spec(
        directory,
        'version: 1\nid: outputs\ntask: {prompt: "Look up order #12345"}\n'
        'agent: {type: command, command: [cat, "{{ agent.dir }}/result.json"], dir: agent, output: {json: stdout}}\n'
        f"invariants:\n{checks}",
    )


def test_an_agent_that_does_it_all(tmp_path: Path) -> None:
    called = run(tmp_path, GOOD)
    assert {name: entry["status"] for name, entry in called.checks.items()} == dict.fromkeys(called.checks, "pass")
    assert (called.code, called.document["verdict"], called.document["composite"]) == (0, "pass", 1.0)


def test_an_agent_that_does_none_of_it(tmp_path: Path) -> None:
    called = run(tmp_path, BAD)
    assert {name: entry["status"] for name, entry in called.checks.items()} == dict.fromkeys(called.checks, "fail")
    assert (called.code, called.document["verdict"]) == (1, "fail")
    assert called.checks["passfail"]["message"].startswith(
        "Output produced: PASS. Expected tools called: PASS (query_orders). Tool arguments match: FAIL "
        "(query_orders: order_id: expected '12345' (text), found 12345 (integer)"
    )
    assert called.checks["efficiency"]["score"] == pytest.approx((0.1 + 0.02 + 0.5) / 3)
    assert called.checks["budget"]["score"] == pytest.approx(0.25)  # it was quick


DEEP = '{"output": "x", "tool_calls": [{"name": "query_orders", "arguments": {"a": ' + "[" * 900 + "]" * 900 + "}}]}"


@pytest.mark.parametrize(
    "result",
    [
        "Your order #12345 is on its way.",
        {**GOOD, "token_usage": {"cost_usd": -5}},
        json.dumps(GOOD).replace("0.1", "NaN"),
        json.dumps(GOOD).replace("0.1", "1e999"),
        {**GOOD, "tool_calls": "all of them"},
        "[" * 200_000,
        DEEP,
        "",
    ],
    ids=["text", "negative-cost", "nan", "infinite", "calls", "endless", "deep", "nothing"],
)
def test_forged_and_malformed_results_earn_nothing(tmp_path: Path, result: Any) -> None:
    """5.1: "`fail`: … a declared trace or JSON result that is missing or malformed (for the checks that need it)"."""
    called = run(tmp_path, result)
    assert (called.code, called.document["verdict"]) == (1, "fail")
    assert not called.has_traceback
    for name in ("passfail", "regex", "exact", "trace", "tool_correctness"):
        assert called.checks[name]["status"] == "fail", name


def test_without_a_trace_its_checks_are_skipped_and_the_rest_is_graded(tmp_path: Path) -> None:
    """004: "A grader that can't apply (e.g. a trace grader with no Trace) is marked skipped and excluded"."""
    called = run(tmp_path, {"output": GOOD["output"]}, CHECKS + "  quick: {check: {type: budget, max_seconds: 60}}\n")
    skipped = {name for name, entry in called.checks.items() if entry["status"] == "skip"}
    assert skipped == {"trace", "efficiency", "tool_correctness"}
    assert called.checks["passfail"]["status"] == "fail"
    assert "no tool calls were observed" in called.checks["passfail"]["message"]
    assert (called.checks["budget"]["status"], called.checks["quick"]["status"]) == ("pass", "pass")


def test_similarity_without_its_extra_names_it(tmp_path: Path) -> None:
    checks = "  alike: {check: {type: similarity, expected: order 12345 is on its way}}\n"
    called = run(tmp_path, GOOD, checks + "  said: {check: {type: regex, pattern: order}}\n")
    assert called.checks["alike"]["status"] == "skip"
    assert "sentence-transformers" in called.checks["alike"]["message"]
    assert "sentence-transformers" in called.out + called.err
    assert called.code == 0


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("{type: passfail, expected_tools: query_orders}", ("expected_tools", "a list")),
        ("{type: passfail, expected_tool_args: {t: 5}}", ("expected_tool_args", "5")),
        ("{type: exact}", ("'expected' is missing",)),
        ("{type: regex, pattern: '('}", ("not a regular expression",)),
        ("{type: regex, pattern: x, input_from: agent_outputs}", ("agent_output",)),
        ("{type: similarity, expected: ' '}", ("a text that is not blank",)),
        ("{type: trace}", ("expected at least one of", "require_tools")),
        ("{type: trace, require_tools: [{kinds: write}]}", ("unknown key 'kinds'", "did you mean 'kind'")),
        ("{type: trace, forbid_tools: [{kind: writes}]}", ("writes", "did you mean 'write'")),
        ("{type: trace, max_tool_calls: {wirte: 3}}", ("wirte", "write")),
        ("{type: efficiency, target_cost_usd: -1}", ("target_cost_usd", "at least 0")),
        ("{type: tool_correctness, expected: [{nam: x}]}", ("unknown key 'nam'", "did you mean 'name'")),
        ("{type: tool_correctness, expected: [wirte], match: kind}", ("wirte", "write")),
        ("{type: budget}", ("expected at least one of", "max_cost_usd")),
    ],
)
def test_bad_checks_are_refused_at_their_line(tmp_path: Path, check: str, words: tuple[str, ...]) -> None:
    called = run(tmp_path, GOOD, f"  it: {{check: {check}}}\n")
    assert called.code == 2
    assert "keystone.yaml:6:" in called.err
    assert not called.has_traceback
    assert not called.output.exists()
    for word in words:
        assert word in called.err, called.err


def test_what_is_expected_can_come_from_a_dataset(tmp_path: Path) -> None:
    """1.: "`dataset` … `{{ record.input }}`": arguments keep the type that the record has."""
    records = [
        {"id": "right", "input": "x", "expected": "Your order", "metadata": {"order": "12345"}},
        {"id": "wrong", "input": "x", "expected": "Your order", "metadata": {"order": 12345}},
    ]
    (tmp_path / "cases.json").write_text(json.dumps(records))
    checks = (
        "  it:\n    check:\n      type: passfail\n      expected_output: '{{ record.expected }}'\n"
        "      expected_tool_args: {query_orders: {order_id: '{{ record.metadata.order }}'}}\n"
        "dataset: {path: cases.json}\n"
    )
    called = run(tmp_path, GOOD, checks)
    assert {cell["scenario"]: cell["verdict"] for cell in called.cells} == {"right": "pass", "wrong": "fail"}
