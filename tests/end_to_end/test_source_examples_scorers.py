"""The examples of 002_220bb8e992e29d33.txt, "PassFail Scorer", by our check type's own fields, to a passing and a
failing verdict: what a scenario gives as its input is the prompt, what it expects is the check."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from support.source_examples import BothWays, printing, run_examples

WEATHER = "It is sunny in Seattle."


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call of an AgentResult."""
    return {"name": name, "arguments": arguments}


def said(output: Any, *calls: dict[str, Any]) -> dict[str, Any]:
    """An AgentResult."""
    return {"output": output, "tool_calls": list(calls)}


def ways(scenarios: str, good: Any, bad: Any) -> dict[str, Any]:
    """An example of both ways through the only scenario of this text, as the page has it."""
    (scenario,) = yaml.safe_load(scenarios)["scenarios"]
    expected = {key: value for key, value in scenario.items() if key.startswith("expected")}
    return {
        "example": f"invariants: {json.dumps({'it': {'check': {'type': 'passfail', **expected}}})}\n",
        "agent": printing(good, bad),
        "of_agent": {"output": {"json": "stdout"}},
        "task": {"prompt": scenario["input"]},
    }


LOOKUP = """
scenarios:
  - name: weather-lookup
    input: "What is the weather in Seattle?"
    expected_tools:
      - get_weather
"""
LOOKUP_ARGS = """
scenarios:
  - name: weather-lookup-args
    input: "What is the weather in Seattle?"
    expected_tools:
      - get_weather
    expected_tool_args:
      get_weather:
        location: "Seattle"
"""
ARGUMENTS: list[dict[str, str]] = [{"location": "seattle"}, {"location": "Oslo"}, {"units": "metric"}, {}]
GREETING = """
scenarios:
  - name: greeting
    input: "Say hello"
    expected_output: "hello"
"""
MINIMAL = """
scenarios:
  - name: basic-response
    input: "Summarize the company's return policy"
"""
BLANK = {"empty": "", "none": None, "white-space": " \n\t"}
REFUND = """
scenarios:
  - name: refund-info
    input: "How do I get a refund?"
    expected_output: "30 days"
"""
NOT_30_DAYS = ["Within a month.", "Within 30  days.", "Within 30\ndays.", " "]
DATABASE = """
scenarios:
  - name: database-query
    input: "Look up order #12345"
    expected_tools:
      - query_orders
      - format_order_summary
"""
DATABASE_ARGS = """
scenarios:
  - name: database-query-with-args
    input: "Look up order #12345"
    expected_tools:
      - query_orders
    expected_tool_args:
      query_orders:
        order_id: "12345"
    expected_output: "order #12345"
"""
ORDER = "Your Order #12345 is on its way."
CHECKS = [
    said("", tool("query_orders", order_id="12345")),
    said(ORDER, tool("other", order_id="12345")),
    said(ORDER, tool("query_orders", order_id="54321")),
    said("Your order is on its way.", tool("query_orders", order_id="12345")),
]
DETAILED = """
scenarios:
  - name: weather-and-refund
    input: "What is the weather, and how do I get a refund?"
    expected_tools: [get_weather]
    expected_tool_args: {get_weather: {location: Seattle}}
    expected_output: "30 days"
"""
TWO_TOOLS = DETAILED.replace("[get_weather]", "[get_weather, format_response]")
WITH_BOTH = said("Within 30 days.", tool("get_weather", location="Seattle"), tool("format_response"))
PASSING = """
Output produced: PASS. Expected tools called: PASS (get_weather). Tool arguments match: PASS. Expected output found:
PASS ("30 days" found in output).
"""
FAILING = "Output produced: PASS. Expected tools called: FAIL (missing: format_response)."
LOOSE = """
scenarios:
  - name: loose
    input: "Do you agree?"
    expected_output: "yes"
"""
EMPTY = """
scenarios:
  - name: empty
    input: "Say something"
    expected_output: ""
"""
PHRASES = """
invariants:
  phrases: {check: {type: regex, pattern: "(?=.*phrase one)(?=.*phrase two)"}}
"""
STRICT = """
invariants:
  strict: {check: {type: exact, expected: "yes"}}
"""
EXAMPLES: dict[str, dict[str, Any]] = {
    "lookup": ways(
        LOOKUP,
        said(WEATHER, tool("get_weather"), tool("format_response")),
        said(WEATHER, tool("format_response")),
    ),
    **{
        f"arguments-{number}": ways(
            LOOKUP_ARGS,
            said(WEATHER, tool("get_weather", location="Seattle", units="metric")),
            said(WEATHER, tool("get_weather", **bad)),
        )
        for number, bad in enumerate(ARGUMENTS)
    },
    "greeting": ways(GREETING, said("Hello there! How can I help you?"), said("Hi! What can I do for you?")),
    **{f"minimal-{name}": ways(MINIMAL, said("Within 30 days."), said(bad)) for name, bad in BLANK.items()},
    **{
        f"refund-{number}": ways(REFUND, said("Within 30 DAYS of purchase."), said(bad))
        for number, bad in enumerate(NOT_30_DAYS)
    },
    "database": ways(
        DATABASE,
        said("It was sent.", tool("format_order_summary"), tool("query_orders")),
        said("It was sent.", tool("query_orders"), tool("query_orders")),
    ),
    **{
        f"database-args-{number}": ways(DATABASE_ARGS, said(ORDER, tool("query_orders", order_id="12345")), bad)
        for number, bad in enumerate(CHECKS, 1)
    },
    "details": ways(DETAILED, WITH_BOTH, said("")),
    "details-of-failing": ways(TWO_TOOLS, WITH_BOTH, said("no", tool("get_weather", location="Seattle"))),
    "loose": ways(LOOSE, said("I'm not saying yes to that"), said("I agree")),
    "names-of-tools": ways(LOOKUP, said(WEATHER, tool("get_weather")), said(WEATHER, tool("Get_Weather"))),
    "empty": ways(EMPTY, said("anything"), said("")),
    "phrases": {"example": PHRASES, "agent": "print('phrase two, phrase one' if good else 'phrase one')"},
    "strict": {"example": STRICT, "agent": """print("Yes" if good else "I'm not saying yes to that")"""},
}
Run = Callable[[str], BothWays]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All examples in one call; one of them, which gave 1.0 one way and 0.0 the other."""
    ran = run_examples(tmp_path_factory, "examples-of-scorers", EXAMPLES, "--format", "rich")

    def one(name: str) -> BothWays:
        found = ran(name)
        scores = [entry["score"] for cell in (found.good, found.bad) for entry in cell["invariants"]]
        assert scores == [1.0, 0.0]
        return found

    return one


def test_expected_tools(run: Run) -> None:
    """ "If the agent calls get_weather and format_response, this scenario passes the tool check. If the agent skips
    get_weather entirely, it fails.\""""
    assert "missing: get_weather" in run("lookup").check("it")[1]["message"]


@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
def test_expected_arguments(run: Run, number: int) -> None:
    """ "Only the arguments explicitly listed are checked — the agent may pass additional arguments"; "Tool names and
    tool argument values are compared using their original casing.\""""
    run(f"arguments-{number}")


def test_expected_output_in_any_case(run: Run) -> None:
    run("greeting")


@pytest.mark.parametrize("bad", BLANK)
def test_output_is_always_expected(run: Run, bad: str) -> None:
    """ "An agent that returns "", None, or a whitespace-only string will fail this check.\""""
    run(f"minimal-{bad}")


