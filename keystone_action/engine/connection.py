"""The connection to an engine, with an end to its patience: an engine that hangs holds up neither a run nor its end.

Every request has a time limit already; one that passed it makes the engine doubtful, and what is asked of a doubtful
engine is given little time until it answers again. When a run is cancelled no request may take long, and soon after
all connections are cut: a call that waits for an answer then hears that there is none.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator, Iterator
from http.client import HTTPException
from typing import Any
from urllib.parse import quote
from weakref import WeakSet, WeakValueDictionary

from docker import APIClient
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.tls import TLSConfig
from docker.utils import parse_host
from docker.utils.config import load_general_config
from requests import ConnectionError as Unreachable
from requests import HTTPError as RefusedRequest
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.exceptions import RequestException, Timeout
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from keystone_action.engine.calls import Refused, causes, connection_error

DOUBTFUL_SECONDS = 10.0
"""For each request to an engine that did not answer the one before in time."""
_SOCKET_SCHEME = "http+unix://"


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Raises what `calls` has for it in place of what the libraries that speak with an engine raise."""
    try:
        yield
    except APIError as error:
        raise Refused(error.status_code, str(error.explanation or error)) from error
    except (DockerException, RequestException, HTTPError, HTTPException, OSError) as error:
        raise connection_error(error) from error


class EngineConnection(APIClient):
    """docker-py's interface to an engine, for `EngineClient` alone. Any thread may call `doubt`, `hurry` and `cut`."""

    def __init__(
        self, address: str, *, timeout: int = 120, tls: TLSConfig | bool = False, version: str | None = None
    ) -> None:
        self._most: float | None = None
        self._is_doubtful = False
        self._is_cut = False
        self._sockets: WeakValueDictionary[int, socket.socket] = WeakValueDictionary()
        host = str(parse_host(address, tls=bool(tls)))
        path = "/" + host.removeprefix(_SOCKET_SCHEME).lstrip("/") if host.startswith(_SOCKET_SCHEME) else None
        self._adapter = _Adapter(self._connected, path)
        super().__init__(base_url=address, timeout=timeout, tls=tls, version=version)
        self.headers.update(load_general_config().get("HttpHeaders") or {})

    def doubt(self) -> None:
        """It did not do in time what it was asked: wait no longer than it takes to see whether it answers at all."""
        self._is_doubtful = True

    def hurry(self, seconds: float) -> None:
        """From here on no request may take longer."""
        self._most = seconds

    def cut(self) -> None:
        """Every connection ends now, and there is no further one."""
        self._is_cut = True
        for reference in self._sockets.valuerefs():
            if (one := reference()) is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See `requests.Session`."""
        super().close()
        self._adapter.close()

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

    def get_adapter(self, url: str) -> BaseAdapter:  # noqa: ARG002 - all requests go to one engine
        """See `requests.Session`."""
        return self._adapter

    def layer_size(self, container: str) -> int:
        """Bytes that a container added to its image, in its own layer."""
        with self._answer(container, "json", {"size": "1"}) as response:
            return int(response.json().get("SizeRw") or 0)

    def archive(self, container: str, path: str) -> Generator[bytes, None, None]:
        """What is at this path of a container, as pieces of a tar archive. To be closed. Unlike docker-py's, it keeps
        its time limit for an engine that hangs in the middle of it."""
        with self._answer(container, "archive", {"path": path}) as response:
            yield from response.iter_content(1 << 20)

    @contextlib.contextmanager
    def _answer(self, container: str, what: str, params: dict[str, str]) -> Iterator[Response]:
        url = f"{self.base_url}/v{self.api_version}/containers/{quote(container)}/{what}"
        with self.get(url, params=params, timeout=self.timeout, stream=True) as response:
            try:
                response.raise_for_status()
            except RefusedRequest as error:
                create_api_error_from_http_exception(error)
            yield response

    def socket_of(self, attached: Any) -> socket.socket:
        """The socket of what docker-py gives for one, which may be a wrapper around it."""
        return self._sockets[attached.fileno()]

    def _connected(self, connected: socket.socket) -> None:
        self._sockets[connected.fileno()] = connected
        self._must_be_whole()

    def _must_be_whole(self) -> None:
        if self._is_cut:
            raise Unreachable("its connections were cut, since it did not answer in time")


class _Adapter(HTTPAdapter):
    """Makes the connections, over TCP or, with a path, to this Unix socket. connected: gets each socket."""

    def __init__(self, connected: Callable[[socket.socket], None], path: str | None) -> None:
        super().__init__()
        self._connected = connected
        self._pool: Any = None
        self._known: WeakSet[Any] = WeakSet()
        if path is not None:
            self._pool = HTTPConnectionPool("localhost", maxsize=10)
            self._pool.ConnectionCls = _to_unix_socket(path)

    def get_connection_with_tls_context(self, *words: Any, **named: Any) -> Any:
        """See `HTTPAdapter`."""
        pool: Any = self._pool or super().get_connection_with_tls_context(*words, **named)
        if pool not in self._known:
            self._known.add(pool)
            pool.ConnectionCls = _telling(pool.ConnectionCls, self._connected)
        return pool

    def request_url(self, request: PreparedRequest, proxies: Any) -> str:
        """See `HTTPAdapter`."""
        return str(request.path_url) if self._pool is not None else super().request_url(request, proxies)

    def close(self) -> None:
        """See `HTTPAdapter`."""
        super().close()
        if self._pool is not None:
            self._pool.close()


def _to_unix_socket(path: str) -> type[HTTPConnection]:
    class UnixConnection(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(path)

    return UnixConnection


def _telling(kind: Any, connected: Callable[[socket.socket], None]) -> type[HTTPConnection]:
    class TellingConnection(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            connected(self.sock)

    return TellingConnection
