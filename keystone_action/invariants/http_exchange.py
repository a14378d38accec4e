"""One HTTP request, its response, and what is expected of the response.

The server may send anything, so each part of a response is bounded. A probe asks again until a response is as expected
or the tries are used up.
"""

from __future__ import annotations

import base64
import json
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urlsplit

import anyio
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.evidence.requests import Missing
from keystone_action.invariants.check import Outcome, failed, passed
from keystone_action.invariants.command_output import seconds
from keystone_action.invariants.json_values import Expected, Values, problems_of, read_document, wrong_values
from keystone_action.invariants.operators import Operators
from keystone_action.spec.models.fields import StrictModel

if TYPE_CHECKING:
    from keystone_action.sandbox.protocol import ServedConnection

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 8 << 20
_TOTAL_LIMIT = 2 * BODY_LIMIT
"""Bytes of a response in all: chunks of one byte take six each, and the time of a thousand."""
_CHUNK = 1 << 16
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHARSETS = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "utf-8", "iso-8859-1": "latin-1", "latin1": "latin-1"}


class BadRequest(ValueError):  # noqa: N818 - named like BadResponse
    """The request that a spec describes can't be sent; the message is a sentence without its full stop."""


class BadResponse(Exception):  # noqa: N818 - an outcome: the check fails
    """A server sent something that is not a response, or not one that we accept. The message follows the server's name
    and has no full stop."""


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
        if not _TOKEN.fullmatch(name) or any(character in value for character in "\r\n\0"):
            raise BadRequest(f"{name!r}: {value!r} can't be a header")
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