@pytest.mark.parametrize("number", range(len(NOT_30_DAYS)))
def test_expected_substring(run: Run, number: int) -> None:
    """Also: "The output check is case-insensitive but is not whitespace-normalized.\""""
    run(f"refund-{number}")


def test_several_tools_in_any_order(run: Run) -> None:
    """ "must call both query_orders and format_order_summary"; "Order of tools is not checked.\""""
    run("database")


@pytest.mark.parametrize("number", range(1, len(CHECKS) + 1))
def test_all_four_checks(run: Run, number: int) -> None:
    run(f"database-args-{number}")


def test_the_details_field(run: Run) -> None:
    """ "A passing result might look like", "A failing result stops at the first failure", word by word; "shown in CLI
    reports, HTML reports, and JSON output.\""""
    assert run("details").check("it")[0]["message"] == " ".join(PASSING.split())
    found = run("details-of-failing")
    assert found.check("it")[1]["message"] == FAILING
    for report in (" ".join(found.called.out.split()), (found.called.output / "report.html").read_text("utf-8")):
        assert "missing: format_response" in report


def test_substring_matching_is_loose(run: Run) -> None:
    """ "If expected_output is "yes", a response of "I'm not saying yes to that" would still pass.\""""
    run("loose")


def test_names_of_tools_keep_their_case(run: Run) -> None:
    """ "If your agent reports calling Get_Weather but the scenario expects get_weather, the tool check will fail.\""""
    run("names-of-tools")


def test_an_empty_expected_output(run: Run) -> None:
    """ "the check will trivially pass since an empty string is a substring of any string": of none that is missing."""
    run("empty")


def test_several_phrases_by_the_regex_scorer(run: Run) -> None:
    """ "use the Regex scorer with a pattern like (?=.*phrase one)(?=.*phrase two)\""""
    run("phrases")


def test_strict_matching_by_the_exact_match_scorer(run: Run) -> None:
    """ "For strict matching, use the Exact Match scorer\""""
    run("strict")
