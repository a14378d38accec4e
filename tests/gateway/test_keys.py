"""A real key reaches the provider and nobody else, however a provider may echo it."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import traceback
from urllib.parse import quote

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, KEY, REAL, STREAM, WORTHLESS, world
from support.scripted_provider import Says, document, stream

from keystone_action.gateway.application import GatewaySettings
from keystone_action.gateway.ledger import Ledger
from keystone_action.gateway.relay import SecretBytes, shapes_of
from keystone_action.gateway.upstreams import Upstream

JSON, EVENTS = ("content-type", "application/json"), ("content-type", "text/event-stream")
ECHO = {"type": "error", "error": {"message": f"the key {REAL} is not valid"}}
SAYS_IT = {**ANSWER, "content": [{"type": "text", "text": f"your key is {REAL}"}]}
BYTES = json.dumps(SAYS_IT).encode()


@pytest.mark.parametrize(
    "says",
    [
        document(ECHO, 401),
        document(SAYS_IT),
        Says(200, [bytes([one]) for one in BYTES]),
        Says(200, [gzip.compress(BYTES)], [JSON, ("content-encoding", "gzip")]),
        Says(200, [json.dumps(ANSWER).encode()], [JSON, ("x-echo", f"Bearer {REAL}"), (f"x-{REAL}", "1")]),
        Says(302, [REAL.encode()], [("location", f"https://elsewhere/?key={REAL}")]),
        stream(*STREAM[:3], {"type": "error", "error": {"message": f"{REAL}"}}),
        stream(*STREAM[:2], {**STREAM[2], "delta": {"type": "text_delta", "text": REAL}}, *STREAM[3:]),
        Says(200, [REAL.encode()], [EVENTS]),
        Says(200, [REAL.encode()[:-1]], cut=True),
        Says(500, [b"<html>" + REAL.encode()], [("content-type", "text/html")]),
        Says(
            raw=True,
            pieces=[
                b"HTTP/1.1 103 Early Hints\r\nlink: " + REAL.encode() + b"\r\n\r\n",
                b"HTTP/1.1 200 " + REAL.encode() + b"\r\ntransfer-encoding: chunked\r\ntrailer: x-echo\r\n\r\n",
                b"2;x=" + REAL.encode() + b"\r\n{}\r\n0\r\nx-echo: " + REAL.encode() + b"\r\n\r\n",
            ],
        ),
        Says(raw=True, pieces=[REAL.encode() + b" garbage\r\n\r\n"]),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_it_is_in_nothing_that_comes_back_or_is_kept(says, streams, caplog):
    caplog.set_level(logging.DEBUG)
    with world(says) as one:
        found = b""
        try:
            with httpx.stream(
                "POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json={**ASK, "stream": streams}
            ) as answer:
                found = repr(answer.headers.raw).encode() + answer.reason_phrase.encode()
                for piece in answer.iter_raw():
                    found += piece
        except httpx.RemoteProtocolError as error:
            found += "".join(traceback.format_exception(error)).encode()
        assert one.behind.asked[0].header("x-api-key") == REAL
        kept = repr(one.settled()) + one.ledger.provider_failure() + repr(one.ledger.refused)
        # A half of a key that a cut left is not one; its whole is nowhere.
        assert REAL not in found.decode("utf-8", "replace") + kept + repr(one.opened.defects)
        if says.status == 401:
            assert WORTHLESS.encode() in found
    assert REAL not in repr([record.getMessage() for record in caplog.records])


def test_what_holds_it_does_not_show_it():
    upstream = Upstream("anthropic", "anthropic", "https://example.com", REAL)
    settings = GatewaySettings(WORTHLESS, {"anthropic": upstream}, Ledger())
    assert REAL not in repr(upstream) + repr(settings) + str(settings)
    assert WORTHLESS not in repr(settings)
    assert REAL not in "".join(traceback.format_exception(RuntimeError(settings)))


def test_it_never_goes_where_a_redirect_leads():
    with world(document(ANSWER)) as elsewhere, world(Says(307, [b""], [("location", elsewhere.behind.url)])) as one:
        assert one.ask().status_code == 502
        assert elsewhere.behind.asked == []


@pytest.mark.parametrize("key", ["a/b+c=d&e", 'quo"te\\d', "sk-ü"])
def test_it_is_taken_out_in_the_shapes_of_json_and_of_urls(key):
    masked = SecretBytes(shapes_of([key], "[key]"))
    escaped = json.dumps(key)[1:-1]
    for shape in (key, escaped, escaped.replace("/", "\\/"), quote(key, safe="")):
        assert masked.replace(f"<{shape}>".encode()) == b"<[key]>"


def test_a_key_of_a_few_letters_is_not_taken_for_one():
    assert shapes_of(["", "x", "abc"], "[key]") == {}


@pytest.mark.parametrize("key", [REAL + "\n", REAL + "\x00", "sk-ü"])
def test_a_key_that_no_header_can_hold_is_said_to_be_one(key):
    with world(document(ANSWER)) as one:
        gateways, upstream = one.gateways, Upstream("anthropic", "anthropic", one.behind.url, key)
        opened = asyncio.run(gateways.open(GatewaySettings(WORTHLESS, {"anthropic": upstream}, one.ledger)))
        found = httpx.post(f"http://127.0.0.1:{opened.port}/anthropic/v1/messages", headers=KEY, json=ASK, timeout=30)
        assert (found.status_code, "can't stand in a header" in found.text) == (401, True)
        assert key.strip() not in found.text
        assert one.behind.asked == []
