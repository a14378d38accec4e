"""One try of one request: bounded in time by one deadline, bounded in size, and it says whether it was sent.

The client is synchronous, its connections are not: an event loop in a thread of its own holds them, since only there
can a try be broken off wherever it is. httpx's own time limits are of single steps, and a server that sends a byte now
and then would keep a client for ever.

A GitHub Enterprise Server, or a proxy that opens connections, is often signed by a company's own authority: the input
`ca-bundle` adds certificates to the ones that are trusted.
"""

from __future__ import annotations

import functools
import os
import re
import ssl
import stat
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action import __version__
from keystone_action.github.api.answers import ApiAnswer, server_words
from keystone_action.github.api.errors import BadSetting

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

MAX_ERROR = 64 * 1024
"""Bytes that are read of an answer that is an error."""
_SENDING = "http11.send_request_headers.started"
_ACCEPT = "application/vnd.github+json"
_API_VERSION = "2022-11-28"


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A try without an answer. reason: completes "GitHub …". sent: the request may have reached the server. lasting:
    another try would fail as well. untrusted: that is because of the server's certificate."""

    reason: str
    sent: bool
    lasting: bool = False
    untrusted: bool = False


@dataclass(slots=True)
class _Exchange:
    """How far a try has come. status: 0 until the head of an answer is there."""

    sent: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Called by httpx at each step."""
        # The CONNECT to a proxy is not our request yet.
        if name == _SENDING and info["request"].method != b"CONNECT":
            self.sent = True


class Transport:
    """Sends requests, with the token only to the origin of the API. seconds: of one try, from its start to the last
    byte of its answer. For one thread at a time."""

    def __init__(self, *, api_url: str, token: str, context: ssl.SSLContext, seconds: float) -> None:
        import httpx

        self._token = token
        self._origin = origin(api_url)
        self._seconds = seconds
        self._portal: BlockingPortal | None = None
        headers = {"user-agent": f"keystone-action/{__version__}", "accept-encoding": "gzip"}
        try:
            self._client = httpx.AsyncClient(
                verify=context, timeout=httpx.Timeout(None), headers=headers, follow_redirects=False
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            # Proxies are taken from the environment, and the URL of one may hold a password.
            raise BadSetting(
                f"the proxy that the environment names can't be used ({type(error).__name__})",
                help="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: an http:// or https:// URL",
            ) from None

    def send(self, method: str, url: str, body: bytes | None, limit: int) -> ApiAnswer | FailedTry:
        """One try. Redirects are answers. limit: bytes of the answer's body, decoded."""
        try:
            if self._portal is None:
                self._portal = self._start()
            return self._portal.call(self._try, method, url, body, limit)
        except OSError as error:
            return FailedTry(f"can't be asked ({error.strerror})", sent=False)
        except BaseException:
            # A signal ended the wait: what was not sent by then must not follow.
            self.close()
            raise

    def close(self) -> None:
        """Breaks off what is under way and closes the connections; nothing can be sent any more."""
        if self._portal is not None:
            with suppress(Exception):
                self._portal.call(self._portal.stop, True)

    def is_ours(self, url: str) -> bool:
        """Whether the URL is of the API's own origin."""
        return origin(url) == self._origin

    def _start(self) -> BlockingPortal:
        """Starts the event loop. Nobody waits for the end of its thread: the look-up of a name can't be broken off, and
        a loop does not end before it."""
        import anyio
        from anyio.from_thread import BlockingPortal

        started: Future[BlockingPortal] = Future()

        async def serve() -> None:
            async with self._client, BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        def run() -> None:
            try:
                anyio.run(serve)
            except Exception as error:  # noqa: BLE001 - of a thread, whose traceback nobody could use
                if not started.done():
                    started.set_exception(error)

        threading.Thread(target=run, daemon=True, name="github").start()
        return started.result()

    async def _try(self, method: str, url: str, body: bytes | None, limit: int) -> ApiAnswer | FailedTry:
        import anyio

        exchange, failure = _Exchange(), None
        with anyio.move_on_after(self._seconds) as deadline:
            try:
                await self._exchange(exchange, method, url, body, limit)
            except Exception as error:  # noqa: BLE001 - what a library makes of hostile bytes is an answer to us
                failure = error
        if exchange.status >= 400:
            # The status counts, even if the rest is lost.
            said = self._without_token(exchange.body[:MAX_ERROR].decode("utf-8", "replace"))
            return ApiAnswer(exchange.status, exchange.headers, said.encode(), self.is_ours(url))
        if deadline.cancelled_caught:
            connection = "" if exchange.sent else " (there was no connection)"
            return FailedTry(f"did not answer within {self._seconds:g} s{connection}", exchange.sent)
        if failure is not None:
            return self._explain(failure, origin(url)[1], exchange.sent)
        if len(exchange.body) > limit:
            return FailedTry(f"answered more than {limit} bytes", sent=True, lasting=True)
        return ApiAnswer(exchange.status, exchange.headers, bytes(exchange.body), self.is_ours(url))

    async def _exchange(self, exchange: _Exchange, method: str, url: str, body: bytes | None, limit: int) -> None:
        """Reads until the answer's end, or until there is more of it than is wanted."""
        headers = self._headers(url, has_body=body is not None)
        extensions = {"trace": exchange.trace}
        async with self._client.stream(method, url, content=body, headers=headers, extensions=extensions) as response:
            exchange.headers = {name.lower(): self._without_token(value) for name, value in response.headers.items()}
            exchange.status = int(response.status_code)
            most = MAX_ERROR if exchange.status >= 400 else limit
            async for chunk in response.aiter_bytes():
                exchange.body += chunk
                if len(exchange.body) > most:
                    return

    def _headers(self, url: str, *, has_body: bool) -> dict[str, str]:
        """What is sent beside the request: everything of ours to our origin, nothing to any other."""
        if not self.is_ours(url):
            return {"accept": "*/*"}
        headers = {"accept": _ACCEPT, "x-github-api-version": _API_VERSION}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if has_body:
            headers["content-type"] = "application/json; charset=utf-8"
        return headers

    def _without_token(self, text: str) -> str:
        """A server that echoes requests must not bring the token into a log."""
        return text.replace(self._token, "***") if self._token else text

    def _explain(self, error: Exception, host: str, sent: bool) -> FailedTry:
        import httpx

        said = server_words(self._without_token(str(error)))
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                text = f"at {host} has a certificate that is not trusted ({server_words(cause.verify_message)})"
                return FailedTry(text, sent, lasting=True, untrusted=True)
            if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno and cause.errno > 0:
                said = os.strerror(cause.errno)
        if isinstance(error, httpx.ProxyError):
            return FailedTry(f"can't be reached through the proxy ({said})", sent)
        if isinstance(error, httpx.ConnectError):
            return FailedTry(f"can't be reached at {host} ({said})", sent)
        if isinstance(error, httpx.TransportError):
            return FailedTry(f"cut the connection ({said or type(error).__name__})", sent)
        return FailedTry(f"answered what can't be read ({type(error).__name__})", sent, lasting=True)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what a token belongs to, read by the rules that the connection is made by. Raises
    ValueError for a URL that has none."""
    import httpx

    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        raise ValueError("no http or https URL without a user")
    return parts.scheme, parts.host, parts.port or (443 if parts.scheme == "https" else 80)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, the last first. httpx gives no reason where several addresses were tried."""
    for _ in range(10):
        if error is None:
            return
        yield error
        first = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
        error = first or error.__cause__ or error.__context__


