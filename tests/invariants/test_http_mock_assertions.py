"""`http_mock_assertions`: the source's examples, the rules of spec 5.3, and what people read when it fails."""

import json

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.context import make_check
from support.mock_records import Log, grade, request
from support.mocks import running_mock

from keystone_action.invariants.comparison import equal
from keystone_action.spec.expressions import interpolate

# Both from `000_66edd30c29bbac31.txt`, as they stand there: the section "http_mock_assertions"…
EMAIL_SENT_ONCE = """
description: "Exactly one renewal email"
check:
  type: http_mock_assertions
  service: smtp                       # must have `record: true`
  assertions:
    - field: request_count
      filters:
        method: POST
        path: "/api/messages"
      equals: 1
    - field: last_request.body
      contains: "renewal"
"""
# … and "SQL state + HTTP mock assertion".
SUMMARY_SENT_ONCE = """
description: "Exactly one summary email"
weight: 0.3
check:
  type: http_mock_assertions
  service: smtp
  assertions:
    - field: request_count
      filters: { to: "finance@co" }
      equals: 1
"""


@pytest.fixture
def outcome(tmp_path):
    def run(assertions, *requests, timeout=30.0):
        listed = assertions if isinstance(assertions, list) else [assertions]
        check = make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": listed})
        return grade(tmp_path, check, timeout=timeout, smtp=Log(*requests))

    return run


@pytest.fixture
def holds(outcome):
    def run(assertion, *requests):
        found = outcome(assertion, *requests)
        assert found.score == (1.0 if found.status == "pass" else 0.0), found.message
        return found.status == "pass"

    return run


# The source's examples, against a real mock.


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([("/api/messages", {"subject": "your renewal"})], "pass"),
        ([], "fail"),
        ([("/api/messages", {"subject": "renewal"})] * 2, "fail"),
        ([("/api/messages", {"subject": "hello"})], "fail"),
        ([("/api/message", {"subject": "renewal"})], "fail"),
    ],
)
def test_email_sent_once(tmp_path, sent, status):
    check = make_check(yaml.safe_load(EMAIL_SENT_ONCE)["check"])
    with running_mock(tmp_path, name="smtp") as mock:
        for path, body in sent:
            httpx.post(mock.url + path, json=body)
        found = grade(tmp_path, check, smtp=mock.place.requests)
    assert (found.status, found.score) == (status, 1.0 if status == "pass" else 0.0)


@pytest.mark.parametrize(
    ("send", "status"),
    [
        ({"json": {"to": "finance@co", "subject": "x"}}, "pass"),
        ({"json": {"to": ["ceo@co", "finance@co"]}}, "pass"),
        ({"data": {"to": "finance@co"}}, "pass"),
        ({"data": {"to": ["ceo@co", "finance@co"]}}, "pass"),
        ({"headers": {"To": "finance@co"}}, "pass"),
        ({"json": {"to": "finance@co"}, "headers": {"TO": "ceo@co"}}, "fail"),
        ({"json": {"to": "ceo@co"}}, "fail"),
        ({"json": {"message": {"to": "finance@co"}}}, "fail"),
        ({"content": "to: finance@co"}, "fail"),
    ],
)
def test_summary_sent_once(tmp_path, send, status):
    check = make_check(yaml.safe_load(SUMMARY_SENT_ONCE)["check"])
    with running_mock(tmp_path, name="smtp") as mock:
        httpx.post(f"{mock.url}/api/messages", **send)
        found = grade(tmp_path, check, smtp=mock.place.requests)
    assert found.status == status, found.message


