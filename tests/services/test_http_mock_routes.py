"""Which route answers, and with what (spec 1.2)."""

import re
import time

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.mocks import model, running_mock

from keystone_action.errors import UsageError
from keystone_action.services.http_mock.request import MockRequest, RawRequest
from keystone_action.services.http_mock.service import RouteState, RouteTable


def answer(state: RouteState, method: str, target: str, *, headers=(), body: bytes = b""):
    return state.answer(MockRequest(RawRequest(method, target, list(headers), body)))


def state_of(tmp_path, *routes, **fields) -> RouteState:
    return RouteState(RouteTable(model(routes=list(routes), **fields), tmp_path))


def test_first_matching_route_in_declared_order_wins(tmp_path):
    state = state_of(
        tmp_path,
        {"path": "/users/me", "response": "me"},
        {"path": "/users/{id}", "response": "somebody"},
        {"path": "/**", "response": "anything"},
    )
    assert [answer(state, "GET", target).text for target in ("/users/me", "/users/7", "/users/7/x")] == [
        "me",
        "somebody",
        "anything",
    ]


@pytest.mark.parametrize(
    ("declared", "sent", "status"),
    [
        ("POST", "POST", 200),
        ("post", "POST", 200),
        ("POST", "GET", 404),
        (None, "DELETE", 200),
        ("any", "PUT", 200),
        ("GET", "HEAD", 200),
        ("POST", "HEAD", 404),
    ],
)
def test_methods(tmp_path, declared, sent, status):
    state = state_of(tmp_path, {"path": "/a", **({"method": declared} if declared else {})})
    assert answer(state, sent, "/a").status == status


@pytest.mark.parametrize(("fields", "status"), [({}, 200), ({"default_response": 503}, 503)])
def test_default_response_without_routes(tmp_path, fields, status):
    reply = answer(state_of(tmp_path, **fields), "GET", "/x")
    assert (reply.status, reply.text) == (status, "{}")


def test_default_response_with_routes_is_404_with_an_empty_document(tmp_path):
    reply = answer(state_of(tmp_path, {"path": "/a"}), "GET", "/x")
    assert (reply.status, reply.text) == (404, "{}")


def test_a_route_that_is_used_up_is_as_if_it_were_not_there(tmp_path):
    state = state_of(
        tmp_path, {"path": "/a", "times": 2, "status": 500}, {"path": "/a", "times": 1, "status": 429}, {"path": "/a"}
    )
    assert [answer(state, "GET", "/a").status for _ in range(5)] == [500, 500, 429, 200, 200]


def test_sequence_goes_on_and_its_last_response_repeats(tmp_path):
    state = state_of(tmp_path, {"path": "/a", "sequence": [{"status": 503}, {"status": 202}, {"json": {"done": True}}]})
    assert [answer(state, "GET", "/a").status for _ in range(4)] == [503, 202, 200, 200]


def test_what_one_cell_used_is_not_used_for_another(tmp_path):
    table = RouteTable(model(routes=[{"path": "/a", "times": 1}]), tmp_path)
    first, second = RouteState(table), RouteState(table)
    assert [answer(first, "GET", "/a").status for _ in range(2)] == [200, 404]
    assert answer(second, "GET", "/a").status == 200


def test_match_on_headers_query_and_body(tmp_path):
    match = {"headers": {"x-key": "k"}, "query": {"page": 2, "tag": ["a", "b"]}, "body": "renewal"}
    state = state_of(tmp_path, {"path": "/a", "match": match})
    good = {"headers": [("X-Key", "other"), ("X-KEY", "k")], "body": b"the renewal"}
    assert answer(state, "POST", "/a?page=2&tag=a&tag=b", **good).status == 200
    assert answer(state, "POST", "/a?page=3&tag=a&tag=b", **good).status == 404
    assert answer(state, "POST", "/a?page=2&tag=a", **good).status == 404
    assert answer(state, "POST", "/a?page=2&tag=a&tag=b", headers=good["headers"], body=b"other").status == 404
    assert answer(state, "POST", "/a?page=2&tag=a&tag=b", headers=[("X-Key", "K")], body=b"renewal").status == 404
    assert answer(state, "POST", "/a?page=2&tag=a&tag=b", body=b"renewal").status == 404


def test_paths_are_matched_decoded(tmp_path):
    state = state_of(tmp_path, {"path": "/a b/{name}", "response": "{{ request.params.name }}"})
    assert answer(state, "GET", "/a%20b/caf%C3%A9").text == "café"


def test_a_request_as_sent_to_a_proxy_has_its_path(tmp_path):
    state = state_of(tmp_path, {"path": "/a"})
    assert answer(state, "GET", "http://elsewhere.example/a?b").status == 200


@pytest.mark.parametrize(
    ("response", "content_type", "body"),
    [
        ({"response": "hello"}, "text/plain; charset=utf-8", b"hello"),
        ({"response": '{"id": 1}'}, "application/json", b'{"id": 1}'),
        ({"response": "{not json"}, "text/plain; charset=utf-8", b"{not json"),
        ({"json": {"id": 1, "é": None}}, "application/json", '{"id": 1, "é": null}'.encode()),
        ({"json": None}, "application/json", b"null"),
        ({"response": "<a/>", "headers": {"content-type": "text/xml"}}, "text/xml", b"<a/>"),
        ({"response": r"a \{{ b"}, "text/plain; charset=utf-8", b"a {{ b"),
    ],
)
def test_bodies_and_their_types(tmp_path, response, content_type, body):
    reply = answer(state_of(tmp_path, {"path": "/a", **response}), "GET", "/a")
    assert {name.lower(): value for name, value in reply.headers}["content-type"] == content_type
    assert reply.body == body


