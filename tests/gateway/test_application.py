"""What passes the gateway, what does not, and what is seen of it: over real sockets, a scripted provider behind it."""

from __future__ import annotations

import asyncio
import socket
import threading

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, CHUNK, KEY, REAL, USAGE, WORTHLESS, world
from support.scripted_provider import Says, document, stream

from keystone_action.gateway.application import GatewaySettings
from keystone_action.gateway.exchange import Tokens
from keystone_action.gateway.ledger import BudgetLimits
from keystone_action.gateway.server import Gateways
from keystone_action.gateway.upstreams import Upstream


def test_a_request_passes_with_the_real_key_and_its_answer_comes_back():
    with world(document(ANSWER)) as one:
        body = b'{"model":"claude-opus-4-5",  "messages":[]}'  # its blanks are the client's affair
        headers = {**KEY, "anthropic-beta": "a,b", "x-app": "cli", "connection": "x-app", "accept-encoding": "br"}
        found = one.ask("/anthropic/v1/messages?beta=true", headers=headers, json=None, content=body)
        (asked,) = one.behind.asked
        assert (asked.method, asked.target, asked.body) == ("POST", "/v1/messages?beta=true", body)
        assert asked.header("x-api-key") == REAL
        assert asked.header("anthropic-beta") == "a,b"
        assert asked.header("x-app") is None  # of this connection alone
        assert asked.header("accept-encoding") == "identity"
        assert WORTHLESS not in str(asked)
        assert (found.status_code, found.json()) == (200, ANSWER)
        assert one.ledger.spent.tokens == Tokens(10, 0, 0, 2)


@pytest.mark.parametrize(
    ("path", "headers", "told"),
    [
        ("/openai/v1/chat/completions", {"authorization": f"Bearer {WORTHLESS}"}, ("authorization", f"Bearer {REAL}")),
        ("/openai/v1/responses", {"authorization": f"bearer {WORTHLESS}"}, ("authorization", f"Bearer {REAL}")),
        ("/anthropic/v1/messages", {"authorization": f"Bearer {WORTHLESS}"}, ("authorization", f"Bearer {REAL}")),
        ("/gemini/v1beta/models/g:generateContent", {"x-goog-api-key": WORTHLESS}, ("x-goog-api-key", REAL)),
        (f"/gemini/v1beta/models/g:generateContent?key={WORTHLESS}&a=b", {}, ("x-goog-api-key", REAL)),
    ],
)
def test_a_key_is_replaced_wherever_an_api_has_it(path, headers, told):
    with world() as one:
        assert one.ask(path, headers=headers).status_code == 200
        (asked,) = one.behind.asked
        assert told in asked.headers
        assert WORTHLESS not in str(asked)
        assert asked.target.partition("?")[0] == path.partition("?")[0].removeprefix("/" + path.split("/")[1])


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 200),
        ("?alt=sse", 200),
        ("?alt=json&a=b", 200),
        ("?alt=proto", 400),
        ("?alt=sse&alt=media", 400),
        ("?ALT=proto", 400),
        ("?%61lt=proto", 400),
        ("?a=b;alt=proto", 400),
        ("?alt", 400),
        ("?alt=json&callback=x", 400),
        ("?fields=usageMetadata", 400),
        ("?$fields=usageMetadata", 400),
        ("?%24alt=proto", 400),
        ("?access_token=theirs", 400),
        ("?oauth_token=theirs", 400),
    ],
)
def test_of_gemini_only_answers_that_can_be_read_are_asked_for(query, status):
    with world() as one:
        headers = {**KEY, "x-goog-fieldmask": "usageMetadata", "x-http-method-override": "GET"}
        found = one.ask(f"/gemini/v1beta/models/g:generateContent{query}", {}, headers=headers)
        assert found.status_code == status, found.text
        assert len(one.behind.asked) == (status == 200)
        for asked in one.behind.asked:
            assert asked.header("x-goog-fieldmask") is asked.header("x-http-method-override") is None


