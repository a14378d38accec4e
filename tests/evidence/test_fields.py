"""Fields of recorded requests: what can be written, and what is found."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.requests import Field, Missing, parse_field, read_field

FIRST = RecordedRequest(
    service="api",
    method="GET",
    path="/items",
    url="http://api/items?q=1&q=2&one=x",
    query={"q": ["1", "2"], "one": "x"},
    headers={"X-Trace.Id": "abc", "Accept": ["a", "b"]},
    body="",
    body_bytes=0,
    cut=0,
    status=200,
    response_body="",
    ts="",
)
SECOND = dataclasses.replace(
    FIRST, method="POST", body='{"to": "x", "items": [{"id": 7}], "a.b": {"c": null}, "0": "zero"}'
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("request_count", 2),
        ("last_request.method", "POST"),
        ("requests[0].method", "GET"),
        ("requests[1].path", "/items"),
        ("last_request.query", {"q": ["1", "2"], "one": "x"}),
        ("last_request.query.one", "x"),
        ("last_request.query.q[1]", "2"),
        ("last_request.headers.x-trace.id", "abc"),
        ("last_request.headers['x-trace.id']", "abc"),
        ("last_request.headers.ACCEPT", ["a", "b"]),
        ("last_request.body", SECOND.body),
        ("last_request.json", json.loads(SECOND.body)),
        ("last_request.json.items[0].id", 7),
        ("last_request.json.items[-1].id", 7),
        ('last_request.json["a.b"].c', None),
        ("last_request.json.0", "zero"),
    ],
)
def test_what_is_there(text: str, found: Any) -> None:
    assert read_field(parse_field(text), [FIRST, SECOND]) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("requests[2].body", "there is no requests[2]: 2 requests were recorded"),
        ("requests[0].json", "the request's body is not JSON"),
        ("last_request.json.items[1]", "json.items has no 1"),
        ("last_request.json.items[-2]", "json.items has no -2"),
        ("last_request.json.items.id", "json.items has no 'id'"),
        ("last_request.json.to[0]", "json.to has no 0"),
        ("last_request.json.to.x", "json.to has no 'x'"),
        ("last_request.headers.Host", "the request has no header Host"),
        ("last_request.query.two", "query has no 'two'"),
    ],
)
def test_what_is_missing(text: str, reason: str) -> None:
    assert read_field(parse_field(text), [FIRST, SECOND]) == Missing(reason)


@pytest.mark.parametrize("body", ['{"a": 1}', '\ufeff{"a": 1}'])
def test_a_body_of_json_may_begin_with_a_byte_order_mark(body: str) -> None:
    assert read_field(parse_field("last_request.json.a"), [dataclasses.replace(FIRST, body=body)]) == 1


def test_without_requests() -> None:
    assert read_field(parse_field("request_count"), []) == 0
    assert read_field(parse_field("last_request.body"), []) == Missing(
        "there is no last_request: no requests were recorded"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "requests",
        "requests[]",
        "requests[-1]",
        "requests[x].body",
        "last_request.",
        "last_request.status",
        "last_request.bodyguard",
        "last_request.body.a",
        "last_request.method[0]",
        "last_request.json.",
        "last_request.json..a",
        "last_request.json.a[",
        "last_request.json.a[b]",
        "last_request body",
        "request_count.x",
        "LAST_REQUEST.body",
    ],
)
def test_what_can_not_be_written(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_field(text)


@given(st.text(max_size=30), st.sampled_from(["", "last_request", "last_request.json", "requests[0].headers"]))
def test_any_text_is_a_field_or_refused(rest: str, start: str) -> None:
    try:
        field = parse_field(start + rest)
    except ValueError:
        return
    assert isinstance(field, Field)
    read_field(field, [FIRST, SECOND])  # finds something or Missing, and never raises


@given(st.recursive(st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_a_body_comes_back_as_it_was(document: Any) -> None:
    request = dataclasses.replace(FIRST, body=json.dumps(document))
    assert read_field(parse_field("last_request.json"), [request]) == document