def test_files_are_read_when_the_service_is_made_and_are_no_templates(tmp_path):
    (tmp_path / "page.html").write_bytes(b"{{ no template }}\xff")
    state = state_of(tmp_path, {"path": "/a", "file": "page.html"})
    (tmp_path / "page.html").write_bytes(b"changed")
    reply = answer(state, "GET", "/a")
    assert reply.body == b"{{ no template }}\xff"
    assert dict(reply.headers)["Content-Type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("route", "sentence"),
    [
        ({"path": "/a", "file": "gone.json"}, "gone.json can't be read"),
        ({"path": "/a", "headers": {"Content-Length": "3"}}, "set by the mock itself"),
        ({"path": "/a", "headers": {"a b": "3"}}, "not a name for a header"),
        ({"path": "/a", "response": "{{ request.path"}, "can't be read"),
        ({"path": "/a", "json": {"id": "{{ request. }}"}}, "can't be read"),
    ],
)
def test_routes_that_make_no_sense_are_refused_by_number_and_path(tmp_path, route, sentence):
    with pytest.raises(UsageError, match=r"service api, route 1 \(/a") as caught:
        state_of(tmp_path, route)
    assert sentence in str(caught.value)


TEMPLATES = {
    "{{ request.method }} {{ request.path }}": "POST /u/7",
    "{{ request.params.id }}": "7",
    "{{ request.query.q }}": "x y",
    "{{ request.headers['x-trace'] }} {{ request.headers.get('X-TRACE') }}": "abc abc",
    "{{ request.body | length }}": "25",
    "{{ request.json.user.name | upper }}": "ADA",
    "{% if request.json.n > 2 %}many{% else %}few{% endif %}": "many",
    r"\{{ {{ request.params.id }}": "{{ 7",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_see_the_request(tmp_path, template):
    state = state_of(tmp_path, {"path": "/u/{id}", "response": template})
    body = b'{"user":{"name":"ada"},"n":3}'
    reply = answer(state, "POST", "/u/7?q=x+y", headers=[("X-Trace", "abc")], body=body)
    assert reply.status == 200
    assert reply.text == TEMPLATES[template].replace("25", str(len(body)))


def test_a_text_of_json_that_is_one_expression_keeps_its_type(tmp_path):
    document = {"n": "{{ request.json.n }}", "all": "{{ request.json }}", "text": "n={{ request.json.n }}", "1": [1]}
    state = state_of(tmp_path, {"path": "/", "json": document})
    reply = answer(state, "POST", "/", body=b'{"n": 3, "quote": "\\""}')
    assert httpx.Response(200, content=reply.body).json() == {
        "n": 3,
        "all": {"n": 3, "quote": '"'},
        "text": "n=3",
        "1": [1],
    }


def test_a_template_in_a_header_can_not_start_another_header(tmp_path):
    state = state_of(tmp_path, {"path": "/{x}", "headers": {"Location": "/to/{{ request.params.x }}"}})
    reply = answer(state, "GET", "/a%0d%0aSet-Cookie:%20b")
    assert dict(reply.headers)["Location"] == "/to/a  Set-Cookie: b"


@pytest.mark.parametrize(
    "template",
    [
        "{{ request.json.missing }}",
        "{{ unknown }}",
        "{{ request.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ 'x' * 99999999 }}",
        "{{ 10 ** 99999999 }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_fails_is_a_500_that_says_why(tmp_path, template):
    reply = answer(state_of(tmp_path, {"path": "/", "response": template}), "GET", "/")
    assert reply.status == 500
    assert "keystone mock: the response's template failed: " in reply.text


def test_delay_and_a_failing_template_over_the_wire(tmp_path):
    routes = [{"path": "/slow", "delay": "300ms", "response": "at last"}, {"path": "/t", "response": "{{ nothing }}"}]
    with running_mock(tmp_path, routes=routes) as mock:
        started = time.monotonic()
        assert httpx.get(f"{mock.url}/slow").text == "at last"
        assert time.monotonic() - started >= 0.3
        assert httpx.get(f"{mock.url}/t").status_code == 500
        assert [(one.path, one.status) for one in mock.requests()] == [("/slow", 200), ("/t", 500)]
        assert "'nothing' is undefined" in mock.requests()[1].response_body


@pytest.mark.parametrize(("path", "sentence"), [("/a/{b", "don't pair up"), ("/a?b=c", "a path without ? and #")])
def test_paths_that_make_no_sense_are_refused_by_the_loader(path, sentence):
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        model(routes=[{"path": path}])


def test_unknown_keys_of_a_route_are_refused():
    with pytest.raises(ValidationError):
        model(routes=[{"path": "/a", "respnse": "x"}])


@given(st.lists(st.sampled_from([200, 201, 404, 500]), min_size=1, max_size=5), st.integers(1, 12))
@example([200], 1)
def test_sequences_of_any_length(statuses, calls):
    state = state_of(None, {"path": "/", "sequence": [{"status": status} for status in statuses]})
    expected = [statuses[min(number, len(statuses) - 1)] for number in range(calls)]
    assert [answer(state, "GET", "/").status for _ in range(calls)] == expected
