"""An engine that hangs, seen by its client; and failures of this machine, which are not the engine's."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3
from docker import DockerClient
from support.engine_proxy import EngineProxy

from keystone_action.engine import connection as docker_connection
from keystone_action.engine.calls import ask_here, engine_errors
from keystone_action.engine.client import EngineClient
from keystone_action.engine.connect import connect
from keystone_action.engine.connection import library_errors
from keystone_action.errors import SandboxError, ServiceError


@pytest.fixture
def proxy(engine: DockerClient, tmp_path: Path) -> Iterator[EngineProxy]:
    made = EngineProxy(tmp_path / "engine.sock")
    yield made
    made.close()


@pytest.fixture(params=["socket", "tcp"])
def client(engine: DockerClient, tmp_path: Path, request: Any) -> Iterator[tuple[EngineProxy, Any]]:
    proxy = EngineProxy(tmp_path / "engine.sock" if request.param == "socket" else None)
    made = connect({"DOCKER_HOST": proxy.address}, timeout=3600)
    assert isinstance(made, EngineClient)
    yield proxy, made
    made.close()
    proxy.close()


def failure_of(call: Any) -> str:
    with pytest.raises(SandboxError) as caught, engine_errors("can't ask"):
        call()
    return caught.value.message


@pytest.mark.docker
def test_a_cut_ends_what_waits_for_an_answer(client: tuple[EngineProxy, Any]) -> None:
    proxy, made = client
    proxy.silence()
    threading.Timer(0.5, made._connection.cut).start()
    assert "the container engine does not answer" in failure_of(made.facts)  # which would wait for an hour
    assert "its connections were cut" in failure_of(made.facts)


@pytest.mark.docker
def test_a_cut_ends_a_stream(client: tuple[EngineProxy, Any]) -> None:
    _, made = client
    events = made._connection.events()
    threading.Timer(0.5, made._connection.cut).start()

    def read() -> None:
        with library_errors():
            list(events)
        made.facts()

    assert "container engine" in failure_of(read)


@pytest.mark.docker
def test_in_a_hurry_no_request_takes_long(client: tuple[EngineProxy, Any]) -> None:
    proxy, made = client
    made.hurry(20.0, cut_after=3600)
    assert made.facts()["SystemTime"]
    made.hurry(0.2, cut_after=3600)
    proxy.silence()
    assert "timed out" in failure_of(made.facts).lower()


@pytest.mark.docker
def test_a_doubtful_engine_gets_little_time_until_it_answers(
    client: tuple[EngineProxy, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, made = client
    monkeypatch.setattr(docker_connection, "DOUBTFUL_SECONDS", 5.0)
    made.doubt()
    assert made.facts()["SystemTime"]
    monkeypatch.setattr(docker_connection, "DOUBTFUL_SECONDS", 0.2)
    made._connection.timeout = 0.2
    proxy.silence()
    assert "timed out" in failure_of(made.facts).lower()
    made._connection.timeout = 3600
    assert "timed out" in failure_of(made.facts).lower()


@pytest.mark.docker
def test_cleaning_up_that_is_done_in_time_cuts_nothing(client: tuple[EngineProxy, Any]) -> None:
    proxy, made = client
    with made.cut_after(3600):
        made.facts()
    assert made.facts()["SystemTime"]
    proxy.silence()
    with made.cut_after(0.5):
        assert "container engine" in failure_of(made.facts)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/archive.part")
NO_FILES = requests.ConnectionError(urllib3.exceptions.ProtocolError("aborted", OSError(errno.EMFILE, "too many")))
RESET = requests.ConnectionError(
    urllib3.exceptions.ProtocolError("aborted", ConnectionResetError(104, "reset by peer"))
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, "can't copy: this machine failed: No space left on device (/tmp/archive.part)"),
        (NO_FILES, "can't copy: this machine failed: Too many open files"),
        (RESET, "can't copy: the container engine does not answer"),
        (FileNotFoundError(2, "no such file"), "can't copy: the container engine does not answer"),
    ],
)
def test_what_this_machine_lacks_is_not_the_engines_fault(error: Exception, said: str) -> None:
    def fails() -> None:
        with library_errors():
            raise error

    with pytest.raises(SandboxError) as caught, engine_errors("can't copy"):
        fails()
    assert caught.value.message.startswith(said)
    with pytest.raises(ServiceError) as service:
        ask_here(fails, "can't copy")
    assert service.value.message.startswith(said)
