"""Long bodies: none holds others up, costs much more memory than it has bytes, or stays when its request is over."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.gateway_world import ANSWER, ASK, world
from support.process_world import eventually
from support.scripted_provider import document, stream

from keystone_action.gateway import application
from keystone_action.gateway import request as bodies


def test_a_body_of_very_many_values_is_refused_and_a_text_of_such_marks_passes():
    marks = ',{}[]\\\\"\\n' * (1 << 20)
    with world(document(ANSWER)) as one:
        for many in (b"{}," * (2 << 20), b'"",' * (2 << 20), b'"' * (5 << 20) + b"," * (1 << 20)):
            found = one.ask(json=None, content=b'{"messages":[' + many + b"0]}")
            assert (found.status_code, "1,000,000 values" in found.text) == (413, True)
        assert one.behind.asked == []
        body = {**ASK, "messages": [{"role": "user", "content": marks}]}
        assert one.ask(body=body).status_code == 200
        assert one.behind.asked[0].document == body


def test_while_a_long_body_is_read_others_are_answered(monkeypatch):
    read, goes_on = application.parsed_body, threading.Event()

    def slow(body: bytes) -> Any:
        if len(body) > bodies.SHORT:
            assert goes_on.wait(60)
        return read(body)

    monkeypatch.setattr(application, "parsed_body", slow)
    long = {**ASK, "messages": [{"role": "user", "content": "x" * bodies.SHORT}]}
    with world(document(ANSWER)) as one, ThreadPoolExecutor() as pool:
        asking = [pool.submit(one.ask, body=long) for _ in range(4)]
        assert one.ask().status_code == 200
        assert one.ask("/", method="GET").status_code == 200
        goes_on.set()
        assert {found.result().status_code for found in asking} == {200}


@pytest.mark.parametrize("tells_length", [True, False])
def test_bodies_wait_until_there_is_memory_for_them(tells_length, monkeypatch):
    monkeypatch.setattr(bodies, "MEMORY_LIMIT", 1000 << 10)
    monkeypatch.setattr(bodies, "BODY_LIMIT", 1000 << 10)
    goes_on = threading.Event()

    async def waits(_number: int) -> None:
        await asyncio.to_thread(goes_on.wait, 60)

    long = json.dumps({**ASK, "messages": [{"role": "user", "content": "x" * (600 << 10)}]}).encode()
    with world(stream({"type": "message_stop"}, before=waits)) as one, ThreadPoolExecutor(8) as pool:

        def ask(content: bytes) -> int:
            return one.ask(json=None, content=content if tells_length else iter([content])).status_code

        asking = [pool.submit(ask, long) for _ in range(3)]
        assert eventually(lambda: one.behind.at_once == 1)
        time.sleep(0.3)
        assert one.behind.at_once == 1
        short = [pool.submit(one.ask) for _ in range(2)]
        assert eventually(lambda: one.behind.at_once == 3)
        goes_on.set()
        assert [found.result() for found in asking] == [200] * 3
        assert [found.result().status_code for found in short] == [200] * 2
