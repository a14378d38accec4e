"""The examples of 002_220bb8e992e29d33.txt, "PassFail Scorer", by our check type's own fields, to a passing and a
failing verdict: what a scenario gives as its input is the prompt, what it expects is the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import keystone
from support.source_examples import BothWays, both_ways, printing

WEATHER = "It is sunny in Seattle."


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call of an AgentResult."""
    return {"name": name, "arguments": arguments}


def said(output: Any, *calls: dict[str, Any]) -> dict[str, Any]:
    """An AgentResult."""
    return {"output": output, "tool_calls": list(calls)}


def run(directory: Path, scenarios: str, good: Any, bad: Any) -> BothWays:
    """Both ways through the only scenario of this text, as the page has it."""
    (scenario,) = yaml.safe_load(scenarios)["scenarios"]
    expected = {key: value for key, value in scenario.items() if key.startswith("expected")}
    found = both_ways(
        directory,
        f"invariants: {json.dumps({'it': {'check': {'type': 'passfail', **expected}}})}\n",
        printing(good, bad),
        of_agent={"output": {"json": "stdout"}},
        id=scenario["name"],
        task={"prompt": scenario["input"]},
    )
    scores = [one["score"] for one in found.check("it")]
    assert scores == [1.0, 0.0]
    return found


LOOKUP = """
scenarios:
  - name: weather-lookup
    input: "What is the weather in Seattle?"
    expected_tools:
      - get_weather
"""


def test_expected_tools(tmp_path: Path) -> None:
    """ "If the agent calls get_weather and format_response, this scenario passes the tool check. If the agent skips
    get_weather entirely, it fails.\""""
    good = said(WEATHER, tool("get_weather"), tool("format_response"))
    found = run(tmp_path, LOOKUP, good, said(WEATHER, tool("format_response")))
    assert "missing: get_weather" in found.check("it")[1]["message"]


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


@pytest.mark.parametrize("bad", [{"location": "seattle"}, {"location": "Oslo"}, {"units": "metric"}, {}])
def test_expected_arguments(tmp_path: Path, bad: dict[str, str]) -> None:
    """ "Only the arguments explicitly listed are checked — the agent may pass additional arguments"; "Tool names and
    tool argument values are compared using their original casing.\""""
    good = said(WEATHER, tool("get_weather", location="Seattle", units="metric"))
    run(tmp_path, LOOKUP_ARGS, good, said(WEATHER, tool("get_weather", **bad)))


GREETING = """
scenarios:
  - name: greeting
    input: "Say hello"
    expected_output: "hello"
"""


def test_expected_output_in_any_case(tmp_path: Path) -> None:
    run(tmp_path, GREETING, said("Hello there! How can I help you?"), said("Hi! What can I do for you?"))


MINIMAL = """
scenarios:
  - name: basic-response
    input: "Summarize the company's return policy"
"""


@pytest.mark.parametrize("bad", ["", None, " \n\t"], ids=["empty", "none", "white space"])
def test_output_is_always_expected(tmp_path: Path, bad: Any) -> None:
    """ "An agent that returns "", None, or a whitespace-only string will fail this check.\""""
    run(tmp_path, MINIMAL, said("Within 30 days."), said(bad))


REFUND = """
scenarios:
  - name: refund-info
    input: "How do I get a refund?"
    expected_output: "30 days"
"""


@pytest.mark.parametrize("bad", ["Within a month.", "Within 30  days.", "Within 30\ndays.", " "])
def test_expected_substring(tmp_path: Path, bad: str) -> None:
    """Also: "The output check is case-insensitive but is not whitespace-normalized.\""""
    run(tmp_path, REFUND, said("Within 30 DAYS of purchase."), said(bad))


DATABASE = """
scenarios:
  - name: database-query
    input: "Look up order #12345"
    expected_tools:
      - query_orders
      - format_order_summary
"""


def test_several_tools_in_any_order(tmp_path: Path) -> None:
    """ "must call both query_orders and format_order_summary"; "Order of tools is not checked.\""""
    good = said("It was sent.", tool("format_order_summary"), tool("query_orders"))
    run(tmp_path, DATABASE, good, said("It was sent.", tool("query_orders"), tool("query_orders")))


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


