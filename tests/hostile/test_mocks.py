"""Clients of an http_mock that are busier, or less patient, than any honest one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.attacks import honest, hostile
from support.mocks import RunningMock, model, running_mock, scope_in
from support.places import attached

from keystone_action.errors import OutputError
from keystone_action.services.http_mock import server as http_server
from keystone_action.services.http_mock.service import HttpMock

PIPELINE = "a client of a mock that sends thousands of requests and goes away"
BUSY = "a client of one cell's mock that never stops sending"
REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


@hostile("services", PIPELINE, held_by="replies to who has gone are forgotten", sandbox="none")
def test_a_client_that_pipelines_and_goes_away_writes_nothing_into_our_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = [{"path": "/x", "response": "x" * 2000}]
    with caplog.at_level(logging.DEBUG), running_mock(tmp_path, routes=reply) as mock:
        for _ in range(5):
            with mock.connect() as client:
                client.sendall(REQUEST * 1000)
        mock.settle()
        assert httpx.get(f"{mock.url}/x").status_code == 200
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio" and "send" in one.getMessage()] == []


@honest("services", PIPELINE, sandbox="none")
def test_a_client_that_pipelines_and_stays_gets_every_reply(tmp_path: Path) -> None:
    with running_mock(tmp_path, routes=[{"path": "/x", "response": "here"}]) as mock:
        assert mock.exchange(REQUEST * 500).count(b"here") == 500
        assert len(mock.requests()) == 500


@contextmanager
def busy_client(mock: RunningMock) -> Iterator[None]:
    stopped = threading.Event()

    def send() -> None:
        with mock.connect() as client:
            client.setblocking(True)
            while not stopped.is_set():
                client.sendall(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100_000)

    def flood() -> None:
        while not stopped.is_set():
            try:
                send()
            except OSError:
                continue

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@hostile("services", BUSY, held_by="each cell's port settles by itself", sandbox="none")
def test_a_busy_client_holds_up_nobody_elses_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOCK_SETTLE_SECONDS", 120.0)
    (tmp_path / "other").mkdir()
    with running_mock(tmp_path) as mock:
        other = HttpMock(model(), mock.server, tmp_path)
        with attached(other, scope_in(tmp_path / "other")) as place:
            requests = place.requests
            assert requests is not None
            httpx.get(place.for_agent.url)
            done = threading.Event()

            def read() -> None:
                if len(requests.requests()) == 1:
                    done.set()

            with busy_client(mock):
                reader = threading.Thread(target=read, daemon=True)
                reader.start()
                assert done.wait(60)


@hostile("services", BUSY, held_by="evidence that does not end is an error of the cell", sandbox="none")
def test_evidence_that_does_not_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_mock(tmp_path) as mock:
        monkeypatch.setattr(mock.server, "settle", lambda _port: False)
        with pytest.raises(OutputError, match="the record of api is incomplete: a client still sent"):
            mock.requests()
        monkeypatch.undo()  # once is enough
        with pytest.raises(OutputError, match="the record of api is incomplete: a client still sent"):
            mock.settle()


@honest("services", BUSY, sandbox="none")
def test_what_was_sent_before_is_waited_for(tmp_path: Path) -> None:
    with running_mock(tmp_path) as mock:
        with mock.connect() as client:
            client.sendall(REQUEST * 500)
        assert len(mock.requests()) == 500