# Filters.


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 3),
        ({"method": "post"}, 2),
        ({"path": "/api/messages"}, 1),
        ({"path": "/api/*"}, 2),
        ({"path": "/api/**"}, 3),
        ({"path": "**/x"}, 1),
        ({"query": {"page": "2"}}, 1),
        ({"query": {"page": 2}}, 1),
        ({"query": {"tag": ["a", "b"]}}, 1),
        ({"query": {"tag": "a"}}, 0),
        ({"query": {"page": "*"}}, 0),
        ({"body": "renew"}, 1),
        ({"body": 2}, 1),
        ({"body": 7}, 0),
        ({"n": 1}, 1),
        ({"n": 1.0}, 1),
        ({"n": "1"}, 0),
        ({"urgent": True}, 1),
        ({"urgent": 1}, 0),
        ({"nothing": None}, 1),
        ({"tags": "b"}, 1),
        ({"tags": ["a", "b"]}, 1),
        ({"x-KEY": "k"}, 1),
        ({"X-Times": 3}, 1),
        ({"X-Many": "two"}, 1),
        ({"method": "POST", "n": 1, "X-Key": "k"}, 1),
        ({"method": "GET", "n": 1}, 0),
        ({"headers": {"x-KEY": "k", "X-Times": 3}}, 1),
        ({"headers": {"X-Many": ["one", "two"]}}, 1),
        ({"headers": {"X-Key": "k", "X-Times": 4}}, 0),
        ({"headers": {"n": 1}}, 0),
        ({"json": {"n": 1, "tags[1]": "b"}}, 1),
        ({"json": {"tags": "b"}}, 1),
        ({"json": {"[1]": 2}}, 1),
        ({"json": {"$": [1, 2]}}, 1),
        ({"json": {"n": "1"}}, 0),
        ({"json": {"X-Key": "k"}}, 0),
        ({"json": {"n": 1}, "headers": {"X-Key": "k"}, "method": "POST"}, 1),
    ],
)
def test_filters(holds, filters, count):
    requests = [
        request(
            body={"n": 1, "text": "renewal", "urgent": True, "nothing": None, "tags": ["a", "b"]},
            headers={"X-Key": "k", "X-Times": "3", "X-Many": ["one", "two"], "Content-Type": "application/json"},
        ),
        request("GET", "/api/list", query={"page": "2", "tag": ["a", "b"]}),
        request(path="/api/a/x", body="[1, 2]"),
    ]
    assert holds({"field": "request_count", "filters": filters, "equals": count}, *requests)


def test_last_and_nth_count_among_what_is_left(holds):
    requests = [request(body="one"), request("GET", body="two"), request(body="three"), request("GET", body="four")]
    posts = {"method": "POST"}
    assert holds({"field": "last_request.body", "filters": posts, "equals": "three"}, *requests)
    assert holds({"field": "requests[0].body", "filters": posts, "equals": "one"}, *requests)
    assert holds({"field": "requests[1].body", "filters": posts, "equals": "three"}, *requests)
    assert not holds({"field": "requests[2].body", "filters": posts, "equals": "four"}, *requests)


# Fields and operators.

FULL = request(
    query={"page": "2", "tag": ["a", "b"]},
    headers={"Content-Type": "application/json", "X-N": "10"},
    body={"to": "finance@co", "n": 10, "f": 0.1, "yes": True, "none": None, "items": [{"id": 1}, {"id": 2}], "s": "10"},
)


