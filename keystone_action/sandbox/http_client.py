"""One HTTP request and its response, over a connection that somebody else made: by `RunningCommand.connect`, or by
`Sandbox.dial`.

The server may send anything, so each part of a response is bounded.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from keystone_action.sandbox.protocol import ServedConnection

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 8 << 20
"""Bytes of a response that a check looks at. In all, twice as many may come: chunks of one byte take six each, and the
time of a thousand."""
_CHUNK = 1 << 16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHARSETS = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "utf-8", "iso-8859-1": "latin-1", "latin1": "latin-1"}


class BadRequest(ValueError):  # noqa: N818 - named like BadResponse
    """The request that a spec describes can't be sent; the message is a sentence without its full stop."""


class BadResponse(Exception):  # noqa: N818 - an outcome: the check fails
    """A server sent something that is not a response, or not one that we accept. The message follows the server's name
    and has no full stop. received: what had come of the body until then. is_cut: whether the connection ended first."""

    def __init__(self, message: str, received: bytes = b"", *, is_cut: bool = False) -> None:
        super().__init__(message)
        self.received, self.is_cut = received, is_cut


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where a request goes."""

    host: str
    port: int
    path: str
    """With its query."""
    tls: bool = False
    credentials: str = ""

    @classmethod
    def of(cls, url: str) -> HttpTarget:
        """Raises BadRequest for anything but an http or https URL."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise BadRequest(f"{url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"expected a URL that begins with http:// or https://, found {url!r}")
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""
        credentials = ""
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = base64.b64encode(pair.encode()).decode()
        return cls(parts.hostname, port, path + query, parts.scheme == "https", credentials)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; those that came more than once are joined by `, `."""
    body: bytes

    def text(self) -> str:
        """The body, decoded with replacement by its charset where that is a common one, else as UTF-8."""
        found = re.search(r"charset=[\"']?([\w-]+)", self.headers.get("content-type", ""), re.IGNORECASE)
        return self.body.decode(_CHARSETS.get(found[1].lower(), "utf-8") if found else "utf-8", "replace")


def encode(method: str, target: HttpTarget, headers: Mapping[str, str], body: Any) -> bytes:
    """The bytes of a request. body: text as it is, None for nothing, all else as JSON. Raises BadRequest."""
    if not _TOKEN.fullmatch(method):
        raise BadRequest(f"expected a method like GET, found {method!r}")
    content = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    host = f"[{target.host}]" if ":" in target.host else target.host
    own = {
        "Host": host if target.port == (443 if target.tls else 80) else f"{host}:{target.port}",
        "User-Agent": "keystone",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if target.credentials:
        own["Authorization"] = f"Basic {target.credentials}"
    if body is not None and not isinstance(body, str):
        own["Content-Type"] = "application/json"
    if content or method.upper() in ("POST", "PUT", "PATCH"):
        own["Content-Length"] = str(len(content))
    given = {name.lower() for name in headers}
    lines = [f"{method.upper()} {target.path} HTTP/1.1"]
    for name, value in [*((n, v) for n, v in own.items() if n.lower() not in given), *headers.items()]:
        if not _TOKEN.fullmatch(name):
            raise BadRequest(f"{name!r} can't be a header")
        if any(character in value for character in "\r\n\0"):
            # Never what it is: quoted, a secret in it would not be found and masked.
            raise BadRequest(f"the value of {name} can't be a header's: it has a line break or a NUL")
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + content


@dataclass
class _Collected:
    """What the parser reports of one response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    final: bool = False
    """Whether the status line and headers of the response itself have been read, not those of one that comes before it
    (100 Continue)."""
    complete: bool = False
    parser: Any = None

    def on_message_begin(self) -> None:
        if not self.final:
            self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.final:
            key, text = name.decode("latin-1").lower(), value.decode("utf-8", "replace").strip()
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if not self.final:
            self.status = self.parser.get_status_code()
            self.final = self.status >= 200 or self.status == 101

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.complete = self.complete or self.final

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection tells where the body ends."""
        return self.final and not self.headers.keys() & {"content-length", "transfer-encoding"}


async def exchange(connection: ServedConnection, request: bytes, *, limit: int = BODY_LIMIT) -> HttpResponse:
    """Send a request, read its response and close the connection. A redirect is a response like any other. limit: bytes
    of the body.

    The caller limits the time. Raises BadResponse, OSError.
    """
    reader, writer = connection
    try:
        writer.write(request)
        await writer.drain()
        found = await _receive(reader, limit, head_only=request.startswith(b"HEAD "))
    except (ConnectionResetError, BrokenPipeError):
        raise BadResponse("closed the connection in the middle of the exchange", is_cut=True) from None
    finally:
        writer.transport.abort()
    headers = dict(found.headers)
    return HttpResponse(
        found.status, headers, _decode_body(bytes(found.body), headers.get("content-encoding", ""), limit)
    )


async def _receive(reader: Any, limit: int, *, head_only: bool) -> _Collected:
    import httptools

    found = _Collected()
    found.parser = parser = httptools.HttpResponseParser(found)
    total = 0
    while not (found.complete or (found.final and head_only)):
        try:
            data = await reader.read(_CHUNK)
        except (ConnectionResetError, BrokenPipeError):
            told = "closed the connection in the middle of the exchange"
            raise BadResponse(told, bytes(found.body), is_cut=True) from None
        if not data:
            if found.ends_with_connection:
                break
            cut = "closed the connection before its response was complete" if total else "sent nothing and hung up"
            raise BadResponse(cut, bytes(found.body), is_cut=True)
        total += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            found.complete = True
        except httptools.HttpParserError as error:
            if not found.complete:
                raise BadResponse(f"sent something that is not an HTTP response: {error}", bytes(found.body)) from None
        if not found.final and total > HEAD_LIMIT:
            raise BadResponse(f"sent headers of more than {HEAD_LIMIT >> 10} KiB")
        if len(found.body) > limit:
            raise BadResponse(f"sent a body of more than {limit >> 20} MiB", bytes(found.body[:limit]))
        if total > 2 * limit:
            raise BadResponse(f"sent more than {2 * limit >> 20} MiB in all", bytes(found.body))
    if head_only:
        found.body.clear()
    return found


def _decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Unpacked up to the limit: a few kilobytes can claim to be gigabytes. Raises BadResponse."""
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise BadResponse(f"sent a body in the encoding {encoding[:80]!r}, for which it was not asked")
        body = _inflate(body, limit)
    return body


def _inflate(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadResponse(f"sent a body that can't be unpacked: {error}") from None
    if len(unpacked) > limit:
        raise BadResponse(f"sent a body that unpacks to more than {limit >> 20} MiB", unpacked[:limit])
    if not unpacker.eof:
        raise BadResponse("sent a body whose packed data ends too early")
    return unpacked
