"""Fields and filters of recorded calls: what can be written, and what is found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.calls import (
    JournaledCalls,
    compile_call_filters,
    is_typed,
    open_call_journal,
    parse_call_field,
    read_call_field,
)
from keystone_action.evidence.model import RecordedCall
from keystone_action.evidence.requests import Missing
from keystone_action.invariants.comparison import equal

FIRST = RecordedCall("shop", "get_order", {"id": 7, "lines": [{"sku": "a.b"}]}, '{"state": "paid"}', False, "t1")
SECOND = RecordedCall("shop", "get_order", {"id": "8"}, "Input validation error", True, "t2")
THIRD = RecordedCall("shop", "stock", {}, "3", False, "t3")
CALLS = [FIRST, SECOND, THIRD]


@pytest.mark.parametrize(
    ("text", "found", "typed"),
    [
        ("call_count", 3, False),
        ("last_call.tool", "stock", False),
        ("last_call.result", "3", False),
        ("last_call.arguments", {}, True),
        ("calls[0].arguments.lines[0].sku", "a.b", True),
        ("calls[0].arguments.lines[-1]", {"sku": "a.b"}, True),
        ("calls[0].result.state", "paid", True),
        ('calls[0].result["state"]', "paid", True),
        ("calls[1].is_error", True, True),
        ("calls[1].arguments.id", "8", True),
        ("last_call", {"tool": "stock", "arguments": {}, "result": "3", "is_error": False}, False),
    ],
)
def test_what_is_there_is_found(text: str, found: Any, typed: bool) -> None:
    field = parse_call_field(text)
    assert (read_call_field(field, CALLS), is_typed(field)) == (found, typed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("calls[3].tool", "there is no calls[3]: 3 calls were recorded"),
        ("calls[0].arguments.number", "arguments has no 'number'"),
        ("calls[0].result.state.x", "result.state has no 'x'"),
        ("calls[1].result.state", "the call's result is not JSON"),
    ],
)
def test_what_is_not_there_is_missing_with_a_reason(text: str, reason: str) -> None:
    assert read_call_field(parse_call_field(text), CALLS) == Missing(reason)


def test_of_no_calls_there_is_no_last_one() -> None:
    assert read_call_field(parse_call_field("last_call.tool"), []) == Missing(
        "there is no last_call: no calls were recorded"
    )
    assert read_call_field(parse_call_field("calls[4]"), [FIRST]) == Missing(
        "there is no calls[4]: 1 call was recorded"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("call_cont", "expected call_count, last_call… or calls[N]…"),
        ("calls", "calls[N]"),
        ("calls[x].tool", "calls[N]"),
        ("last_call.args", "expected one of .tool, .arguments, .result, .is_error after 'last_call'"),
        ("last_call.tool.x", "expected nothing after .tool"),
        ("last_call.is_error[0]", "expected nothing after .is_error"),
        ("last_call.arguments.", "can't read '.'"),
        ("call_count.x", "expected call_count"),
    ],
)
def test_what_can_not_be_read_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_call_field(text)
    assert sentence in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    with contextlib.suppress(ValueError):
        read_call_field(parse_call_field(text), CALLS)


@pytest.mark.parametrize(
    ("filters", "passing"),
    [
        ({}, [0, 1, 2]),
        ({"tool": "get_order"}, [0, 1]),
        ({"tool": "get_orde"}, []),
        ({"is_error": False}, [0, 2]),
        ({"arguments": {"id": 7}}, [0]),
        ({"arguments": {"id": 7.0}}, [0]),
        ({"arguments": {"id": "7"}}, []),
        ({"arguments": {"lines[0].sku": "a.b", "id": 7}}, [0]),
        ({"arguments": {"lines": {"sku": "a.b"}}}, [0]),
        ({"arguments": {"$": {}}}, [2]),
        ({"tool": "get_order", "is_error": True}, [1]),
    ],
)
def test_filters_choose_calls(filters: dict[str, Any], passing: list[int]) -> None:
    compiled = compile_call_filters(filters, equal)
    assert [index for index, call in enumerate(CALLS) if all(one.matches(call) for one in compiled)] == passing


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"tool": 7}, "the name of a tool"),
        ({"is_error": "yes"}, "true or false"),
        ({"arguments": ["id"]}, "a mapping of paths"),
        ({"arguments": {"a[": 1}}, "expected .name"),
        ({"result": "x"}, "expected one of tool, arguments, is_error"),
    ],
)
def test_filters_that_make_no_sense_are_refused(filters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        compile_call_filters(filters, equal)
    assert sentence in str(caught.value)


def test_a_journal_gives_back_what_was_written(tmp_path: Any) -> None:
    journal = open_call_journal(tmp_path / "shop.calls.jsonl")
    asked: list[int] = []
    for call in CALLS:
        journal.append(call)
    journal.close()
    found = JournaledCalls(tmp_path / "shop.calls.jsonl", lambda: asked.append(1)).calls()
    assert (list(found), found[-1], found[:2], asked) == (CALLS, THIRD, CALLS[:2], [1])
    assert not hasattr(dataclasses.replace(FIRST), "__dict__")
    (tmp_path / "shop.calls.jsonl").write_text('{"tool": "x"}\n')
    with pytest.raises(OutputError, match="can't be read"):
        list(JournaledCalls(tmp_path / "shop.calls.jsonl", lambda: None).calls())


def test_every_line_is_json_whatever_numbers_somebody_gave(tmp_path) -> None:
    """Readers other than ours refuse a bare NaN."""

    def refuse(text: str) -> None:
        raise AssertionError(text)

    odd = RecordedCall("shop", "t", {"x": [float("nan"), float("-inf"), 1.5, "NaN"]}, "é", False, "t1")
    log, journal = AuditLog(tmp_path / "audit.jsonl"), open_call_journal(tmp_path / "calls.jsonl")
    log.mcp_call(odd)
    journal.append(odd)
    lines = [json.loads(one.read_text(), parse_constant=refuse) for one in (log.path, tmp_path / "calls.jsonl")]
    log.close()
    journal.close()
    for line in (lines[0]["details"], lines[1]):
        assert (line["arguments"], line["result"]) == ({"x": ["NaN", "-Infinity", 1.5, "NaN"]}, "é")