@pytest.mark.parametrize(
    ("field", "operators", "expected"),
    [
        ("request_count", {"equals": 1}, True),
        ("request_count", {"equals": "1"}, True),
        ("request_count", {"equals": True}, False),
        ("request_count", {"gte": 1, "lt": 2}, True),
        ("request_count", {"gt": 1}, False),
        ("request_count", {"not_equals": 2}, True),
        ("last_request", {"exists": True}, True),
        ("last_request", {"contains": "body"}, True),
        ("last_request", {"count": 5}, True),
        ("last_request.method", {"equals": "POST"}, True),
        ("last_request.path", {"matches": "^/api/"}, True),
        ("last_request.path", {"matches": "^messages"}, False),
        ("last_request.query", {"equals": {"page": "2", "tag": ["a", "b"]}}, True),
        ("last_request.query.page", {"equals": 2}, True),
        ("last_request.query.page", {"equals": "2", "gt": 1, "lte": 2}, True),
        ("last_request.query.tag", {"contains": "a", "count": 2}, True),
        ("last_request.query.tag", {"equals": ["a", "b"]}, True),
        ("last_request.headers.x-n", {"equals": 10}, True),
        ("last_request.headers.x-n", {"gt": 9}, True),
        ("last_request.headers.X-None", {"exists": False}, True),
        ("last_request.headers.X-None", {"exists": True}, False),
        ("last_request.headers.X-None", {"not_equals": "a"}, False),
        ("last_request.headers", {"contains": "X-N", "count": 2}, True),
        ("last_request.body", {"contains": "finance", "not_contains": "secret"}, True),
        ("last_request.body", {"contains": "Finance"}, False),
        ("last_request.body", {"contains": "finance", "not_contains": "to"}, False),
        ("last_request.json.to", {"equals": "finance@co", "count": 10}, True),
        ("last_request.json.n", {"equals": 10.0}, True),
        ("last_request.json.n", {"equals": "10"}, False),
        ("last_request.json.n", {"gt": 9, "lt": 11}, True),
        ("last_request.json.n", {"contains": "1"}, False),
        ("last_request.json.n", {"count": 2}, False),
        ("last_request.json.s", {"equals": 10}, False),
        ("last_request.json.s", {"gt": 9}, False),
        ("last_request.json.f", {"equals": 0.1}, True),
        ("last_request.json.yes", {"equals": True}, True),
        ("last_request.json.yes", {"equals": 1}, False),
        ("last_request.json.none", {"equals": None}, True),
        ("last_request.json.none", {"exists": True}, True),
        ("last_request.json.items", {"count": 2, "contains": {"id": 2}}, True),
        ("last_request.json.items[1].id", {"equals": 2}, True),
        ("last_request.json.items[2].id", {"exists": False}, True),
        ("last_request.json.missing", {"equals": None}, False),
        ("requests[0].json", {"contains": "to"}, True),
        ("requests[1]", {"exists": False}, True),
        ("requests[1].body", {"not_contains": "x"}, False),
    ],
)
def test_fields_and_operators(holds, field, operators, expected):
    assert holds({"field": field, **operators}, FULL) is expected


@pytest.mark.parametrize("operators", [{"equals": "x"}, {"not_equals": "x"}, {"not_contains": "x"}, {"count": 0}])
@pytest.mark.parametrize("field", ["last_request.body", "requests[3].headers", "last_request.json.a"])
def test_a_request_that_is_not_there_fails_whatever_is_asked(holds, field, operators):
    assert not holds({"field": field, **operators})
    assert holds({"field": field, "exists": False})


def test_every_assertion_must_hold_and_each_is_in_the_details(outcome):
    found = outcome(
        [{"field": "request_count", "equals": 1}, {"field": "last_request.json.to", "equals": "ceo@co"}], FULL
    )
    assert (found.status, found.score) == ("fail", 0.0)
    assert found.message == "last_request.json.to: expected 'ceo@co' (text), found 'finance@co' (text)."
    assert [one["passed"] for one in found.details["assertions"]] == [True, False]
    assert found.details["assertions"][1] == {
        "field": "last_request.json.to",
        "filters": {},
        "operators": {"equals": "ceo@co"},
        "matched": 1,
        "found": "finance@co",
        "passed": False,
        "message": "expected 'ceo@co' (text), found 'finance@co' (text).",
    }
    json.dumps(found.details)


def test_a_pattern_that_takes_forever_fails(outcome):
    found = outcome(
        {"field": "last_request.body", "matches": "(a|aa|b)+(a|ab)+(b|bb)+$"},
        request(body="ab" * 30_000 + "c"),
        timeout=0.2,
    )
    assert found.status == "fail"
    assert "time limit" in found.message


# A filter that is neither header nor field of any request.


