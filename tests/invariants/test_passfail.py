"""AgenticAssure's default scorer, against the page that documents it: 002_220bb8e992e29d33.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import call, evidence, traced, unreadable_call

from keystone_action.evidence.trace import Trace
from keystone_action.invariants.check import Outcome

HERE = Path(__file__).parent
WEATHER = "It is sunny in Seattle."


def passfail(output: str, trace: Trace | None = None, /, *, problem: str = "", **fields: Any) -> Outcome:
    return grade({"type": "passfail", **fields}, HERE, evidence=evidence(output, trace, problem=problem))


def scenario(text: str, output: str, trace: Trace | None = None) -> Outcome:
    """The outcome of a scenario as the page has it: the fields that its scorer reads."""
    document = yaml.safe_load(text)
    return passfail(output, trace, **{key: value for key, value in document.items() if key.startswith("expected")})


MINIMAL = """
name: basic-response
input: "Summarize the company's return policy"
"""
"""002: "Minimal scenario (output-only check)"."""
GREETING = """
name: greeting
input: "Say hello"
expected_output: "hello"
"""
"""002: "Check 4: Expected Output Substring"."""
REFUND = """
name: refund-info
input: "How do I get a refund?"
expected_output: "30 days"
"""
"""002: "Substring check"."""
LOOKUP = """
name: weather-lookup
input: "What is the weather in Seattle?"
expected_tools:
  - get_weather
"""
"""002: "Check 2: Expected Tools Called"."""
LOOKUP_ARGS = """
name: weather-lookup-args
input: "What is the weather in Seattle?"
expected_tools:
  - get_weather
expected_tool_args:
  get_weather:
    location: "Seattle"
"""
"""002: "Check 3: Tool Arguments Match"."""
DATABASE = """
name: database-query
input: "Look up order #12345"
expected_tools:
  - query_orders
  - format_order_summary
"""
"""002: "Tool usage check"."""
DATABASE_ARGS = """
name: database-query-with-args
input: "Look up order #12345"
expected_tools:
  - query_orders
expected_tool_args:
  query_orders:
    order_id: "12345"
