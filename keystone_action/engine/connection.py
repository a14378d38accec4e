"""The engine's client, with an end to its patience: an engine that hangs holds up neither a run nor its end.

Every request has a time limit already; one that passed it makes the engine doubtful, and what is asked of a doubtful
engine is given little time until it answers again. When a run is cancelled no request may take long, and soon after
all connections are cut: whatever waits for an answer then hears that there is none.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from docker import APIClient, DockerClient
from requests import ConnectionError as Unreachable
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.exceptions import Timeout

from keystone_action.engine.errors import causes

DOUBTFUL_SECONDS = 10.0
"""For each request to an engine that did not answer the one before in time."""


class EngineApi(APIClient):
    """Docker's own interface to an engine. `doubt`, `hurry` and `cut` may be called from any thread."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._most: float | None = None
        self._is_doubtful = False
        self._is_cut = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._watched: set[int] = set()
        super().__init__(*arguments, **named)

    def doubt(self) -> None:
        """It did not do in time what it was asked: wait no longer than it takes to see whether it answers at all."""
        self._is_doubtful = True

    def hurry(self, seconds: float) -> None:
        """From here on no request may take longer."""
        self._most = seconds

    def cut(self) -> None:
        """Every connection ends now, and there is no further one."""
        self._is_cut = True
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def send(self, request: PreparedRequest, **named: Any) -> Response:
        """See `requests.Session`."""
        self._must_be_whole()
        limits = [named.get("timeout"), self._most, DOUBTFUL_SECONDS if self._is_doubtful else None]
        named["timeout"] = min((limit for limit in limits if limit is not None), default=None)
        try:
            response = super().send(request, **named)
        except Exception as error:
            self._is_doubtful = any(isinstance(cause, TimeoutError | Timeout) for cause in causes(error))
            raise
        self._is_doubtful = False
        return response

    def _must_be_whole(self) -> None:
        if self._is_cut:
            raise Unreachable("its connections were cut, since it did not answer in time")

    def get_adapter(self, url: str) -> BaseAdapter:
        """See `requests.Session`."""
        adapter: Any = super().get_adapter(url)
        if id(adapter) not in self._watched:
            self._watched.add(id(adapter))
            find = adapter.get_connection_with_tls_context
            adapter.get_connection_with_tls_context = lambda *words, **named: self._watch(find(*words, **named))
        found: BaseAdapter = adapter
        return found

    def _watch(self, pool: Any) -> Any:
        """Have every connection that this pool makes tell its socket: a response may outlive its connection."""
        if id(pool) in self._watched:
            return pool
        self._watched.add(id(pool))
        make = pool._new_conn

        def made() -> Any:
            connection = make()
            connect = connection.connect

            def connected() -> None:
                connect()
                self._sockets.add(connection.sock)
                self._must_be_whole()

            connection.connect = connected
            return connection

        pool._new_conn = made
        return pool


class EngineClient(DockerClient):
    """Docker's client over an `EngineApi`."""

    def __init__(self, **named: Any) -> None:
        self.api = EngineApi(**named)


def doubt(api: Any) -> None:
    """See `EngineApi`. A client that somebody else made has only its own patience."""
    if isinstance(api, EngineApi):
        api.doubt()


def hurry(api: Any, seconds: float, *, cut_after: float) -> None:
    """No request may take longer from here on, and all of them end after so many seconds."""
    if not isinstance(api, EngineApi):
        api.timeout = seconds
        return
    api.hurry(seconds)
    _timer(api, cut_after).start()


@contextlib.contextmanager
def cut_after(api: Any, seconds: float) -> Iterator[None]:
    """Cut the connections when the body takes longer."""
    if not isinstance(api, EngineApi):
        yield
        return
    timer = _timer(api, seconds)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _timer(api: EngineApi, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, api.cut)
    timer.daemon = True
    timer.name = "keystone-engine-deadline"
    return timer
