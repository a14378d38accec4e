"""The AgentResult document: read, checked, brought into one form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.agents.result import MalformedResult, ReportedResult, parse_result


def _parse(document: Any) -> ReportedResult:
    return parse_result(json.dumps(document).encode())


def test_a_whole_document() -> None:
    assert _parse(
        {
            "output": "done",
            "tool_calls": [{"name": "search", "arguments": {"q": 1}, "result": [1]}, {"name": "stop"}],
            "token_usage": {"prompt_tokens": 3, "output_tokens": 4.0, "cost_usd": 0, "total": 7},
            "latency_ms": 5,
        }
    ) == ReportedResult(
        "done",
        (
            {"name": "search", "arguments": {"q": 1}, "result": [1]},
            {"name": "stop", "arguments": {}, "result": None},
        ),
        {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.0},
        {"latency_ms": 5},
    )


def test_output_alone_is_enough() -> None:
    assert _parse({"output": ""}) == ReportedResult("", None, None)
    assert _parse({"output": "x", "tool_calls": None, "token_usage": None}) == ReportedResult("x", None, None)
    assert _parse({"output": "x", "tool_calls": [], "token_usage": {}}) == ReportedResult("x", (), {})


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "expected a JSON object with `output`, found a list"),
        ({}, "expected text under `output`, found no such key"),
        ({"output": None}, "expected text under `output`, found null"),
        ({"output": {"a": 1}}, "found an object"),
        ({"output": "", "tool_calls": {}}, "expected a list under `tool_calls`"),
        ({"output": "", "tool_calls": ["x"]}, r"expected an object as `tool_calls\[0\]`, found text"),
        ({"output": "", "tool_calls": [{"name": ""}]}, r"under `tool_calls\[0\].name`"),
        ({"output": "", "tool_calls": [{"name": "x", "arguments": [1]}]}, r"under `tool_calls\[0\].arguments`"),
        ({"output": "", "token_usage": [1]}, "expected an object under `token_usage`"),
        ({"output": "", "token_usage": {"input_tokens": -1}}, "at least 0 under `token_usage.input_tokens`"),
        ({"output": "", "token_usage": {"input_tokens": 1.5}}, "whole number under `token_usage.input_tokens`"),
        ({"output": "", "token_usage": {"completion_tokens": True}}, "found a boolean"),
        ({"output": "", "token_usage": {"cost_usd": "1"}}, "expected a number under `token_usage.cost_usd`"),
        ({"output": "", "token_usage": {"cost_usd": 10**400}}, "finite number"),
        ({"output": "", "token_usage": {"cost_usd": float("nan")}}, "NaN is not a JSON number"),
        ({"output": "", "token_usage": {"cost_usd": float("inf")}}, "Infinity is not a JSON number"),
    ],
)
def test_what_is_malformed_says_where(document: Any, problem: str) -> None:
    with pytest.raises(MalformedResult, match=problem):
        _parse(document)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"text before {}", "not JSON"),
        (b'{"output": "a"} {"output": "b"}', "not JSON"),
        (b'{"output": "\xff"}', "not UTF-8"),
        (b'{"output": "x", "y": 1e999}', "not JSON|number"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"output": "x", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_hostile_bytes_are_malformed(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedResult, match=problem):
        parse_result(data)


def test_surrogates_never_get_further() -> None:
    found = parse_result(b'{"output": "a\\ud800b", "tool_calls": [{"name": "\\udfff", "result": "\\ud83d\\ude00"}]}')
    assert (found.output, found.tool_calls) == ("a?b", ({"name": "?", "arguments": {}, "result": "😀"},))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_documents = st.fixed_dictionaries({"output": st.text() | _json}, optional={"tool_calls": _json, "token_usage": _json})


@given(_documents | _json)
def test_every_document_is_a_result_or_malformed(document: Any) -> None:
    try:
        found = _parse(document)
    except MalformedResult:
        return
    found.output.encode()
    for number in (found.token_usage or {}).values():
        assert 0 <= number < 2**63


@given(st.binary())
def test_any_bytes_are_a_result_or_malformed(data: bytes) -> None:
    with pytest.raises(MalformedResult):
        parse_result(data)
