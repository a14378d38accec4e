"""Clients that leave, do not read, come in crowds, and the end of the gateway itself: all of it is counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.gateway_world import ANSWER, ASK, KEY, STREAM, WORTHLESS, World, world
from support.process_world import eventually
from support.scripted_provider import Says, document, stream

from keystone_action.gateway import application, server
from keystone_action.gateway.application import AT_ONCE, GatewaySettings
from keystone_action.gateway.exchange import Tokens
from keystone_action.gateway.ledger import BudgetLimits, Ledger
from keystone_action.gateway.upstreams import UpstreamClient

STREAMED = {**ASK, "stream": True}


class Gate:
    """Lets the pieces of an answer through when it is opened. after: how many pass anyway."""

    def __init__(self, after: int = 0) -> None:
        self._after, self._opened = after, threading.Event()

    async def __call__(self, number: int) -> None:
        while number >= self._after and not self._opened.is_set():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)

    def open(self) -> None:
        self._opened.set()


def hang_up(one: World, body: dict[str, Any] = STREAMED) -> None:
    """Ask, read one piece, and leave."""
    with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=body) as found:
        assert next(found.iter_raw())


def test_an_agent_that_hangs_up_early_pays_all_the_same():
    gate = Gate(1)
    with world(stream(*STREAM, before=gate)) as one:
        hang_up(one)
        assert one.ledger.spent.all_tokens == 0
        gate.open()
        (exchange,) = one.settled()
        assert exchange.answer is not None
        assert (exchange.answer.text, exchange.estimated) == ("done", False)
        assert one.ledger.spent.tokens == Tokens(10, 0, 0, 2)


def test_it_pays_as_well_when_it_does_not_wait_for_the_first_byte():
    gate = Gate()
    call = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
    with world(document({**ANSWER, "content": [*ANSWER["content"], call]}, before=gate)) as one:
        with pytest.raises(httpx.ReadTimeout):
            one.ask(timeout=0.3)
        time.sleep(0.3)  # until it is seen that the client has left
        gate.open()
        (exchange,) = one.settled()
        assert one.ledger.spent.tokens == Tokens(10, 0, 0, 2)
        # The client will ask again. It acted on nothing of this answer: its calls are nobody's.
        assert exchange.answer is not None
        assert (exchange.answer.calls, exchange.answer.text, one.ledger.spent.tool_calls) == ((), "", 0)


def test_calls_of_an_answer_that_began_count_to_its_end():
    gate = Gate(1)
    call = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
    whole = json.dumps({**ANSWER, "content": [call]}).encode()
    with world(Says(200, [whole[:-1], whole[-1:]], before=gate)) as one:
        hang_up(one)  # it has all but the last brace
        gate.open()
        (exchange,) = one.settled()
        assert exchange.answer is not None
        assert [one.id for one in exchange.answer.calls] == ["c1"]


def test_a_client_that_waits_to_be_told_to_continue_is_told():
    body = json.dumps(ASK).encode()
    with world(document(ANSWER)) as one, socket.create_connection(("127.0.0.1", one.opened.port), timeout=10) as asking:
        head = f"POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: {WORTHLESS}\r\nexpect: 100-continue\r\n"
        asking.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        assert asking.recv(1000).startswith(b"HTTP/1.1 100 ")
        asking.sendall(body)
        assert asking.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert one.behind.asked[0].header("expect") is None


def test_where_the_rest_does_not_come_in_time_its_cost_is_estimated():
    with world(stream(*STREAM, before=Gate(3)), patience=0.3) as one:
        hang_up(one, {**STREAMED, "pad": "x" * 4_000})
        (exchange,) = one.settled()
        assert (exchange.estimated, exchange.tokens) == (True, Tokens(10, 0, 0, 1))
        assert exchange.failure == ""


def test_an_answer_that_never_began_is_estimated_too():
    with world(Says(raw=True, before=Gate()), patience=0.3) as one:
        with pytest.raises(httpx.ReadTimeout):
            one.ask(body={**ASK, "pad": "x" * 4_000}, timeout=0.3)
        (exchange,) = one.settled()
        assert (exchange.status, exchange.answer, exchange.estimated) == (None, None, True)
        assert exchange.tokens.uncached is not None
        assert exchange.tokens.uncached > 1_000
        assert one.ledger.spent.cost_usd == exchange.cost_usd != 0
        assert not one.ledger.answered


@pytest.mark.parametrize("pieces", [0, 2])
@pytest.mark.waits
def test_a_provider_that_said_nothing_until_the_client_left_is_at_fault(pieces, monkeypatch):
    monkeypatch.setattr(application, "SILENCE_SECONDS", 0.5)
    says = stream(*STREAM, before=Gate(pieces)) if pieces else Says(raw=True, before=Gate())
    with world(says, patience=0.2) as one:
        with pytest.raises(httpx.ReadTimeout):
            one.ask(body={**STREAMED, "pad": "x" * 4_000}, timeout=1)
        (exchange,) = one.settled()
        assert (exchange.failure[:16], exchange.failure[-2:], exchange.estimated) == ("no answer after ", " s", True)
        assert one.ledger.provider_failure() == f"the provider failed: {exchange.failure} after 1 try"
        assert one.ledger.spent.cost_usd == exchange.cost_usd != 0
        assert one.ledger.answered is bool(pieces)


@pytest.mark.waits
def test_a_client_that_left_early_or_was_answered_after_all_blames_nobody(monkeypatch):
    monkeypatch.setattr(application, "SILENCE_SECONDS", 0.5)
    gate = Gate()
    with world(document(ANSWER, before=gate), patience=20) as one:
        with pytest.raises(httpx.ReadTimeout):
            one.ask(timeout=1)
        gate.open()
        assert one.settled()[0].failure == ""
    with world(Says(raw=True, before=Gate()), patience=1) as one:
        with pytest.raises(httpx.ReadTimeout):
            one.ask(timeout=0.1)
        assert one.settled()[0].failure == ""


def test_a_call_that_arrived_before_the_client_left_counts():
    use = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
    events = [
        STREAM[0],
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**use, "id": "c2"}},
        {"type": "message_stop"},
    ]
    with world(stream(*events, before=Gate(5)), patience=0.2) as one:
        with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=STREAMED) as found:
            pieces = found.iter_raw()
            while b"c2" not in next(pieces):
                pass
        (exchange,) = one.settled()
        assert exchange.answer is not None
        assert [(call.id, call.arguments) for call in exchange.answer.calls] == [("c1", {"a": 1})]


def test_a_client_that_does_not_read_does_not_hold_an_answer_up(monkeypatch):
    monkeypatch.setattr(server, "UNREAD_SECONDS", 0.5)
    much = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 1_000_000}}
    with world(stream(*STREAM[:2], *[much] * 30, *STREAM[3:])) as one:
        body = json.dumps(STREAMED).encode()
        head = f"POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: {WORTHLESS}\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", one.opened.port)) as deaf:
            deaf.sendall(head.encode() + body)
            assert eventually(lambda: one.ledger.spent.requests == 1)
            (exchange,) = one.settled()
        assert (exchange.estimated, one.ledger.spent.tokens) == (False, Tokens(10, 0, 0, 2))


def test_what_is_under_way_when_the_gateway_is_closed_is_counted_as_far_as_it_came():
    with world(stream(*STREAM, before=Gate(3))) as one:
        with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=STREAMED) as found:
            pieces = found.iter_raw()
            while b"text_delta" not in next(pieces):
                pass
            one.close()
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        assert one.ledger.under_way == 0
        (exchange,) = one.ledger.exchanges
        assert exchange.answer is not None
        assert (exchange.answer.text, exchange.estimated, exchange.tokens.uncached) == ("done", True, 10)
        with pytest.raises(httpx.ConnectError):
            one.ask()
        one.close()  # again


def test_when_the_whole_server_stops_the_ledger_is_closed_as_well():
    with world(stream(*STREAM, before=Gate(1))) as one:
        with httpx.stream("POST", f"{one.url}/anthropic/v1/messages", headers=KEY, json=STREAMED) as found:
            pieces = found.iter_raw()
            assert next(pieces)
            one.gateways.stop()
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        assert one.ledger.under_way == 0
        assert one.ledger.spent.tokens.uncached == 10


@pytest.mark.slow
def test_two_hundred_streams_at_once_are_answered_thirty_two_at_a_time():
    assert AT_ONCE == 32
    gate = Gate(1)
    with world(stream(*STREAM, before=gate)) as one, ThreadPoolExecutor(200) as pool:
        asking = [pool.submit(one.ask, body={**STREAMED, "number": number}, timeout=60) for number in range(200)]
        assert eventually(lambda: one.behind.at_once == AT_ONCE)
        assert one.ledger.spent.requests == AT_ONCE
        gate.open()
        assert {found.result().status_code for found in asking} == {200}
        assert one.behind.most_at_once == AT_ONCE
        assert one.ledger.spent.tokens == Tokens(2_000, 0, 0, 400)


def test_only_what_is_under_way_can_exceed_a_limit():
    gate = Gate()
    with (
        world(document(ANSWER, before=gate), limits=BudgetLimits(max_tokens=12)) as one,
        ThreadPoolExecutor(50) as pool,
    ):
        asking = [pool.submit(one.ask, body={**ASK, "number": number}, timeout=60) for number in range(50)]
        assert eventually(lambda: one.behind.at_once == AT_ONCE)
        gate.open()
        statuses = sorted(found.result().status_code for found in asking)
        assert statuses == [200] * AT_ONCE + [400] * (50 - AT_ONCE)
        assert one.ledger.spent.tokens == Tokens(320, 0, 0, 64)
        assert one.ledger.stopped.endswith(" of 12 tokens")
        assert len(one.spent) == 50 - AT_ONCE


def test_a_client_that_left_while_it_waited_for_its_turn_is_not_asked_for():
    gate = Gate()
    with world(document(ANSWER, before=gate)) as one, ThreadPoolExecutor(AT_ONCE) as pool:
        asking = [pool.submit(one.ask, body={**ASK, "number": number}, timeout=60) for number in range(AT_ONCE)]
        assert eventually(lambda: one.behind.at_once == AT_ONCE)
        with pytest.raises(httpx.ReadTimeout):
            one.ask(body={**ASK, "number": -1}, timeout=0.3)
        gate.open()
        assert {found.result().status_code for found in asking} == {200}
        one.settled()
        assert len(one.behind.asked) == AT_ONCE


def test_more_connections_than_there_are_slots_for_wait_their_turn():
    with world(document(ANSWER)) as one:
        idle = [socket.create_connection(("127.0.0.1", one.opened.port)) for _ in range(256)]
        with pytest.raises(httpx.ReadTimeout):
            one.ask(timeout=0.3)
        for connection in idle:
            connection.close()
        assert one.ask().status_code == 200


@pytest.mark.waits
def test_pipelined_requests_are_answered_in_turn():
    body = json.dumps(ASK).encode()
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: {WORTHLESS}\r\ncontent-length: {len(body)}\r\n\r\n"
    with world(document(ANSWER)) as one:
        found = one.say(body=(head.encode() + body) * 5, end=False)
        assert found.count(b"HTTP/1.1 200 ") == 5
        assert one.behind.most_at_once == 1
        assert len(one.ledger.exchanges) == 5


def leave(one: World, whole: bytes, choice: random.Random) -> None:
    """A request that is sent in two parts; its client reads nothing, a piece, or the whole answer, and hangs up."""
    cut, reads = choice.randrange(1, len(whole)), choice.choice([b"", b"HTTP", b"message_stop", b"0\r\n\r\n"])
    with socket.create_connection(("127.0.0.1", one.opened.port), timeout=30) as connection:
        connection.sendall(whole[:cut])
        connection.sendall(whole[cut:])
        found = b""
        while reads not in found and (piece := connection.recv(65536)):
            found += piece
        time.sleep(choice.random() / 500)
        if choice.random() < 0.5:  # it does not even say that it goes
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_what_a_provider_was_asked_is_counted_whenever_a_client_leaves():
    """A sum was one answer short once, and nobody could say why."""
    choice, body = random.Random(20), json.dumps(STREAMED).encode()
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: {WORTHLESS}\r\ncontent-length: {len(body)}\r\n\r\n"
    with world(stream(*STREAM)) as one, ThreadPoolExecutor(8) as pool:
        for leaving in [pool.submit(leave, one, head.encode() + body, choice) for _ in range(100)]:
            leaving.result()
        counted = sum(not exchange.estimated for exchange in one.settled())
        assert counted == len(one.ledger.exchanges) == len(one.behind.asked)
        assert one.ledger.spent.tokens == Tokens(10 * counted, 0, 0, 2 * counted)


def test_our_own_defect_is_kept_and_never_tells_what_it_was_about(monkeypatch):
    def broken(*_: Any) -> None:
        raise ValueError("about sk-real-key-of-ours-0001")

    monkeypatch.setattr(UpstreamClient, "stream", broken)
    with world(is_broken=True) as one:
        found = one.ask()
        assert (found.status_code, found.json()) == (500, {"error": {"message": "the gateway is broken"}})
        (defect,) = one.opened.defects
        assert "ValueError at test_leaving.py:" in defect
        assert "sk-real" not in defect
        assert one.ledger.under_way == 0


@pytest.mark.parametrize("place", ["a connection", "a request"])
def test_a_defect_that_one_cell_provokes_is_no_other_cells(place, monkeypatch):
    def broken(*_: Any) -> None:
        raise ValueError

    alone = {**KEY, "connection": "close"}
    with world(document(ANSWER), is_broken=True) as one:
        other = asyncio.run(one.gateways.open(GatewaySettings(WORTHLESS, {}, Ledger())))
        with monkeypatch.context() as patched:
            if place == "a request":
                patched.setattr(UpstreamClient, "stream", broken)
            else:
                patched.setattr(server.AgentConnection, "data_received", broken)
            for _ in range(200):
                with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
                    assert one.ask(headers=alone).status_code == 500
        assert eventually(lambda: len(one.opened.defects) == 100)
        assert "ValueError" in one.opened.defects[0]
        assert other.defects == ()
        assert one.ask(headers=alone).status_code == 200


def test_a_gateway_that_ends_by_itself_is_a_defect(monkeypatch):
    async def ends(*_: Any) -> AsyncIterator[Any]:
        raise ValueError
        yield

    with world() as one:
        monkeypatch.setattr(server, "accept", ends)
        opened = asyncio.run(one.gateways.open(GatewaySettings(WORTHLESS, {}, Ledger())))
        asyncio.run(one.gateways.close(opened))
        assert opened.defects == ("it ended by itself: ValueError()",)
        asyncio.run(one.gateways.close(one.opened))
        assert one.opened.defects == ()