async def exchange(connection: ServedConnection, request: bytes) -> HttpResponse:
    """Send a request, read its response and close the connection. A redirect is a response like any other.

    The caller limits the time. Raises BadResponse, OSError.
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
    return HttpResponse(found.status, headers, _decode_body(bytes(found.body), headers.get("content-encoding", "")))


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
                raise BadResponse(f"sent something that is not an HTTP response: {error}") from None
        if not found.final and total > HEAD_LIMIT:
            raise BadResponse(f"sent headers of more than {HEAD_LIMIT >> 10} KiB")
        if len(found.body) > BODY_LIMIT:
            raise BadResponse(f"sent a body of more than {BODY_LIMIT >> 20} MiB")
        if total > _TOTAL_LIMIT:
            raise BadResponse(f"sent more than {_TOTAL_LIMIT >> 20} MiB in all")
    if head_only:
        found.body.clear()
    return found


def _decode_body(body: bytes, encoding: str) -> bytes:
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


def _valid_status(value: Any) -> Any:
    if isinstance(value, dict):
        return Operators.model_validate(value, by_alias=True, by_name=False)
    codes = value if isinstance(value, list) else [value]
    if not codes or not all(_is_status(code) for code in codes):
        expected = "a status like 200, a list of them, or a mapping of operators"
        raise PydanticCustomError("status", "expected {expected}", {"expected": expected, "found": repr(value)[:80]})
    return value


def _is_status(value: Any) -> bool:
    if isinstance(value, str):  # an expression that is filled in later
        return "{{" in value
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _valid_body(value: Any) -> Any:
    """A text is to be equalled; a mapping is of operators."""
    if isinstance(value, str | Operators):
        return value
    if not isinstance(value, dict):
        expected = "a text, or a mapping of operators such as contains"
        raise PydanticCustomError("body", "expected {expected}", {"expected": expected, "found": repr(value)[:80]})
    return Operators.model_validate(value, by_alias=True, by_name=False)


class ExpectedResponse(StrictModel):
    """What is expected of a response; all of it must hold."""

    status: Annotated[Operators | Any, BeforeValidator(_valid_status)] = None
    """A status, a list of allowed ones, or operators; without it, 200 to 299.

    Example: `201`
    Example: `[200, 204]`
    """
    headers: dict[str, Expected] = Field(default_factory=dict)
    """By name, in any case: the value, or operators that must hold of it.

    Example: `{Content-Type: {contains: json}}`
    """
    body: Annotated[Operators | Any, BeforeValidator(_valid_body)] = None
    """Operators that must hold of the body as text, or the whole text.

    Example: `{contains: Ada}`
    """
    json_: Values = Field(default_factory=dict, alias="json")
    """The body is JSON, and at these paths are these values, as in the check `json`.

    Example: `{"customers[0].name": Ada}`
    """

    def problems(self, response: HttpResponse, deadline: float) -> Iterator[str]:
        """What is wrong with a response, without full stops. deadline: in `time.monotonic()` seconds."""
        yield from self._status_problems(response, deadline)
        for name, expected in self.headers.items():
            value = response.headers.get(name.lower())
            found = Missing(f"the response has no header {name}") if value is None else value
            for problem in problems_of(expected, found, typed=False, deadline=deadline):
                yield f"header {name}: {problem}"
        if self.body is not None:
            for problem in problems_of(self.body, response.text(), typed=False, deadline=deadline):
                yield f"body: {problem}"
        if self.json_:
            try:
                document = read_document(response.body.decode("utf-8"))
            except ValueError as error:
                yield f"the body can't be used as JSON: {error}"
            else:
                yield from (f"json: {problem}" for problem in wrong_values(self.json_, document, deadline))

    def _status_problems(self, response: HttpResponse, deadline: float) -> Iterator[str]:
        found, wanted = response.status, self.status
        moved = ""
        if 300 <= found < 400 and "location" in response.headers:
            moved = f"; it redirects to {response.headers['location'][:200]!r}, which is not followed"
        if isinstance(wanted, Operators):
            for problem in problems_of(wanted, found, typed=True, deadline=deadline):
                yield f"status: {problem}{moved}"
            return
        # An expression in a list or beside text has become text.
        codes = [str(code) for code in (wanted if isinstance(wanted, list) else [wanted])]
        if str(found) in codes or (wanted is None and 200 <= found < 300):
            return
        yield f"status: expected {'200 to 299' if wanted is None else ' or '.join(codes)}, found {found}{moved}"


_PAUSE = 1.0
_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What the last try of a probe got."""

    response: HttpResponse | None
    """None where there was none."""
    problems: tuple[str, ...]
    """What is wrong with it: sentences without full stops."""
    tries: int

    def outcome(self, what: str, more: str = "", log: str = "", **details: Any) -> Outcome:
        """The outcome of the check. what: who was asked for what. more: for the message of a failure. log: what the
        server printed."""
        details = {"tries": self.tries, **details}
        if self.response is not None:
            details = {"status": self.response.status, **details}
            head = "\n".join(f"{name}: {value}" for name, value in self.response.headers.items())
            body = self.response.text()
            cut = f"\n[… {len(body) - _SHOWN:,} characters cut …]" if len(body) > _SHOWN else ""
            log = f"--- response ---\n{self.response.status}\n{head}\n\n{body[:_SHOWN]}{cut}\n{log}"
        if not self.problems:
            return passed(f"{what} answered as expected.", log=log, **details)
        tried = f" (tried {self.tries} times)" if self.tries > 1 else ""
        found = "\n".join(f"{problem}." for problem in self.problems)
        return failed(f"{what} did not answer as expected{tried}:\n{found}{more}", log=log, **details)


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks a server until its response is as expected, or the tries are used up."""

    expect: ExpectedResponse
    retries: int
    deadline: float
    """In `time.monotonic()` seconds. Each try gets an even share of the time that is left."""

    async def run(
        self, ask: Callable[[], Awaitable[HttpResponse]], ended: Callable[[], bool] = lambda: False
    ) -> ProbeAnswer:
        """The answer of the last try. ended: whether the server is gone, so that no further try can succeed. Raises
        SandboxError."""
        for number in range(1, self.retries + 2):
            answer = await self._try(ask, number)
            if not answer.problems or ended() or self.deadline - time.monotonic() <= _PAUSE:
                break
            if number <= self.retries:
                await anyio.sleep(_PAUSE)
        return answer

    async def _try(self, ask: Callable[[], Awaitable[HttpResponse]], number: int) -> ProbeAnswer:
        share = max(self.deadline - time.monotonic(), 0.001) / (self.retries + 2 - number)
        try:
            with anyio.move_on_after(share) as limit:
                response = await ask()
        except BadResponse as problem:
            return ProbeAnswer(None, (f"the server {problem}",), number)
        except OSError as error:
            return ProbeAnswer(None, (f"it could not be reached: {error.strerror or error}",), number)
        if limit.cancelled_caught:
            return ProbeAnswer(None, (f"no whole response came within {seconds(round(share, 1))}",), number)
        problems = await anyio.to_thread.run_sync(
            lambda: tuple(self.expect.problems(response, self.deadline)), abandon_on_cancel=True
        )
        return ProbeAnswer(response, problems, number)
