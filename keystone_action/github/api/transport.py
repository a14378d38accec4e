"""One try of one request: bounded in time whatever the server does, bounded in size, and it says whether it was sent.

httpx's own time limits are of single steps (one read, one connect), the look-up of a name has none, and a server that
sends a byte now and then would keep a client for ever. So a try runs in a thread of its own that is left behind when
its time is up; what is left behind never sends a request any more.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from keystone_action import __version__
from keystone_action.github.api.answer import Answer, one_line
from keystone_action.github.api.errors import BadSetting

MAX_ERROR = 64 * 1024
"""Bytes that are read of an answer that is an error."""
_SENDING = "http11.send_request_headers.started"
_ACCEPT = "application/vnd.github+json"
_API_VERSION = "2022-11-28"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A try without an answer. reason: completes "GitHub …". sent: the request may have reached the server. lasting:
    another try would end the same. untrusted: that is because of the server's certificate."""

    reason: str
    sent: bool
    lasting: bool = False
    untrusted: bool = False


class _LeftBehind(Exception):  # noqa: N818 - never seen outside
    """Nobody waits for this try any more."""


class Transport:
    """Sends requests, with the token only to the origin of the API. seconds: of one try, from its start to the last
    byte of its answer."""

    def __init__(self, *, api_url: str, token: str, context: ssl.SSLContext, seconds: float) -> None:
        import httpx

        self._token = token
        self._origin = origin(api_url)
        self._seconds = seconds
        # A little less, so that the usual hang ends inside of httpx, which then closes the connection.
        timeout = httpx.Timeout(seconds * 0.9)
        headers = {"user-agent": f"keystone-action/{__version__}", "accept-encoding": "gzip"}
        try:
            self._client = httpx.Client(verify=context, timeout=timeout, headers=headers, follow_redirects=False)
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            # Proxies are taken from the environment, and the URL of one may hold a password.
            raise BadSetting(
                f"the proxy that the environment names can't be used ({type(error).__name__})",
                help="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: an http:// or https:// URL",
            ) from None

    def send(self, method: str, url: str, body: bytes | None, limit: int) -> Answer | NoAnswer:
        """One try. Redirects are answers. limit: bytes of the answer's body, decoded."""
        attempt = _Attempt(self, method, url, body, limit)
        thread = threading.Thread(target=attempt.run, daemon=True, name="github")
        try:
            thread.start()
            thread.join(self._seconds)
        finally:
            # Also when a signal ends the wait: what was not sent by then must not follow.
            outcome = attempt.leave()
        return outcome

    def close(self) -> None:
        """Closes the connections."""
        with suppress(Exception):
            self._client.close()

    def headers(self, url: str, *, has_body: bool) -> dict[str, str]:
        """What is sent beside the request: everything of ours to our origin, nothing to any other."""
        if origin(url) != self._origin:
            return {"accept": "*/*"}
        headers = {"accept": _ACCEPT, "x-github-api-version": _API_VERSION}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if has_body:
            headers["content-type"] = "application/json; charset=utf-8"
        return headers

    def is_ours(self, url: str) -> bool:
        """Whether the URL is of the API's own origin."""
        return origin(url) == self._origin

    def without_token(self, text: str) -> str:
        """A server that echoes requests must not bring the token into a log."""
        return text.replace(self._token, "***") if self._token else text

    @property
    def client(self) -> Any:
        """The httpx client."""
        return self._client

    @property
    def seconds(self) -> float:
        """Of one try."""
        return self._seconds


class _Attempt:
    """A try as its thread sees it, and the outcome that it leaves."""

    def __init__(self, transport: Transport, method: str, url: str, body: bytes | None, limit: int) -> None:
        self._transport = transport
        self._method = method
        self._url = url
        self._body = body
        self._limit = limit
        self._lock = threading.Lock()
        self._sent = False
        self._left = False
        self._outcome: Answer | NoAnswer | None = None

    def leave(self) -> Answer | NoAnswer:
        """The outcome, or that there was none in time: from here on the thread sends nothing."""
        with self._lock:
            self._left = True
            return self._outcome or NoAnswer(f"did not answer within {self._transport.seconds:g} s", self._sent)

    def run(self) -> None:
        """Does the request. Never raises."""
        try:
            outcome = self._request()
        except _LeftBehind:
            return
        except Exception as error:  # noqa: BLE001 - whatever a library does with hostile bytes, it is an answer to us
            outcome = self._explain(error)
        with self._lock:
            self._outcome = outcome

    def _request(self) -> Answer | NoAnswer:
        headers = self._transport.headers(self._url, has_body=self._body is not None)
        extensions = {"trace": self._trace}
        with self._transport.client.stream(
            self._method, self._url, content=self._body, headers=headers, extensions=extensions
        ) as response:
            status = int(response.status_code)
            ours = self._transport.is_ours(self._url)
            received = {name.lower(): self._transport.without_token(value) for name, value in response.headers.items()}
            if status >= 400:
                said = self._transport.without_token(self._error_body(response).decode("utf-8", "replace"))
                return Answer(status, received, said.encode(), ours)
            body = bytearray()
            for chunk in response.iter_bytes():
                self._check()
                body += chunk
                if len(body) > self._limit:
                    return NoAnswer(f"answered more than {self._limit} bytes", sent=True, lasting=True)
            return Answer(status, received, bytes(body), ours)

    def _error_body(self, response: Any) -> bytes:
        """Its beginning; the status counts even if the rest is lost."""
        body = b""
        with suppress(Exception):
            for chunk in response.iter_bytes():
                self._check()
                body += chunk
                if len(body) >= MAX_ERROR:
                    break
        return body[:MAX_ERROR]

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Called by httpx at each step, in this thread."""
        with self._lock:
            if self._left:
                raise _LeftBehind
            # The CONNECT to a proxy is no request of ours yet.
            if name == _SENDING and info["request"].method != b"CONNECT":
                self._sent = True

    def _check(self) -> None:
        with self._lock:
            if self._left:
                raise _LeftBehind

    def _explain(self, error: Exception) -> NoAnswer:
        import httpx

        host = origin(self._url)[1]
        if certificate := _untrusted(error):
            text = f"at {host} has a certificate that is not trusted ({one_line(certificate.verify_message)})"
            return NoAnswer(text, self._sent, lasting=True, untrusted=True)
        said = one_line(self._transport.without_token(str(error)))
        if isinstance(error, httpx.TimeoutException):
            verb = "could not be connected to" if isinstance(error, httpx.ConnectTimeout) else "did not answer"
            return NoAnswer(f"{verb} within {self._transport.seconds:g} s", self._sent)
        if isinstance(error, httpx.ProxyError):
            return NoAnswer(f"can't be reached through the proxy ({said})", self._sent)
        if isinstance(error, httpx.ConnectError):
            return NoAnswer(f"can't be reached at {host} ({said})", self._sent)
        if isinstance(error, httpx.TransportError):
            return NoAnswer(f"cut the connection ({said or type(error).__name__})", self._sent)
        return NoAnswer(f"answered what can't be read ({type(error).__name__})", self._sent, lasting=True)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port: what a token belongs to, read by the same rules as the connection is made by. Raises
    ValueError for a URL that has none."""
    import httpx

    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        raise ValueError("no http or https URL without a user")
    return parts.scheme, parts.host, parts.port or (443 if parts.scheme == "https" else 80)


def _untrusted(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The failed check of a certificate somewhere among an error's causes."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None