def test_an_assertion_that_holds_only_because_no_request_had_the_filter_fails(outcome):
    sent = [request(body={"amount": 7}), request("GET")]
    found = outcome({"field": "request_count", "filters": {"amuont": 7}, "equals": 0}, *sent)
    assert found.status == "fail"
    assert "holds only because none of the 2 recorded requests had a header or a field 'amuont'" in found.message
    assert found.notices == (
        "none of the 2 recorded requests had a header or a field 'amuont', did you mean 'amount'?",
    )


@pytest.mark.parametrize(
    ("assertion", "status", "notices"),
    [
        # It holds without the filter, too.
        ({"field": "request_count", "filters": {"method": "DELETE", "force": True}, "equals": 0}, "pass", 1),
        ({"field": "last_request.json.to", "filters": {"path": "/no", "force": True}, "exists": False}, "pass", 1),
        # A request has the name, with another value.
        ({"field": "request_count", "filters": {"to": "boss@co"}, "equals": 0}, "pass", 0),
        ({"field": "request_count", "filters": {"x-key": "other"}, "equals": 0}, "pass", 0),
        # Which is meant is said, so that no request has to have it.
        ({"field": "request_count", "filters": {"headers": {"X-Force": "1"}}, "equals": 0}, "pass", 0),
        ({"field": "request_count", "filters": {"json": {"force": True}}, "equals": 0}, "pass", 0),
        # It does not hold.
        ({"field": "request_count", "filters": {"force": True}, "equals": 1}, "fail", 1),
    ],
)
def test_a_filter_that_no_request_had_is_told(outcome, assertion, status, notices):
    found = outcome(assertion, request(body={"to": "finance@co"}, headers={"X-Key": "k"}))
    assert (found.status, len(found.notices)) == (status, notices), (found.message, found.notices)


def test_without_a_request_no_filter_is_told(outcome):
    found = outcome({"field": "request_count", "filters": {"force": True}, "equals": 0})
    assert (found.status, found.notices) == ("pass", ())


def test_a_body_that_was_not_kept_may_have_the_field(outcome):
    """Where the other filters leave the request out, what was cut from it decides nothing."""
    asked = {"field": "request_count", "filters": {"method": "GET", "force": True}, "equals": 0}
    found = outcome(asked, request(body="begin", cut=7))
    assert (found.status, found.notices) == ("pass", ())


# What people read.


def test_near_misses_are_shown(outcome):
    asked = {"field": "request_count", "filters": {"method": "POST", "path": "/api/messages"}, "equals": 1}
    assert outcome(asked, request(path="/api/message")).message == (
        "request_count: expected 1 (integer), found 0 (integer). "
        "0 requests matched POST /api/messages; 1 request: POST /api/message."
    )
    assert "0 requests matched POST /api/messages; none came at all" in outcome(asked).message


def test_the_nearest_come_first_and_the_rest_is_counted(outcome):
    asked = {"field": "last_request.body", "filters": {"method": "POST", "path": "/api/messages"}, "contains": "x"}
    others = [request("GET", f"/static/{number}") for number in range(10)]
    message = outcome(asked, *others, request("PUT", "/api/messages"), request("PUT", "/api/messages")).message
    assert "there is no last_request" in message
    assert "matched POST /api/messages; 2 requests: PUT /api/messages; 1 request: GET /static/" in message
    assert message.endswith("and 8 more.")


def test_the_value_that_a_filter_met_is_shown(outcome):
    asked = {"field": "request_count", "filters": {"path": "/api/messages", "to": "finance@co"}, "equals": 1}
    message = outcome(asked, request(body={"to": "finance@com"}), request(body="none")).message
    assert "0 requests matched /api/messages with to='finance@co'" in message
    assert "1 request: POST /api/messages with to='finance@com'" in message
    assert "1 request: POST /api/messages with no header and no field to" in message


def test_a_count_of_all_requests_lists_nothing_it_did_not_look_for(outcome):
    message = outcome({"field": "request_count", "equals": 2}, FULL).message
    assert message == "request_count: expected 2 (integer), found 1 (integer). 1 request came altogether."