def test_credentials_in_a_query_are_not_passed_on():
    with world(document(ANSWER)) as one:
        one.ask("/anthropic/v1/messages?access_token=a&beta=true&Api_Key=b&k%65y=c&oauth_token=d")
        assert one.behind.asked[0].target == "/v1/messages?beta=true"


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "another-cells"}, {"authorization": f"Basic {WORTHLESS}"}])
def test_without_this_cells_key_nobody_is_asked(headers):
    with world() as one:
        found = one.ask(headers=headers)
        assert (found.status_code, found.json()["error"]["type"]) == (401, "authentication_error")
        assert one.behind.asked == []
        assert len(one.ledger.refused) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("HEAD", "/anthropic", 200),
        ("GET", "/anthropic/", 200),
        ("GET", "/anthropic/v1/models", 200),
        ("GET", "/gemini/v1beta/models/g", 200),
        ("POST", "/anthropic/v1/messages/count_tokens", 200),
        ("POST", "/anthropic/v1/files", 404),
        ("GET", "/anthropic/v1/messages", 404),
        ("DELETE", "/openai/v1/models/x", 404),
        ("GET", "/anthropic/v1/models/..%2f..%2ffiles", 404),
        ("GET", "/anthropic/v1/models//x", 404),
        ("POST", "/elsewhere/v1/messages", 404),
    ],
)
def test_what_passes(method, path, status):
    with world() as one:
        found = one.ask(path, method=method)
        assert found.status_code == status
        assert len(one.behind.asked) == (status == 200 and path.count("/") > 2)
        assert one.ledger.exchanges == ()
        if status == 404:
            assert "there is" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "more", "status", "sentence"),
    [
        ("/anthropic/v1/messages", {"json": None, "content": b"{"}, 400, "not a JSON object"),
        ("/anthropic/v1/messages", {"body": []}, 400, "not a JSON object"),
        ("/openai/v1/responses", {"body": {"background": True}}, 400, "background"),
        ("/openai/v1/responses", {"headers": {**KEY, "upgrade": "websocket", "connection": "upgrade"}}, 426, "WebSock"),
        ("/anthropic/v1/messages", {"body": {**ASK, "tools": [{"type": "web_search_1"}]}}, 400, "web_search_1"),
        ("/gemini/v1beta/models/g:generateContent", {"body": {"tools": [{"googleSearch": {}}]}}, 400, "googleSearch"),
        ("/anthropic/v1/messages", {"json": None, "content": b" " * ((32 << 20) + 1)}, 413, "33,554,432 bytes"),
    ],
)
def test_what_is_refused_is_said_in_the_apis_words(path, more, status, sentence):
    with world(deny_tools_of_provider=True) as one:
        found = one.ask(path, **more)
        assert found.status_code == status
        assert sentence in found.json()["error"]["message"]
        assert one.behind.asked == []
        assert one.ledger.spent.requests == 0


def test_a_spent_budget_is_a_400_in_that_apis_form_and_ends_the_agent():
    with world(document(ANSWER), limits=BudgetLimits(max_requests=1)) as one:
        assert one.ask().status_code == 200
        assert one.spent == []
        found = one.ask()
        assert (found.status_code, found.json()["error"]["message"]) == (400, "stopped at 1 of 1 requests")
        assert one.spent == [True]
        assert len(one.behind.asked) == 1


def test_events_pass_as_they_come():
    async def second_waits(number: int) -> None:
        if number == 1:
            await asyncio.to_thread(first_is_here.wait, 30)

    first_is_here = threading.Event()
    says = stream({"type": "ping"}, {"type": "message_stop"}, before=second_waits)
    with world(says) as one, httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=ASK) as found:
        pieces = found.iter_raw()
        assert next(pieces) == b'data: {"type": "ping"}\n\n'
        first_is_here.set()
        assert b"".join(pieces) == b'data: {"type": "message_stop"}\n\n'


@pytest.mark.parametrize("wants_usage", [True, False])
def test_the_usage_of_a_streamed_chat_is_always_asked_for_and_shown_to_who_asked(wants_usage):
    body = {"model": "gpt-5", "stream": True, "messages": []}
    body |= {"stream_options": {"include_usage": True}} if wants_usage else {}
    with world(stream(CHUNK, USAGE)) as one:
        found = one.ask("/openai/v1/chat/completions", body)
        assert one.behind.asked[0].document["stream_options"] == {"include_usage": True}
        assert ('"usage"' in found.text) is wants_usage
        assert one.ledger.spent.tokens == Tokens(10, 0, 0, 2)


def test_no_real_key_comes_back():
    echo = Says(401, [f'{{"error": "bad key {REAL[:9]}'.encode(), f'{REAL[9:]}"}}'.encode()], [("x-seen", REAL)])
    with world(echo) as one:
        found = one.ask()
        assert found.status_code == 401
        assert REAL not in found.text + str(found.headers)
        assert WORTHLESS in found.text
        assert REAL not in repr(one.ledger.exchanges)


@pytest.mark.parametrize(
    ("says", "status", "failure"),
    [
        (document({"type": "error", "error": {"message": "Overloaded"}}, 529), 529, "529"),
        (
            Says(302, [b""], [("location", "http://elsewhere/")]),
            502,
            "it answered with a redirect, which is not followed",
        ),
        (Says(200, [b"<html>"]), 200, "its answer is not JSON"),
        (Says(200, [b'{"type":'], cut=True), None, "the connection was lost"),
    ],
)
def test_a_provider_that_fails_is_at_fault(says, status, failure):
    with world(says) as one:
        try:
            assert one.ask().status_code == status
        except httpx.RemoteProtocolError:
            assert status is None
        assert one.ledger.provider_failure() == f"the provider failed: {failure} after 1 try"


def test_a_provider_that_is_not_there_is_at_fault():
    with world() as one:
        free = socket.create_server(("127.0.0.1", 0))
        address = free.getsockname()
        free.close()
        gateways = Gateways()
        gateways.start()
        upstream = Upstream("anthropic", "anthropic", f"http://127.0.0.1:{address[1]}", REAL)
        opened = asyncio.run(gateways.open(GatewaySettings(WORTHLESS, {"anthropic": upstream}, one.ledger)))
        found = httpx.post(f"http://127.0.0.1:{opened.port}/anthropic/v1/messages", headers=KEY, json=ASK, timeout=30)
        gateways.stop()
        assert found.status_code == 502
        assert one.ledger.provider_failure().startswith("anthropic could not be reached at 127.0.0.1:")
