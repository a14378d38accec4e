"""The connection to an engine, with an end to its patience: an engine that hangs holds up neither a run nor its end.

Every request has a time limit already; one that passed it makes the engine doubtful, and what is asked of a doubtful
engine is given little time until it answers again. When a run is cancelled no request may take long, and soon after
all connections are cut: a call that waits for an answer then hears that there is none.

What is needed of docker-py beyond its public interface is in this file alone.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Generator, Iterator
from http.client import HTTPException
from typing import Any

from docker import APIClient
from docker.errors import APIError, DockerException
from docker.utils.socket import SocketError
from requests import ConnectionError as Unreachable
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from requests.exceptions import RequestException, Timeout
from urllib3.exceptions import HTTPError

from keystone_action.engine.calls import Refused, causes, connection_error

DOUBTFUL_SECONDS = 10.0
"""For each request to an engine that did not answer the one before in time."""


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Raises what `errors` has for it in place of what the libraries that speak with an engine raise."""
    try:
        yield
    except APIError as error:
        raise Refused(error.status_code, str(error.explanation or error)) from error
    except (DockerException, SocketError, RequestException, HTTPError, HTTPException, OSError) as error:
        raise connection_error(error) from error


class Connection(APIClient):
    """Docker's own interface to an engine; only `EngineClient` uses it. `doubt`, `hurry` and `cut` may be called from
    any thread."""

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

    def layer_size(self, container: str) -> int:
        """Bytes that a container added to its image, in its own layer."""
        with self._answer("/containers/{0}/json", container, params={"size": 1}) as response:
            return int(response.json().get("SizeRw") or 0)

    def archive(self, container: str, path: str) -> Generator[bytes, None, None]:
        """What is at this path of a container, as pieces of a tar archive. To be closed."""
        with self._answer("/containers/{0}/archive", container, params={"path": path}, stream=True) as response:
            yield from response.iter_content(1 << 20)

    @contextlib.contextmanager
    def _answer(self, path: str, container: str, **named: Any) -> Iterator[Response]:
        client: Any = self
        with contextlib.closing(client._get(client._url(path, container), **named)) as response:
            client._raise_for_status(response)
            yield response

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


class Streams:
    """A connection that is the input and the output of a program in a container, in frames (`streams.py`)."""

    def __init__(self, attached: Any) -> None:
        # The client's objects close the connection when they are forgotten.
        self._attached = attached
        self._socket: socket.socket = getattr(attached, "_sock", attached)

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.socket`."""
        self._socket.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        """See `socket.socket`. Raises TimeoutError when nothing came in the time that was set, NoAnswer, OSError."""
        try:
            return self._socket.recv(size)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # not the connection's end
                raise
            raise connection_error(error) from error

    def sendall(self, data: bytes) -> None:
        """See `socket.socket`. Raises NoAnswer, OSError."""
        with library_errors():
            self._socket.sendall(data)

    def close(self) -> None:
        """Really: the client's objects hold on to the connection, and an engine waits for its reader while it is
        open. Never raises."""
        with contextlib.suppress(Exception):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self._attached.close()
        response = getattr(self._attached, "_response", None)
        if response is not None:
            with contextlib.suppress(Exception):
                response.close()