@pytest.mark.parametrize(
    ("assertion", "passes"),
    [
        # What was not kept may hold it, or not.
        ({"field": "request_count", "filters": {"body": "hunter2"}, "equals": 0}, False),
        ({"field": "request_count", "filters": {"to": "a@b"}, "equals": 0}, False),
        ({"field": "request_count", "filters": {"json": {"to": "a@b"}}, "equals": 0}, False),
        ({"field": "last_request.body", "not_contains": "hunter2"}, False),
        ({"field": "last_request.body", "equals": "begin"}, False),
        # All that these ask is known.
        ({"field": "last_request.body", "contains": "begin"}, True),
        ({"field": "request_count", "filters": {"body": "begin"}, "equals": 1}, True),
        ({"field": "request_count", "filters": {"body": "hunter2", "method": "GET"}, "equals": 0}, True),
        ({"field": "request_count", "filters": {"headers": {"to": "a@b"}}, "equals": 0}, True),
        ({"field": "request_count", "equals": 1}, True),
        ({"field": "last_request.method", "equals": "POST"}, True),
    ],
)
def test_a_part_of_a_body_is_not_judged_as_the_whole(outcome, assertion, passes):
    found = outcome(assertion, request(body="begin", cut=7))
    assert (found.status == "pass") is passes, found.message


def test_a_cut_body_is_said(outcome):
    assert (
        "7 bytes of that request's body were not kept"
        in outcome({"field": "last_request.body", "contains": "end"}, request(body="begin", cut=7)).message
    )


def test_large_values_are_short_in_message_and_details(outcome):
    found = outcome({"field": "last_request.body", "equals": "x"}, request(body="y" * 100_000))
    assert len(found.message) < 1_000
    assert len(json.dumps(found.details)) < 5_000


# Properties.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)


@given(sent=st.lists(st.tuples(st.sampled_from(["GET", "POST"]), JSON), max_size=5), wanted=JSON)
def test_equals_and_not_equals_exclude_each_other_where_something_is_there(tmp_path_factory, sent, wanted):
    requests = [request(method, body={"v": value}) for method, value in sent]
    directory = tmp_path_factory.getbasetemp()
    there = bool(requests)

    asked = [{"field": "last_request.json.v", operator: wanted} for operator in ("equals", "not_equals")]
    check = make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": asked})
    found = grade(directory, check, smtp=Log(*requests))
    equals, not_equals = (one["passed"] for one in found.details["assertions"])
    assert equals == (there and equal(wanted, sent[-1][1]))
    assert (equals ^ not_equals) == there
    assert found.status == "fail", "they exclude each other"


@given(methods=st.lists(st.sampled_from(["GET", "POST", "PUT"]), max_size=8))
def test_what_passes_filters_and_what_does_not_are_all_requests(tmp_path_factory, methods):
    requests = [request(method) for method in methods]
    asked = [
        {"field": "request_count", "filters": {"method": method}, "equals": methods.count(method.upper())}
        for method in ("get", "POST", "Put")
    ]
    check = make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": asked})
    assert grade(tmp_path_factory.getbasetemp(), check, smtp=Log(*requests)).status == "pass"


def test_a_number_that_an_expression_gave_is_looked_for_as_text(outcome):
    """`filters: {body: "{{ record.number }}"}`: an expression alone is what it stands for, here no text."""
    check = make_check(
        {
            "type": "http_mock_assertions",
            "service": "smtp",
            "assertions": [{"field": "request_count", "filters": {"body": "{{ params.number }}"}, "equals": 1}],
        }
    )
    filled = interpolate(check, {"params": {"number": 42}})
    assert filled.assertions[0].filters == {"body": 42}
    found = outcome(
        [{"field": "request_count", "filters": filled.assertions[0].filters, "equals": 1}], request(body="n=42")
    )
    assert found.status == "pass", found.message