@pytest.mark.parametrize(
    "bad",
    [
        said("", tool("query_orders", order_id="12345")),
        said(ORDER, tool("other", order_id="12345")),
        said(ORDER, tool("query_orders", order_id="54321")),
        said("Your order is on its way.", tool("query_orders", order_id="12345")),
    ],
    ids=["1", "2", "3", "4"],
)
def test_all_four_checks(tmp_path: Path, bad: Any) -> None:
    run(tmp_path, DATABASE_ARGS, said(ORDER, tool("query_orders", order_id="12345")), bad)


DETAILED = """
scenarios:
  - name: weather-and-refund
    input: "What is the weather, and how do I get a refund?"
    expected_tools: [get_weather]
    expected_tool_args: {get_weather: {location: Seattle}}
    expected_output: "30 days"
"""
PASSING = """
Output produced: PASS. Expected tools called: PASS (get_weather). Tool arguments match: PASS. Expected output found:
PASS ("30 days" found in output).
"""
FAILING = "Output produced: PASS. Expected tools called: FAIL (missing: format_response)."


def test_the_details_field(tmp_path: Path) -> None:
    """ "A passing result might look like", "A failing result stops at the first failure", word by word; "shown in CLI
    reports, HTML reports, and JSON output.\""""
    good = said("Within 30 days.", tool("get_weather", location="Seattle"), tool("format_response"))
    assert run(tmp_path, DETAILED, good, said("")).check("it")[0]["message"] == " ".join(PASSING.split())
    scenario = DETAILED.replace("[get_weather]", "[get_weather, format_response]")
    directory = tmp_path / "failing"
    found = run(directory, scenario, good, said("no", tool("get_weather", location="Seattle")))
    assert found.check("it")[1]["message"] == FAILING
    command_line = keystone(
        "run", "keystone.yaml", "--output", "rich", "--format", "rich", directory=tmp_path / "failing"
    )
    for report in (" ".join(command_line.out.split()), (found.called.output / "report.html").read_text("utf-8")):
        assert "missing: format_response" in report


LOOSE = """
scenarios:
  - name: loose
    input: "Do you agree?"
    expected_output: "yes"
"""


def test_substring_matching_is_loose(tmp_path: Path) -> None:
    """ "If expected_output is "yes", a response of "I'm not saying yes to that" would still pass.\""""
    run(tmp_path, LOOSE, said("I'm not saying yes to that"), said("I agree"))


def test_names_of_tools_keep_their_case(tmp_path: Path) -> None:
    """ "If your agent reports calling Get_Weather but the scenario expects get_weather, the tool check will fail.\""""
    run(tmp_path, LOOKUP, said(WEATHER, tool("get_weather")), said(WEATHER, tool("Get_Weather")))


EMPTY = """
scenarios:
  - name: empty
    input: "Say something"
    expected_output: ""
"""


def test_an_empty_expected_output(tmp_path: Path) -> None:
    """ "the check will trivially pass since an empty string is a substring of any string": of none that is missing."""
    run(tmp_path, EMPTY, said("anything"), said(""))


PHRASES = """
invariants:
  phrases: {check: {type: regex, pattern: "(?=.*phrase one)(?=.*phrase two)"}}
"""


def test_several_phrases_by_the_regex_scorer(tmp_path: Path) -> None:
    """ "use the Regex scorer with a pattern like (?=.*phrase one)(?=.*phrase two)\""""
    found = both_ways(tmp_path, PHRASES, "print('phrase two, phrase one' if good else 'phrase one')")
    assert [one["score"] for one in found.check("phrases")] == [1.0, 0.0]


STRICT = """
invariants:
  strict: {check: {type: exact, expected: "yes"}}
"""


def test_strict_matching_by_the_exact_match_scorer(tmp_path: Path) -> None:
    """ "For strict matching, use the Exact Match scorer\""""
    found = both_ways(tmp_path, STRICT, """print("Yes" if good else "I'm not saying yes to that")""")
    assert [one["score"] for one in found.check("strict")] == [1.0, 0.0]
