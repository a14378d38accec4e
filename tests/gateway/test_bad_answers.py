"""Providers that fail, in every way we know of: what the agent gets, what counts, and whose fault it was."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import threading
import zlib

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, KEY, STREAM, world
from support.scripted_provider import Says, document, stream

from keystone_action.gateway import answer_copy
from keystone_action.gateway.exchange import Tokens
from keystone_action.gateway.ledger import BudgetLimits

STREAMED = {**ASK, "stream": True}
JSON, EVENTS = ("content-type", "application/json"), ("content-type", "text/event-stream")


@pytest.mark.parametrize(
    ("status", "headers", "failure"),
    [
        (429, [JSON, ("retry-after", "7"), ("x-should-retry", "true")], "429"),
        (429, [JSON], "429"),
        (500, [JSON, ("request-id", "req_1")], "500"),
        (503, [JSON], "503"),
        (529, [JSON], "529"),
        (401, [JSON], "401"),
        (402, [JSON], "402"),
        (403, [JSON], "403"),
        (400, [JSON], ""),
        (404, [JSON], ""),
        (413, [JSON], ""),
        (422, [JSON], ""),
    ],
)
def test_an_error_passes_as_it_is_and_costs_nothing(status, headers, failure):
    error = {"type": "error", "error": {"type": "some_error", "message": "no"}}
    with world(Says(status, [json.dumps(error).encode()], headers)) as one:
        found = one.ask()
        assert (found.status_code, found.json()) == (status, error)
        assert all(found.headers[name] == value for name, value in headers)
        (exchange,) = one.ledger.exchanges
        assert (exchange.status, exchange.failure, exchange.answer) == (status, failure, None)
        assert one.ledger.spent.all_tokens == 0
        told = f"the provider failed: {failure} after 1 try" if failure else ""
        if failure in ("401", "402"):
            told = f"anthropic refused the key that gateway.providers has for it ({failure}): no"
        assert one.ledger.provider_failure() == told


KEY_IS_NONE = {
    "code": 400,
    "message": "API key not valid. Please pass a valid API key.",
    "status": "INVALID_ARGUMENT",
    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
}
NO_CREDIT = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."}


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (400, {"error": KEY_IS_NONE}, "400 API_KEY_INVALID"),
        (400, [{"error": KEY_IS_NONE}], "400 API_KEY_INVALID"),  # as a stream tells it
        (400, {"type": "error", "error": NO_CREDIT}, "400 billing_error"),
        (403, {"type": "error", "error": {"type": "billing_error", "message": "no"}}, "403 billing_error"),
        (429, {"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}, "429 insufficient_quota"),
        (400, {"error": {"code": "billing_hard_limit_reached"}}, "400 billing_hard_limit_reached"),
        (404, {"error": {"code": "model_not_found", "message": "There is no insufficient_quota"}}, ""),
        (400, {"error": {"message": "the tool Your credit balance is too low"}}, ""),
        (400, {"error": "insufficient_quota"}, ""),
        (400, ["insufficient_quota"], ""),
        (400, {"error": {"details": "API_KEY_INVALID", "code": 400}, "pad": "x" * 20_000}, ""),
    ],
)
def test_an_account_that_can_not_pay_is_not_the_agents_fault(status, body, failure):
    with world(document(ANSWER), document(body, status)) as one:
        one.ask()
        assert one.ask(body={**ASK, "next": True}).json() == body
        assert one.settled()[-1].failure == failure
        told = f"the provider failed: {failure} after 1 try" if failure else ""
        if "API_KEY_INVALID" in failure:
            told = f"anthropic refused the key that gateway.providers has for it (400): {KEY_IS_NONE['message']}"
        assert one.ledger.provider_failure() == told


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_by_a_provider_that_answered_before_is_what_the_agent_asked_for(status):
    with world(document(ANSWER), document({}, status)) as one:
        one.ask()
        assert one.ask(body={**ASK, "next": True}).status_code == status
        assert one.ledger.provider_failure() == ""
        assert one.ask("/openai/v1/responses", {"model": "gpt-5"}).status_code == status
        told = {401: "openai refused the key that gateway.providers has for it (401)"}
        assert one.ledger.provider_failure() == told.get(status, f"the provider failed: {status} after 1 try")


def test_retries_are_folded_into_one_request():
    failing = [Says(529, [b"{}"]), Says(200, [b'{"type":'], [JSON], cut=True), Says(429, [b"{}"])]
    with world(*failing, document(ANSWER)) as one:
        for _ in range(4):
            try:
                one.ask()
            except httpx.RemoteProtocolError:
                assert len(one.behind.asked) == 2
        (exchange,) = one.ledger.exchanges
        assert (exchange.tries, exchange.failure, exchange.status) == (4, "", 200)
        assert one.ledger.spent.requests == 4
        assert exchange.tokens == one.ledger.spent.tokens
        assert one.ledger.provider_failure() == ""


def test_a_retry_may_have_its_names_in_another_order():
    first = {"model": "claude-opus-4-5", "metadata": {"a": 1, "b": 2}, "messages": [{"role": "user", "content": "x"}]}
    again = {"messages": [{"content": "x", "role": "user"}], "metadata": {"b": 2, "a": 1}, "model": "claude-opus-4-5"}
    with world(Says(529, [b"{}"]), Says(529, [b"{}"]), document(ANSWER)) as one:
        one.ask(body=first)
        one.ask(json=None, content=json.dumps(again, indent=1).encode())
        one.ask(body=again)
        (exchange,) = one.settled()
        assert (exchange.tries, exchange.failure) == (3, "")
    for other in ({**first, "metadata": {"a": 1, "b": 3}}, {**first, "messages": first["messages"] * 2}):
        with world(Says(529, [b"{}"]), document(ANSWER)) as one:
            one.ask(body=first)
            one.ask(body=other)
            assert [exchange.tries for exchange in one.settled()] == [1, 1], "another request"


@pytest.mark.parametrize(
    ("says", "failure"),
    [
        (Says(302, [b""], [("location", "http://elsewhere/")]), "it answered with a redirect, which is not followed"),
        (Says(308, [b""], [("location", "/v1/messages")]), "it answered with a redirect, which is not followed"),
        (Says(304, [b""]), "it answered with a redirect, which is not followed"),
        (Says(999, [b""]), "it answered with the status 999"),
        (Says(raw=True, pieces=[b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"]), None),
        (Says(raw=True, pieces=[b"garbage\r\n\r\n"]), "the connection was lost"),
        (Says(raw=True, pieces=[b""]), "the connection was lost"),
        (Says(raw=True, pieces=[b"HTTP/1.1 200 OK\r\ncontent-le"]), "the connection was lost"),
        (Says(200, [b"{}"], [("content-encoding", "br")]), "it answered in an encoding that was not asked for"),
        (Says(200, [b"{}"], [("content-encoding", "gzip, gzip")]), "it answered in an encoding that was not asked for"),
    ],
)
def test_what_is_no_answer_is_a_502_in_that_apis_form(says, failure):
    with world(says) as one:
        found = one.ask()
        assert (found.status_code, found.json()["type"]) == (502, "error")
        assert "location" not in found.headers
        (exchange,) = one.ledger.exchanges
        assert exchange.failure == failure or failure is None
        assert one.ledger.provider_failure().startswith("the provider failed: ")
        assert len(one.behind.asked) == 1


def test_a_provider_that_takes_too_long_is_at_fault():
    async def never(_number: int) -> None:
        await asyncio.sleep(30)

    with world(document(ANSWER, before=never), silent=0.3) as one:
        with pytest.raises(httpx.RemoteProtocolError):
            one.ask()  # its head came
        assert one.ledger.provider_failure() == "the provider failed: it took too long after 1 try"


@pytest.mark.parametrize(
    ("says", "failure"),
    [
        (Says(200, [b'{"type":'], cut=True), "the connection was lost"),
        (stream(*STREAM[:3], cut=True), "the connection was lost"),
        (Says(raw=True, pieces=[b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"]), "the connection was lost"),
        (Says(200, [b"no gzip"], [("content-encoding", "gzip")]), "its answer could not be decoded"),
    ],
)
def test_an_answer_that_is_cut_is_cut_for_the_agent_too(says, failure):
    with world(says) as one:
        with pytest.raises(httpx.RemoteProtocolError):
            one.ask(body=STREAMED)
        assert one.ledger.provider_failure() == f"the provider failed: {failure} after 1 try"
        (exchange,) = one.settled()
        assert exchange.estimated


@pytest.mark.parametrize(
    ("says", "failure"),
    [
        (Says(200, [b"<html>"]), "its answer is not JSON"),
        (Says(200, [b""]), "its answer is not JSON"),
        (Says(200, [b"\xff\xfe\0"], [EVENTS]), "its answer broke off"),
        (stream(*STREAM[:3]), "its answer broke off"),
        (stream(*STREAM[:3], {"type": "error", "error": {"message": "Over\nloaded " + "x" * 999}}), "Over loaded "),
    ],
)
def test_what_arrives_whole_and_is_not_an_answer_passes_and_is_the_providers_failure(says, failure):
    with world(says) as one:
        assert one.ask(body=STREAMED).status_code == 200
        (exchange,) = one.settled()
        assert exchange.failure.startswith(failure)
        assert len(exchange.failure) <= 300
        assert exchange.estimated


@pytest.mark.parametrize(
    ("says", "is_unreadable"),
    [
        (Says(200, [b"<html>"]), True),
        (Says(200, [b"\x0a\x04calls"], [("content-type", "application/x-protobuf")]), True),
        (Says(200, [b"// callback\nx(" + json.dumps(ANSWER).encode() + b")"]), True),
        (document({"candidates": [{"content": {}}]}), True),  # another API's
        (document([1]), True),
        (Says(200, [b"\xff\xfe\0"], [EVENTS]), True),
        (Says(200, [b"data: call f()\n\n"], [EVENTS]), True),
        (Says(200, [b"data: " + b'{"a":' * 200_000 + b"\n\n", b"data: {}\n\n"], [EVENTS]), True),
        (stream({"choices": [{"delta": {"content": "hm"}}]}), True),
        (document(ANSWER), False),
        (stream(*STREAM), False),
        (Says(200, [*stream(*STREAM).pieces, b": alive\n\n", b"data: [DONE]\n\n"], [EVENTS]), False),
        (stream(*STREAM[:3]), False),
        (Says(200, [b""]), False),  # it told the agent nothing either
        (Says(200, [b'{"type":'], cut=True), False),
        (Says(500, [b"<html>"]), False),
        (document({"type": "error", "error": {"message": "Overloaded"}}), False),
    ],
)
def test_an_answer_that_reached_the_agent_and_could_not_be_read_is_told(says, is_unreadable):
    with world(says, document(ANSWER)) as one:
        try:
            one.ask(body=STREAMED)
        except httpx.RemoteProtocolError:
            assert says.cut
        (exchange,) = one.settled()
        assert (exchange.unreadable, one.ledger.unreadable) == (is_unreadable, is_unreadable)
        one.ask(body=STREAMED)
        one.settled()
        assert one.ledger.unreadable is is_unreadable, "a retry that was answered does not make up for it"


def test_an_answer_of_no_known_form_is_unreadable_in_each_api():
    for path in ("openai/v1/responses", "openai/v1/chat/completions", "gemini/v1beta/models/g:generateContent"):
        with world(document({"result": "call f()"})) as one:
            one.ask(f"/{path}", {"model": "m"})
            assert (one.settled()[0].unreadable, path) == (True, path)


ENDED = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in STREAM)


@pytest.mark.parametrize(
    "says",
    [
        document(ANSWER),
        Says(200, [ENDED], [EVENTS]),
        Says(200, [ENDED], [JSON]),  # a stream that calls itself otherwise
        Says(200, [json.dumps(ANSWER).encode()], [EVENTS]),
        Says(200, [ENDED[:-2]], [EVENTS]),  # no empty line behind the last event
        Says(200, [b"\xef\xbb\xbf" + ENDED], [EVENTS]),
        Says(200, [ENDED.replace(b"\n", b"\r\n")], [("content-type", "Text/Event-Stream; charset=utf-8")]),
        Says(200, [gzip.compress(ENDED)], [EVENTS, ("content-encoding", "gzip")]),
        Says(200, [zlib.compress(ENDED)], [EVENTS, ("content-encoding", "deflate")]),
        Says(200, [gzip.compress(json.dumps(ANSWER).encode())], [JSON, ("Content-Encoding", "GZIP")]),
        Says(raw=True, pieces=[b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(ANSWER).encode()]),
    ],
)
def test_an_answer_is_read_however_it_comes(says):
    with world(says) as one:
        found = one.ask(body=STREAMED, headers={**KEY, "accept-encoding": "br, zstd"})
        assert "content-encoding" not in found.headers
        assert b"done" in found.content
        (exchange,) = one.settled()
        assert exchange.answer is not None
        assert (exchange.answer.text, exchange.failure, exchange.estimated) == ("done", "", False)
        assert one.ledger.spent.tokens == Tokens(10, 0, 0, 2)


def test_headers_that_a_server_can_not_pass_on_are_left_out():
    headers = [JSON, ("x-one", "caf\xe9"), ("x-two", "\x01"), ("x-three", "3"), ("connection", "x-three")]
    with world(Says(200, [json.dumps(ANSWER).encode()], headers)) as one:
        found = one.ask()
        assert found.headers.encoding  # it has one
        assert "x-one" in found.headers
        assert not {"x-two", "x-three"} & {*found.headers}


def test_an_answer_that_is_too_long_to_be_read_is_cut(monkeypatch):
    monkeypatch.setattr(answer_copy, "READ_LIMIT", 1 << 20)
    for says in (Says(200, [b"x" * 65536] * 100), Says(200, [b"data: " + b"x" * 65536] * 100, [EVENTS])):
        with world(says) as one:
            with pytest.raises(httpx.RemoteProtocolError):
                one.ask()
            (exchange,) = one.settled()
            assert "is longer than" in exchange.failure
            assert exchange.unreadable


@pytest.mark.slow
def test_a_hundred_megabytes_of_events_pass_in_bounded_memory():
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 50_000}}
    call = [
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c", "name": "f"}},
        {"type": "content_block_stop", "index": 1},
    ]
    says = stream(*STREAM[:2], *[piece] * 2_000, *call, *STREAM[4:])
    with world(says) as one:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=STREAMED) as found:
            passed = sum(len(part) for part in found.iter_raw())
        assert passed == sum(len(part) for part in says.pieces) > 100_000_000
        (exchange,) = one.settled()
        assert exchange.answer is not None
        assert len(exchange.answer.text) < 9 << 20
        assert [one.name for one in exchange.answer.calls] == ["f"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_an_error_of_any_length_passes():
    with world(Says(500, [b"x" * 65536] * 1_000)) as one:
        assert len(one.ask().content) == 65_536_000


def test_counting_tokens_and_lists_of_models_cost_nothing_and_fail_without_fault():
    with world(Says(200, [b"{}"]), Says(500, [b"{}"]), Says(302, [b""]), Says(200, [b"{"], cut=True)) as one:
        assert one.ask("/anthropic/v1/messages/count_tokens").status_code == 200
        assert one.ask("/anthropic/v1/models", method="GET").status_code == 500
        assert one.ask("/anthropic/v1/models", method="GET").status_code == 502
        with pytest.raises(httpx.RemoteProtocolError):
            one.ask("/anthropic/v1/models", method="GET")
        assert one.ledger.exchanges == ()
        assert (one.ledger.spent.requests, one.ledger.spent.all_tokens) == (1, 0)  # lists are not requests to a model
        assert one.ledger.provider_failure() == ""


def test_counting_tokens_counts_as_a_request():
    with world(document({"input_tokens": 10}), limits=BudgetLimits(max_requests=1)) as one:
        assert one.ask("/anthropic/v1/messages/count_tokens").status_code == 200
        for path in ("/anthropic/v1/messages/count_tokens", "/anthropic/v1/messages"):
            found = one.ask(path)
            assert (found.status_code, found.json()["error"]["message"]) == (400, "stopped at 1 of 1 requests")
        assert one.spent == [True, True]
        assert len(one.behind.asked) == 1


def test_what_an_agent_breaks_itself_is_not_the_providers_failure():
    waits = threading.Event()

    async def before(_number: int) -> None:
        await asyncio.to_thread(waits.wait, 10)

    with world(stream(*STREAM, before=before), patience=0.2) as one:
        with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=STREAMED):
            pass
        (exchange,) = one.settled()
        waits.set()
        assert (exchange.failure, exchange.estimated) == ("", True)
        assert one.ledger.provider_failure() == ""
