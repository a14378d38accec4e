"""A fake GitHub: real HTTP on a random port, its state in memory, held to GitHub's published OpenAPI description.

    with FakeGitHub() as github:
        github.state.add_pull(7)
        client = GitHubClient.from_environ(github.environ("write"), token=github.token("write"), log=print)

Every request that GitHub does not describe, and every answer of our own that it would not give, is an AssertionError
when the block ends. `fault` makes things go wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from support.github_description import description
from support.github_faults import Fault
from support.github_routes import Asked, Result, answer, error, page
from support.github_state import KINDS, GitHubState, Token

_API_VERSION = "2022-11-28"
_RATE_LIMIT = 1000


@dataclass(frozen=True)
class Received:
    """One request as it came in; header names in lower case. path: without the query and the API's prefix; of the
    artifacts' store `/store/<id>`."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class FakeGitHub:
    """prefix: `/api/v3` is what an Enterprise Server has. certificate: a PEM file with a key and its certificate, for
    https. page_limit: entries of a page at most, whatever is asked for. same_host: artifacts are served by the address
    of the API, as an Enterprise Server does. host: the address to listen on; containers reach this machine by the
    address of their bridge, not by loopback. clients: are closed with this server."""

    def __init__(
        self,
        *,
        prefix: str = "",
        certificate: Path | None = None,
        page_limit: int = 100,
        same_host: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self.state = GitHubState()
        self.requests: list[Received] = []
        self.violations: list[str] = []
        self.prefix = prefix
        self.page_limit = page_limit
        self._same_host = same_host
        self._certificate = certificate
        self._faults: list[Fault] = []
        self._following: list[tuple[Fault, Callable[[], None]]] = []
        self._lock = threading.RLock()
        self._released = threading.Event()
        self.clients = contextlib.ExitStack()
        self._servers: list[ThreadingHTTPServer] = []

    def __enter__(self) -> FakeGitHub:
        for _ in ("api", "store"):
            owner = self

            class Handler(_Handler):
                github = owner

            server = _Server((self._host, 0), Handler)
            if self._certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self._certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            self._servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.clients.close()
        self._released.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        assert kind is not None or self.violations == [], "GitHub describes no such thing"

    @property
    def origin(self) -> str:
        """Scheme, host and port of the API."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{self._host}:{self._servers[0].server_address[1]}"

    @property
    def url(self) -> str:
        """What GITHUB_API_URL is."""
        return self.origin + self.prefix

    def token(self, kind: str) -> str:
        """The token of a kind: write, read-only, app, person or none."""
        return KINDS[kind]

    def environ(self, kind: str = "write") -> dict[str, str]:
        """The variables that a job has of this server and of a token."""
        return {
            "GITHUB_API_URL": self.url,
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": self.state.repository,
            "INPUT_GITHUB-TOKEN": self.token(kind),
        }

    def fault(self, method: str, path: str, **how: Any) -> Fault:
        """Has something go wrong; see Fault. The first that fits strikes."""
        fault = Fault(method, path, **how)
        with self._lock:
            self._faults.append(fault)
        return fault

    def after(self, method: str, path: str, action: Callable[[], None], *, times: int | None = 1) -> None:
        """Does something once a request that fits has been served, before it is answered: what others do meanwhile."""
        self._following.append((Fault(method, path, times=times), action))

    def calls(self) -> list[str]:
        """What was asked for, as `GET /user`."""
        with self._lock:
            return [f"{one.method} {one.path}" for one in self.requests]

    def store_url(self, artifact_id: int) -> str:
        """Where the zip of an artifact is served, with the signature that opens it."""
        base = self.origin
        if not self._same_host:
            host = "localhost" if self._host == "127.0.0.1" else self._host
            base = f"{base.partition(':')[0]}://{host}:{self._servers[1].server_address[1]}"
        return f"{base}/store/{artifact_id}?sig={_signature(artifact_id)}"

    def next_fault(self, received: Received) -> Fault | None:
        """Records the request, and says what is to go wrong with it."""
        with self._lock:
            self.requests.append(received)
            return next((one for one in self._faults if one.strikes(received.method, received.path)), None)

    def serve(self, received: Received) -> tuple[int, dict[str, str], bytes]:
        """What the real one would answer."""
        with self._lock:
            try:
                answered = self._serve(received)
                for action in [
                    each for which, each in self._following if which.strikes(received.method, received.path)
                ]:
                    action()
            except Exception as error:
                self.violations.append(f"the fake broke: {error!r}")
                raise
            return answered

    def _serve(self, received: Received) -> tuple[int, dict[str, str], bytes]:
        if received.path.startswith("/store/"):
            return self._serve_store(received)
        if received.path == "/graphql":
            return self._serve_viewer(received)
        return self._serve_api(received)

    def hold(self) -> None:
        """Blocks until the server is closed: a client that never gets its answer."""
        self._released.wait(60)

    @property
    def released(self) -> bool:
        """Whether the server was closed."""
        return self._released.is_set()

    def _serve_api(self, received: Received) -> tuple[int, dict[str, str], bytes]:
        path = received.path if received.path == "/user" else f"/repos/{self.state.repository}{received.path}"
        operation = description().operation(received.method, path)
        if operation is None:
            self.violations.append(f"there is no operation {received.method} {path}")
            return _encoded(404, {"message": "Not Found"})
        wrong = description().wrong_request(operation, received.query, received.body) + _wrong_headers(received)
        if wrong:
            self.violations += wrong
            return _encoded(400, {"message": "; ".join(wrong)})
        token, refused = self._authenticate(received)
        asked = Asked(operation, received.query, received.body, token, self.store_url)
        result = refused or answer(self.state, asked)
        document, headers = result.document, dict(result.headers)
        if result.entries is not None:
            document, links = page(result, received.query, self.url + path, most=self.page_limit)
            headers |= links
        self.violations += description().wrong_answer(operation, result.status, document)
        status, more, body = _encoded(result.status, document)
        return status, {**more, **headers}, body

    def _authenticate(self, received: Received) -> tuple[Token | None, Result | None]:
        given = received.headers.get("authorization", "")
        if not given:
            return None, None
        token = self.state.tokens.get(given.removeprefix("Bearer "))
        return token, None if token else error(401, "Bad credentials")

    def _serve_viewer(self, received: Received) -> tuple[int, dict[str, str], bytes]:
        """The GraphQL API is not in the description: this is all that we ask of it."""
        if "viewer" not in str(received.body.get("query")):
            self.violations.append(f"there is no GraphQL query like {received.body}")
        token, refused = self._authenticate(received)
        if token is None:
            return _encoded(
                401, refused.document if refused else {"message": "This endpoint requires you to be authenticated."}
            )
        return _encoded(200, {"data": {"viewer": {"login": token.login}}})

    def _serve_store(self, received: Received) -> tuple[int, dict[str, str], bytes]:
        """A store of blobs takes its signature, and refuses requests that bring another proof as well."""
        artifact = self.state.artifacts.get(int(received.path.removeprefix("/store/")))
        if artifact is None or received.query.get("sig") != _signature(artifact.id):
            return 403, {"content-type": "application/xml"}, b"<Error><Code>AuthenticationFailed</Code></Error>"
        if "authorization" in received.headers and not self._same_host:
            return 400, {"content-type": "application/xml"}, b"<Error><Code>InvalidAuthenticationInfo</Code></Error>"
        return 200, {"content-type": "application/zip"}, artifact.content


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the midst of things here; that is what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written apart, and would wait for each other
    github: FakeGitHub

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def _handle(self) -> None:
        received = self._received()
        fault = self.github.next_fault(received)
        if fault is None:
            self._send(*self.github.serve(received))
            return
        if fault.done:
            self.github.serve(received)
        if fault.how == "hang":
            self.github.hold()
            self.close_connection = True
        elif fault.how == "drip":
            self._drip()
        elif fault.how == "reset":
            self._reset()
        elif fault.how == "cut":
            self._send(200, {"content-type": "application/json"}, b'{"id": 1', missing=100)
        else:
            self._send(*_faulty(fault))

    def _received(self) -> Received:
        parts = urlsplit(self.path)
        path = self.path_of(parts.path)
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Received(self.command, path, dict(parse_qsl(parts.query)), headers, json.loads(raw) if raw else None)

    def path_of(self, path: str) -> str:
        """Below the API and its repository; what lies outside of the prefix stays as it is."""
        if self.github.prefix and path == self.github.prefix.removesuffix("/v3") + "/graphql":
            return "/graphql"
        if self.github.prefix and path.startswith(self.github.prefix + "/"):
            path = path.removeprefix(self.github.prefix)
        elif self.github.prefix and not path.startswith("/store/"):
            return f"/outside{path}"
        repository = re.match(r"/repos/[^/]+/[^/]+", path)
        own = f"/repos/{self.github.state.repository}"
        if repository and unquote(repository[0]).lower() == own.lower():
            return path[len(repository[0]) :]
        return path

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, *, missing: int = 0) -> None:
        now = int(time.time())
        self.send_response_only(status)
        defaults = {
            "date": formatdate(now, usegmt=True),
            "x-ratelimit-limit": str(_RATE_LIMIT),
            "x-ratelimit-remaining": str(_RATE_LIMIT - 1),
            "x-ratelimit-reset": str(now + 3600),
        }
        if "reset-in" in headers:
            defaults |= {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(now + int(headers["reset-in"]))}
        for name, value in {**defaults, **headers, "content-length": str(len(body) + missing)}.items():
            if name != "reset-in":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if missing:
            self.close_connection = True

    def _drip(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nx-slow: " + b"a" * 10_000:
                if self.github.released:
                    return
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _encoded(status: int, document: Any) -> tuple[int, dict[str, str], bytes]:
    body = b"" if document is None else json.dumps(document).encode()
    return status, {"content-type": "application/json; charset=utf-8"}, body


def _faulty(fault: Fault) -> tuple[int, dict[str, str], bytes]:
    body = json.dumps({"message": fault.message}).encode() if fault.body is None else fault.body
    headers = {"content-type": "application/json; charset=utf-8", **fault.headers}
    if fault.reset_in is not None:
        headers["reset-in"] = str(fault.reset_in)
    return fault.status, headers, body


def _wrong_headers(received: Received) -> list[str]:
    """What GitHub asks of every request, or recommends to all."""
    expected = {"accept": "application/vnd.github+json", "x-github-api-version": _API_VERSION}
    found = [
        f"{name} is {received.headers.get(name)}"
        for name, value in expected.items()
        if received.headers.get(name) != value
    ]
    return found + ([] if received.headers.get("user-agent") else ["there is no user-agent"])


def _signature(artifact_id: int) -> str:
    return hashlib.sha256(f"store {artifact_id}".encode()).hexdigest()