MAX_BUNDLE = 4 * 1024 * 1024
"""Bytes; the whole of a system's authorities is 0.3 MB."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_HELP = "ca-bundle takes the path of a PEM file, or its text"


def read_ca_bundle(value: str, directory: Path) -> str:
    """The certificates of a PEM text, or of the file that it names, as PEM.

    directory: what paths are relative to. Call it before an agent runs, which could change the file. Raises
    BadSetting.
    """
    text = value if "-----BEGIN" in value else _read(directory / value.strip(), value)
    certificates = _CERTIFICATE.findall(text)
    if not certificates:
        raise BadSetting("the input ca-bundle holds no certificate", help=_HELP)
    pem = "\n".join(certificates) + "\n"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "malformed"
        raise BadSetting(f"a certificate of the input ca-bundle can't be read ({reason})", help=_HELP) from None
    return pem


def _read(path: Path, shown: str) -> str:
    try:
        # Without O_NONBLOCK a FIFO would keep us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadSetting(f"the input ca-bundle names {shown!r}, which is not a file", help=_HELP)
            content = file.read(MAX_BUNDLE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise BadSetting(f"the input ca-bundle names {shown!r}, which can't be read: {reason}", help=_HELP) from None
    if len(content) > MAX_BUNDLE:
        raise BadSetting(f"the input ca-bundle names {shown!r}, which is larger than {MAX_BUNDLE} bytes", help=_HELP)
    return content.decode("utf-8", "replace")


def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """The usual authorities (SSL_CERT_FILE and SSL_CERT_DIR are honoured), and those of `read_ca_bundle`.

    A step makes several clients, and reading the authorities takes 30 ms each time.
    """
    return _context(ca_bundle, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache(maxsize=4)
def _context(ca_bundle: str | None, _file: str | None, _directory: str | None) -> ssl.SSLContext:
    """One for all clients with equal settings. The last two are what httpx reads by itself."""
    import httpx

    context = httpx.create_ssl_context()
    if ca_bundle:
        context.load_verify_locations(cadata=ca_bundle)
    return context
