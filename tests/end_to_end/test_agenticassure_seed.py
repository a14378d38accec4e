"""Every example of AgenticAssure's page on its PassFail scorer (002_220bb8e992e29d33.txt) as the suite file it is, by
`keystone run scenarios/`: an adapter that passes, and one that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import Called, keystone
from support.suites import answering, write_files


@dataclass(frozen=True)
class Example:
    """suite: as the page has it, its lines broken again. good, bad: fields of the AgentResult. said: of the message of
    each. quote: what the page says of it."""

    suite: str
    good: dict[str, Any]
    bad: dict[str, Any]
    said: tuple[str, str]
    quote: str = ""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


EXAMPLES = {
    "Check 2: Expected Tools Called": Example(
        """scenarios:
  - name: weather-lookup
    input: "What is the weather in Seattle?"
    expected_tools:
      - get_weather
""",
        {"output": "Rain.", "tool_calls": [call("get_weather"), call("format_response")]},
        {"output": "Rain.", "tool_calls": [call("format_response")]},
        ("Expected tools called: PASS (get_weather).", "Expected tools called: FAIL (missing: get_weather)."),
        "If the agent calls get_weather and format_response, this scenario passes the tool check. If the agent skips "
        "get_weather entirely, it fails.",
    ),
    "Check 3: Tool Arguments Match": Example(
        """scenarios:
  - name: weather-lookup-args
    input: "What is the weather in Seattle?"
    expected_tools:
      - get_weather
    expected_tool_args:
      get_weather:
        location: "Seattle"
""",
        {"output": "Rain.", "tool_calls": [call("get_weather", location="Seattle", unit="C")]},
        {"output": "Rain.", "tool_calls": [call("get_weather", location="seattle")]},
        ("Tool arguments match: PASS.", "Tool arguments match: FAIL (get_weather: location: expected 'Seattle'"),
        "Only the arguments explicitly listed are checked — the agent may pass additional arguments without causing a "
        "failure.",
    ),
    "Check 4: Expected Output Substring": Example(
        """scenarios:
  - name: greeting
    input: "Say hello"
    expected_output: "hello"
""",
        {"output": "Hello there! How can I help you?"},
        {"output": "Hi! What can I do for you?"},
        ('Expected output found: PASS ("hello" found in output).', 'Expected output found: FAIL ("hello" not found'),
        '"hello" is found within the output (case-insensitive) … "hello" does not appear anywhere in the response',
    ),
    "Minimal scenario (output-only check)": Example(
        """scenarios:
  - name: basic-response
    input: "Summarize the company's return policy"
""",
        {"output": "Within 30 days."},
        {"output": " \n\t"},
        ("Output produced: PASS.", "Output produced: FAIL"),
        "Only Check 1 runs. The scenario passes as long as the agent produces any non-empty output.",
    ),
    "Substring check": Example(
        """scenarios:
  - name: refund-info
    input: "How do I get a refund?"
    expected_output: "30 days"
""",
        {"output": "Send it back within 30 DAYS."},
        {"output": "Send it back within thirty days."},
        ("Output produced: PASS. Expected output found: PASS", "Output produced: PASS. Expected output found: FAIL"),
        'Checks 1 and 4 run. The agent must produce output, and that output must contain the substring "30 days"',
    ),
    "Tool usage check": Example(
        """scenarios:
  - name: database-query
    input: "Look up order #12345"
    expected_tools:
      - query_orders
      - format_order_summary
""",
        {"output": "Found.", "tool_calls": [call("format_order_summary"), call("query_orders")]},
        {"output": "Found.", "tool_calls": [call("query_orders")]},
        (
            "Expected tools called: PASS (query_orders, format_order_summary).",
            "Output produced: PASS. Expected tools called: FAIL (missing: format_order_summary).",
        ),
        "The agent must produce output and must call both query_orders and format_order_summary.",
    ),
    "Tool arguments check": Example(
        """scenarios:
  - name: database-query-with-args
    input: "Look up order #12345"
    expected_tools:
      - query_orders
    expected_tool_args:
      query_orders:
        order_id: "12345"
    expected_output: "order #12345"
""",
        {"output": "Your Order #12345 is on its way.", "tool_calls": [call("query_orders", order_id="12345")]},
        {"output": "Your order #12345 is on its way.", "tool_calls": [call("query_orders", order_id=12345)]},
        (
            'Tool arguments match: PASS. Expected output found: PASS ("order #12345" found in output).',
            "Tool arguments match: FAIL (query_orders: order_id: expected '12345' (text), found 12345 (integer)",
        ),
        "All four checks run.",
    ),
    "Use the Regex scorer with a pattern": Example(
        """scenarios:
  - name: both-phrases
    input: "Say both"
    scorers: [regex]
    metadata:
      regex_pattern: '(?=.*phrase one)(?=.*phrase two)'
