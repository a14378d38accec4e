"""One HTTP request and its response, from a server that may send anything: every part of it is bounded."""

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
    from keystone_action.sandbox.protocol import Connection

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 8 << 20
_TOTAL_LIMIT = 2 * BODY_LIMIT
"""Bytes of a response in all: chunks of one byte take six each, and the time of a thousand."""
_CHUNK = 1 << 16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHARSETS = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "utf-8", "iso-8859-1": "latin-1", "latin1": "latin-1"}


class BadRequest(ValueError):  # noqa: N818 - named like BadResponse
    """What a spec asks for can't be sent; a sentence without its full stop."""


class BadResponse(Exception):  # noqa: N818 - an outcome: the check fails
    """What a server did that is no response, or none that we take; follows its name, without a full stop."""


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where a request goes. path: with its query."""

    host: str
    port: int
    path: str
    tls: bool = False
    credentials: str = ""

    @classmethod
    def of(cls, url: str) -> HttpTarget:
        """Raises BadRequest for anything but an http or https URL."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise BadRequest(f"{url!r} is no URL: {error}") from None
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
class Response:
    """What a server answered. headers: by lower-case name, those that came more than once joined by `, `."""

    status: int
    headers: Mapping[str, str]
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
        if not _TOKEN.fullmatch(name) or any(character in value for character in "\r\n\0"):
            raise BadRequest(f"{name!r}: {value!r} can't be a header")
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + content


@dataclass
class _Collected:
    """What the parser tells. final: the status line and headers of the response itself have been read, not of one that
    comes before it (100 Continue)."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    final: bool = False
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


async def exchange(connection: Connection, request: bytes) -> Response:
    """Send a request and read its response; redirects are responses like any other. The connection is closed then.

    Nothing limits the time: who calls does. Raises BadResponse, OSError.
    """
    reader, writer = connection
    try:
        writer.write(request)
        await writer.drain()
        found = await _receive(reader, head_only=request.startswith(b"HEAD "))
    except (ConnectionResetError, BrokenPipeError):
        raise BadResponse("closed the connection in the middle of the exchange") from None
    finally:
        writer.transport.abort()
    headers = dict(found.headers)
    return Response(found.status, headers, _decode(bytes(found.body), headers.get("content-encoding", "")))


async def _receive(reader: Any, *, head_only: bool) -> _Collected:
    import httptools

    found = _Collected()
    found.parser = parser = httptools.HttpResponseParser(found)
    total = 0
    while not (found.complete or (found.final and head_only)):
        data = await reader.read(_CHUNK)
        if not data:
            if found.ends_with_connection:
                break
            raise BadResponse(
                "closed the connection before its response was complete" if total else "sent nothing and hung up"
            )
        total += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            found.complete = True
        except httptools.HttpParserError as error:
            if not found.complete:
                raise BadResponse(f"sent what is no HTTP response: {error}") from None
        if not found.final and total > HEAD_LIMIT:
            raise BadResponse(f"sent headers of more than {HEAD_LIMIT >> 10} KiB")
        if len(found.body) > BODY_LIMIT:
            raise BadResponse(f"sent a body of more than {BODY_LIMIT >> 20} MiB")
        if total > _TOTAL_LIMIT:
            raise BadResponse(f"sent more than {_TOTAL_LIMIT >> 20} MiB in all")
    if head_only:
        found.body.clear()
    return found


def _decode(body: bytes, encoding: str) -> bytes:
    """Unpacked up to the limit: a few kilobytes can claim to be gigabytes. Raises BadResponse."""
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise BadResponse(f"sent a body in the encoding {encoding[:80]!r}, for which it was not asked")
        body = _inflate(body, zlib.MAX_WBITS | 32)
    return body


def _inflate(body: bytes, bits: int) -> bytes:
    unpacker = zlib.decompressobj(bits)
    try:
        unpacked = unpacker.decompress(body, BODY_LIMIT + 1)
    except zlib.error as error:
        raise BadResponse(f"sent a body that can't be unpacked: {error}") from None
    if len(unpacked) > BODY_LIMIT:
        raise BadResponse(f"sent a body that unpacks to more than {BODY_LIMIT >> 20} MiB")
    if not unpacker.eof:
        raise BadResponse("sent a body whose packed data ends too early")
    return unpacked
