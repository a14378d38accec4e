"""`mcp_assertions`: what holds of the calls of tools, what people read when it fails, and what is refused."""

import pytest
from pydantic import ValidationError
from support.context import evaluate, make_check

from keystone_action.errors import OutputError
from keystone_action.evidence.model import RecordedCall
from keystone_action.invariants.types.mcp_assertions import McpAssertions
from keystone_action.spec.models.fields import ServiceName

CALLS = (
    RecordedCall("shop", "get_order", {"id": 7}, '{"state": "paid", "total": 9.5}', False, ""),
    RecordedCall("shop", "get_ordr", {"id": 7}, "Unknown tool: get_ordr", True, ""),
    RecordedCall("shop", "refund", {"order": 7, "amount": "9.50"}, "done", False, ""),
)


class Calls:
    def __init__(self, *calls: RecordedCall) -> None:
        self._calls = calls

    def calls(self) -> tuple[RecordedCall, ...]:
        return self._calls


def check_of(*assertions):
    return make_check({"type": "mcp_assertions", "service": "shop", "assertions": list(assertions)})


def outcome(tmp_path, *assertions, calls=CALLS):
    return evaluate(check_of(*assertions), tmp_path, evidence={"call_logs": {"shop": Calls(*calls)}})


@pytest.mark.parametrize(
    "assertion",
    [
        {"field": "call_count", "equals": 3, "gt": 2, "lte": 3},
        {"field": "call_count", "filters": {"tool": "refund", "arguments": {"order": 7}}, "equals": 1},
        {"field": "last_call.tool", "equals": "refund"},
        {"field": "last_call.arguments.amount", "equals": "9.50", "matches": r"^\d+\.\d\d$"},
        {"field": "last_call.arguments.order", "equals": 7, "gte": 7},
        {"field": "last_call", "filters": {"tool": "never"}, "exists": False},
        {"field": "calls[0].result.total", "gt": 9},
        {"field": "calls[0].result", "contains": "paid"},
        {"field": "calls[1].is_error", "equals": True},
        {"field": "last_call.arguments", "count": 2, "contains": "order"},
        {"field": "last_call.result", "filters": {"is_error": True}, "contains": "Unknown tool"},
        {"field": "call_count", "filters": {"is_error": False}, "equals": 2},
    ],
)
def test_what_holds(tmp_path, assertion):
    found = outcome(tmp_path, assertion)
    assert (found.status, found.score, found.message) == ("pass", 1.0, "shop: 1 assertion holds.")


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ({"field": "call_count", "filters": {"tool": "get_order"}, "equals": 2},
         "found 1 (integer). 1 call matched get_order; 1 call: get_ordr; 1 call: refund."),
        ({"field": "last_call.arguments.order", "equals": "7"},
         "last_call.arguments.order: expected '7' (text), found 7 (integer)."),
        ({"field": "last_call.tool", "filters": {"arguments": {"id": 8}}, "exists": True},
         "there is no last_call: no calls were recorded. 0 calls matched arguments.id=8; 1 call: get_ordr with"),
        ({"field": "calls[0].result.total", "equals": "9.5"},
         "calls[0].result.total: expected '9.5' (text), found 9.5 (number)"),
        ({"field": "calls[2].is_error", "equals": "false"}, "calls[2].is_error: expected 'false' (text), found false"),
        ({"field": "call_count", "filters": {"arguments": {"id": 8}}, "gte": 1},
         "1 call: get_order with arguments.id=7"),
    ],
)  # fmt: skip
def test_what_does_not_hold_is_said_with_the_calls_that_came_closest(tmp_path, assertion, message):
    found = outcome(tmp_path, assertion)
    assert (found.status, found.score) == ("fail", 0.0)
    assert message in found.message


def test_all_must_hold_and_details_say_what_was_asked(tmp_path):
    found = outcome(tmp_path, {"field": "call_count", "equals": 3}, {"field": "call_count", "equals": 4})
    assert found.status == "fail"
    assert (found.details["service"], found.details["calls"]) == ("shop", 3)
    assert [one["passed"] for one in found.details["assertions"]] == [True, False]


def test_an_agent_that_called_nothing(tmp_path):
    found = outcome(tmp_path, {"field": "call_count", "filters": {"tool": "refund"}, "equals": 1}, calls=())
    assert (
        found.message
        == "call_count: expected 1 (integer), found 0 (integer). 0 calls matched refund; none came at all."
    )


@pytest.mark.parametrize(
    ("assertion", "sentence"),
    [
        ({"field": "call_count"}, "at least one of equals"),
        ({"field": "request_count", "equals": 1}, "expected call_count, last_call"),
        ({"field": "last_call.body", "exists": True}, "expected one of .tool, .arguments"),
        ({"field": "call_count", "contains": "1"}, "call_count is a number"),
        ({"field": "call_count", "equals": 1, "filters": {"tool": 7}}, "the name of a tool"),
        ({"field": "call_count", "equals": 1, "filters": {"arguments": "id"}}, "a mapping of paths"),
        ({"field": "call_count", "equal": 1}, "Extra inputs"),
    ],
)
def test_assertions_that_make_no_sense_are_refused(assertion, sentence):
    with pytest.raises(ValidationError) as caught:
        check_of(assertion)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("key", "meant"), [("tol", "tool"), ("argument", "arguments"), ("is_eror", "is_error"), ("id", ""), ("result", "")]
)
def test_a_filter_that_is_none_is_refused_with_the_one_that_was_meant(key, meant):
    with pytest.raises(ValidationError) as caught:
        check_of({"field": "call_count", "filters": {key: "x"}, "equals": 0})
    context = caught.value.errors()[0]["ctx"]
    assert context["suggestion"] == meant
    assert f"arguments: {{{key}: …}}" in context["help"]


@pytest.mark.parametrize(
    ("field", "suggestion"),
    [("call_cont", "call_count"), ("last_cal.tool", "last_call.tool"), ("calls.tool", "calls[0].tool")],
)
def test_the_field_that_was_meant_is_suggested(field, suggestion):
    with pytest.raises(ValidationError) as caught:
        check_of({"field": field, "exists": True})
    assert caught.value.errors()[0]["ctx"]["suggestion"] == suggestion


def test_expressions_are_read_when_they_have_their_value():
    text = {"field": "calls[{{ params.n }}].tool", "equals": "x", "filters": {"tool": "{{ params.tool }}"}}
    assert check_of(text).assertions


def test_the_service_must_record():
    (marker,) = McpAssertions.model_fields["service"].metadata
    assert marker == ServiceName(kinds="calls")


def test_a_service_without_a_record_is_an_error_of_the_check(tmp_path):
    found = evaluate(check_of({"field": "call_count", "equals": 0}), tmp_path)
    assert (found.status, found.score) == ("error", None)
    assert "record: true" in found.message


def test_a_record_that_is_not_whole_is_an_error(tmp_path):
    class Incomplete(Calls):
        def calls(self):
            raise OutputError("the record of shop is incomplete")

    check = check_of({"field": "call_count", "equals": 0})
    with pytest.raises(OutputError, match="incomplete"):
        evaluate(check, tmp_path, evidence={"call_logs": {"shop": Incomplete()}})