""",
        {"output": "phrase two comes before phrase one"},
        {"output": "phrase one"},
        ("matches the pattern", "does not match the pattern"),
        "If you need to check for multiple phrases, use the Regex scorer with a pattern like "
        "(?=.*phrase one)(?=.*phrase two)",
    ),
    "For strict matching, use the Exact Match scorer": Example(
        """scenarios:
  - name: agrees
    input: "Do you agree?"
    expected_output: "yes"
    scorers: [exact]
""",
        {"output": " Yes\n"},
        {"output": "I'm not saying yes to that"},
        ("The output is what was expected.", "expected 'yes', found \"i'm not saying yes to that\""),
        'If expected_output is "yes", a response of "I\'m not saying yes to that" would still pass. For strict '
        "matching, use the Exact Match scorer or the Regex scorer.",
    ),
    "Substring matching is loose": Example(
        """scenarios:
  - name: agrees
    input: "Do you agree?"
    expected_output: "yes"
""",
        {"output": "I'm not saying yes to that"},
        {"output": "No."},
        ('PASS ("yes" found in output)', 'FAIL ("yes" not found in output)'),
    ),
    "Case insensitivity applies only to the output check": Example(
        """scenarios:
  - name: weather-case
    input: "What is the weather in Seattle?"
    expected_tools: [get_weather]
""",
        {"output": "Rain.", "tool_calls": [call("get_weather")]},
        {"output": "Rain.", "tool_calls": [call("Get_Weather")]},
        ("Expected tools called: PASS", "Expected tools called: FAIL (missing: get_weather)"),
        "If your agent reports calling Get_Weather but the scenario expects get_weather, the tool check will fail.",
    ),
    "the tools_called list": Example(
        """scenarios:
  - name: tools-called
    input: "What is the weather in Seattle?"
    expected_tools: [get_weather]
""",
        {"output": "Rain.", "tools_called": ["get_weather"]},
        {"output": "Rain.", "tools_called": ["format_response"]},
        ("Expected tools called: PASS (get_weather).", "Expected tools called: FAIL (missing: get_weather)."),
        "Every tool listed in expected_tools appears in the agent result's tools_called list",
    ),
    "Empty expected_output": Example(
        """scenarios:
  - name: empty-expectation
    input: "Say something"
    expected_output: ""
""",
        {"output": "something"},
        {"output": ""},
        ('Expected output found: PASS ("" found in output). Warning:', "Output produced: FAIL (it is blank)."),
        "the check will trivially pass since an empty string is a substring of any string",
    ),
    "Whitespace sensitivity": Example(
        """scenarios:
  - name: spaces
    input: "How do I get a refund?"
    expected_output: "30 days"
""",
        {"output": "within 30 days"},
        {"output": "within 30  days"},
        ("PASS (", 'FAIL ("30 days" not found in output)'),
        "Extra spaces, newlines, or tabs in the agent output could cause a mismatch",
    ),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """All suites, each in a folder of its own with its adapter, in one call for the adapters that pass and in one for
    those that fail."""

    def run(way: str) -> Called:
        def call(directory: Path) -> Called:
            for number, example in enumerate(EXAMPLES.values()):
                question = example.suite.partition('input: "')[2].partition('"')[0]
                files = answering({question: example.good if way == "pass" else example.bad})
                write_files(directory / str(number), {f"scenarios/suite{number}.yaml": example.suite, **files})
            places = [f"{number}/scenarios/" for number in range(len(EXAMPLES))]
            return keystone("run", *places, "--output", "out", directory=directory)

        return called_once(tmp_path_factory, f"seed-{way}", call)

    return {way: run(way) for way in ("pass", "fail")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page_passes_and_fails(both: dict[str, Called], name: str) -> None:
    example = EXAMPLES[name]
    for (verdict, called), code, said in zip(both.items(), (0, 1), example.said, strict=True):
        assert (called.code, called.document["verdict"]) == (code, verdict), called.out + called.err
        assert len(called.cells) == len(EXAMPLES)
        spec_id = f"suite{list(EXAMPLES).index(name)}"
        (cell,) = (cell for spec in called.document["specs"] if spec["id"] == spec_id for cell in spec["cells"])
        assert cell["verdict"] == verdict
        (check,) = cell["invariants"]
        assert said in check["message"]
        assert check["score"] == cell["composite"] == (1.0 if verdict == "pass" else 0.0)