expected_output: "order #12345"
"""
"""002: "Tool arguments check"."""


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (MINIMAL, ("Within 30 days.", None), ("  \n\t", None)),
        (GREETING, ("Hello there! How can I help you?", None), ("Hi! What can I do for you?", None)),
        (REFUND, ("Within 30 DAYS of purchase.", None), ("Within a month.", None)),
        (
            LOOKUP,
            (WEATHER, traced(call("get_weather"), call("format_response"))),
            (WEATHER, traced(call("format_response"))),
        ),
        (
            LOOKUP_ARGS,
            (WEATHER, traced(call("get_weather", location="Seattle", units="metric"))),
            (WEATHER, traced(call("get_weather", location="seattle"))),
        ),
        (
            DATABASE,
            ("Order 12345", traced(call("format_order_summary"), call("query_orders"))),
            ("Order 12345", traced(call("query_orders"))),
        ),
        (
            DATABASE_ARGS,
            ("Your Order #12345 is on its way.", traced(call("query_orders", order_id="12345"))),
            ("Your order 12345 is on its way.", traced(call("query_orders", order_id="12345"))),
        ),
    ],
    ids=["minimal", "greeting", "refund", "lookup", "lookup-args", "database", "database-args"],
)
def test_every_scenario_of_the_page_passes_and_fails(text: str, good: Any, bad: Any) -> None:
    assert (scenario(text, *good).status, scenario(text, *good).score) == ("pass", 1.0)
    assert (scenario(text, *bad).status, scenario(text, *bad).score) == ("fail", 0.0)


def test_the_details_of_a_passing_result_are_those_of_the_page() -> None:
    outcome = passfail(
        "Refunds within 30 days.",
        traced(call("get_weather", location="Seattle")),
        expected_tools=["get_weather"],
        expected_tool_args={"get_weather": {"location": "Seattle"}},
        expected_output="30 days",
    )
    assert outcome.message == (
        "Output produced: PASS. Expected tools called: PASS (get_weather). Tool arguments match: PASS. "
        'Expected output found: PASS ("30 days" found in output).'
    )


def test_the_details_of_a_failing_result_are_those_of_the_page_and_stop_there() -> None:
    outcome = passfail(
        "Sunny.",
        traced(call("get_weather")),
        expected_tools=["get_weather", "format_response"],
        expected_tool_args={"get_weather": {"location": "Seattle"}},
        expected_output="rain",
    )
    assert outcome.message == "Output produced: PASS. Expected tools called: FAIL (missing: format_response)."
    assert list(outcome.details["checks"].values()) == [True, False]


@pytest.mark.parametrize("output", ["", " ", "\n\t \r\n", "\u00a0\u2003"])
def test_blank_output_fails_whatever_else_holds(output: str) -> None:
    outcome = passfail(output, expected_output="")
    assert (outcome.status, outcome.message) == ("fail", "Output produced: FAIL (it is blank).")


def test_an_output_that_is_missing_fails_with_the_reason() -> None:
    outcome = passfail("left over", problem="the output file could not be read: out.txt does not exist")
    assert outcome.status == "fail"
    assert "out.txt does not exist" in outcome.message


def test_an_empty_expected_output_passes_with_a_warning() -> None:
    """002: "If you set expected_output: "", the check will trivially pass … Avoid this"."""
    outcome = passfail("anything", expected_output="")
    assert outcome.status == "pass"
    assert "Warning" in outcome.message


def test_white_space_counts_in_the_output() -> None:
    """002: "it is not whitespace-normalized"."""
    assert passfail("30  days", expected_output="30 days").status == "fail"


@pytest.mark.parametrize("name", ["Get_Weather", "get_weather ", "get"])
def test_names_of_tools_are_compared_as_they_are(name: str) -> None:
    assert passfail("Sunny.", traced(call(name)), expected_tools=["get_weather"]).status == "fail"


def test_a_tool_is_known_by_either_of_its_names() -> None:
    trace = traced(call("write", raw_name="create_file"))
    for name in ("write", "create_file"):
        assert passfail("ok", trace, expected_tools=[name]).status == "pass"


def test_a_tool_expected_twice_is_expected_once() -> None:
    assert passfail("ok", traced(call("t")), expected_tools=["t", "t"]).status == "pass"


def test_any_call_may_have_the_arguments() -> None:
    """Released AgenticAssure looks at the first only; its page says "the arguments recorded for each tool call"."""
    trace = traced(call("t", a=1), call("t", a=2))
    assert passfail("ok", trace, expected_tool_args={"t": {"a": 2}}).status == "pass"
    outcome = passfail("ok", trace, expected_tool_args={"t": {"a": 3}})
    assert outcome.status == "fail"
    assert "a: expected 3 (integer), found 2 (integer); the last of 2 calls" in outcome.message


def test_one_call_must_have_all_the_arguments() -> None:
    trace = traced(call("t", a=1), call("t", b=2))
    assert passfail("ok", trace, expected_tool_args={"t": {"a": 1, "b": 2}}).status == "fail"


@pytest.mark.parametrize(
    ("wanted", "found", "holds"),
    [
        (1, 1, True),
        (1, 1.0, True),
        ("1", 1, False),
        (1, "1", False),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        (None, None, True),
        (None, 0, False),
        ("Seattle", "seattle", False),
        ({"a": [1, 2]}, {"a": [1.0, 2]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_arguments_compare_by_value_and_type(wanted: Any, found: Any, holds: bool) -> None:
    outcome = passfail("ok", traced(call("t", a=found)), expected_tool_args={"t": {"a": wanted}})
    assert (outcome.status == "pass") is holds


def test_arguments_of_a_tool_that_is_not_expected_are_expected_all_the_same() -> None:
    outcome = passfail("ok", traced(), expected_tool_args={"t": {}})
    assert outcome.message.endswith("Tool arguments match: FAIL (t was not called).")
    assert passfail("ok", traced(call("t")), expected_tool_args={"t": {}}).status == "pass"


def test_arguments_that_could_not_be_read_match_nothing() -> None:
    outcome = passfail("ok", traced(unreadable_call("t")), expected_tool_args={"t": {"a": 1}})
    assert outcome.status == "fail"
    assert "could not be read" in outcome.message


def test_arguments_nested_as_deep_as_an_agent_likes_fail_with_a_sentence() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    outcome = passfail("ok", traced(call("t", a=deep)), expected_tool_args={"t": {"a": "x"}})
    assert outcome.status == "fail"
    assert "too deep" in outcome.message


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (None, "there is no trace of this agent"),
        (Trace(source="otel"), "the trace (otel) does not tell of tool calls"),
        (Trace(source="claude", problem="trace.jsonl does not exist"), "trace.jsonl does not exist"),
    ],
)
def test_tools_that_can_not_be_seen_were_not_called(trace: Trace | None, reason: str) -> None:
    for fields in ({"expected_tools": ["t"]}, {"expected_tool_args": {"t": {"a": 1}}}):
        outcome = passfail("ok", trace, **fields)
        assert outcome.status == "fail"
        assert reason in outcome.message


def test_a_broken_trace_does_not_matter_where_no_tools_are_expected() -> None:
    assert passfail("ok", Trace(source="claude", problem="broken"), expected_output="OK").status == "pass"


@pytest.mark.parametrize(
    "fields",
    [
        {"expected_tool_args": {"t": 5}},
        {"expected_tool_args": ["t"]},
        {"expected_tools": "t"},
        {"expected_tools": [""]},
        {"expected_output": 30},
        {"expected_outputs": "x"},
    ],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "passfail", **fields})


@given(before=st.text(), wanted=st.text(min_size=1), after=st.text())
def test_what_is_in_the_output_is_found(before: str, wanted: str, after: str) -> None:
    output = f"x{before}{wanted}{after}"
    holds = wanted.lower() in output.lower()  # a few letters change with what stands beside them: Σ
    assert (passfail(output, expected_output=wanted).status == "pass") is holds
