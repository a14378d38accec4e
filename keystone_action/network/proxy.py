"""The way out for agents in containers whose `network.egress` is `deny`: a proxy for HTTP and HTTPS that lets through
what `allow` lists and writes each decision into the cell's audit log.

A cell's network leads nowhere (`Networks.cell(internal=True)`); this proxy listens in it. For an https:// URL a client
asks for a tunnel (CONNECT) to a host and port, whose content we neither see nor change: what an allowed host passes on
to others is beyond this policy. Names are looked up by us, after they were allowed, and the connection goes to the
very address that was checked.

The head of a request to a proxy: `CONNECT host:port`, or a method with a whole http:// URL (RFC 9112, 3.2).

Read strictly: what two readers could take for two different hosts is refused, not understood.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.egress import Denied, EgressLog, EgressPolicy, EgressRecord
from keystone_action.network.guarded_listener import CHUNK, GuardedListener, StreamPair, closing_writer, pass_both_ways
from keystone_action.network.loop_thread import LoopThread
from keystone_action.network.relay import Outside
from keystone_action.spec.models.policies import IPAddress, parse_host, parse_port, split_port

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.spec.models import policies

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) ([!-~]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te"}
    | {b"upgrade", b"http2-settings", b"host"}
)
_NEVER_DROPPED = frozenset({b"content-length", b"transfer-encoding"})


class UnreadableRequest(Exception):  # noqa: N818 - it is an answer, not an error
    """A request that is refused for its form. str() is a sentence for the client. method, target: as it wrote them."""

    def __init__(self, problem: str, method: str = "", target: str = "") -> None:
        super().__init__(problem)
        self.method = method
        self.target = target


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """Where a client wants to go."""

    method: str
    host: str | IPAddress
    port: int
    head: bytes
    """What to send there first; empty for CONNECT, which sends its own."""

    @property
    def authority(self) -> str:
        """`host:port` as URLs have it."""
        shown = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else str(self.host)
        return f"{shown}:{self.port}"


def parse_request(head: bytes) -> ProxyRequest:
    """head: up to and with its empty line. Raises UnreadableRequest."""
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise UnreadableRequest("expected a request line of HTTP/1.1", target=first.decode("latin-1"))
    method, target = line[1].decode("ascii"), line[2].decode("ascii")
    try:
        fields = [_field(one) for one in rest]
        if method == "CONNECT":
            host, port = _authority(target, None)
            return ProxyRequest(method, host, port, b"")
        authority, path = _absolute(target)
        host, port = _authority(authority, 80)
    except ValueError as error:
        raise UnreadableRequest(str(error), method, target) from None
    request = ProxyRequest(method, host, port, b"")
    name = request.authority if port != 80 else request.authority.removesuffix(":80")
    return ProxyRequest(method, host, port, _onward(method, path, name, fields))


def _authority(text: str, default_port: int | None) -> tuple[str | IPAddress, int]:
    if "@" in text:
        raise ValueError("a user name in the address of a request is refused")
    host, port = split_port(text)
    if port is not None:
        return parse_host(host), parse_port(port)
    if default_port is None:
        raise ValueError("expected CONNECT host:port")
    return parse_host(host), default_port


def _absolute(target: str) -> tuple[str, str]:
    scheme = _SCHEME.match(target)
    if scheme is None:
        raise ValueError("this is a proxy: expected CONNECT host:port, or a method with a whole http:// URL")
    if scheme[0].lower() != "http://":
        raise ValueError(f"expected an http:// URL; for {scheme[0]} use CONNECT host:port")
    rest = target[scheme.end() :]
    authority = re.match(r"[^/?#]*", rest)
    assert authority is not None
    path = rest[authority.end() :]
    if "#" in path:
        raise ValueError("a fragment in the URL of a request is refused")
    return authority[0], path if path.startswith("/") else f"/{path}"


def _field(line: bytes) -> tuple[bytes, bytes]:
    field = _FIELD.fullmatch(line)
    if field is None:
        raise ValueError("expected `name: value` in each line of the request's head")
    return field[1], field[2].rstrip(b" \t")


def _onward(method: str, path: str, host: str, fields: list[tuple[bytes, bytes]]) -> bytes:
    """The same request as its server expects it. One request a connection: a client that goes on to another host does
    so by another request to us."""
    named = {
        one.strip().lower() for name, value in fields if name.lower() == b"connection" for one in value.split(b",")
    }
    dropped = (_HOP_BY_HOP | named) - _NEVER_DROPPED
    lines = [f"{method} {path} HTTP/1.1".encode("ascii"), b"Host: " + host.encode("ascii")]
    lines += [name + b": " + value for name, value in fields if name.lower() not in dropped]
    lines += [b"Connection: close", b"", b""]
    return b"\r\n".join(lines)


CONNECTIONS = 256
"""Connections of one cell at a time; further ones wait until one is over."""
HEAD_SECONDS = 30.0
LOOK_UP_SECONDS = 15.0
CONNECT_SECONDS = 10.0
"""For each address of a name."""
REPLY_SECONDS = 2.0
IDLE_SECONDS = 600.0
"""A model may think for minutes before it sends a byte."""
_ADDRESSES = 8
_PHRASES = {400: "Bad Request", 431: "Request Header Fields Too Large", 502: "Bad Gateway", 507: "Insufficient Storage"}


@dataclass(frozen=True)
class _Refusal:
    """The answer to a client that may not go there."""

    status: int
    text: str
    phrase: str = ""
    """What clients show of a refused tunnel, since they don't show its body."""


class _UnreachableError(Exception):
    """An allowed host can't be reached; str() says how."""


class EgressProxy:
    """The proxies of a run's cells, in a thread of their own. outside: the network, as it is reached from here."""

    def __init__(self, outside: Outside | None = None) -> None:
        self._thread = LoopThread("keystone-egress", "the egress proxy")
        self._outside = outside if outside is not None else Outside()
        self._cells: set[EgressCell] = set()

    def start(self) -> None:
        """Harmless when it runs. Raises ServiceError."""
        self._thread.start()

    def stop(self) -> None:
        """Ends every connection; blocks for 5 seconds at most. Harmless when repeated."""
        self._thread.stop(self._close_all)

    async def _close_all(self) -> None:
        for cell in list(self._cells):
            await cell.end()

    async def open(
        self, policy: policies.Egress, network: ContainerNetwork, audit: AuditLog, *, services: Iterable[str] = ()
    ) -> EgressCell:
        """A cell's proxy. services: the names of those that the agent reaches directly. Raises ServiceError."""
        try:
            rules = EgressPolicy(policy.allow)
        except ValueError as error:
            raise ServiceError(f"network.egress.allow: {error}") from None
        cell = EgressCell(rules, EgressLog(audit), network, self._thread, self._outside, tuple(services))
        await self._thread.call(cell.listen())
        self._cells.add(cell)
        cell.closed = lambda: self._cells.discard(cell)
        return cell


class EgressCell:
    """One cell's proxy; serves in the proxy's loop."""

    def __init__(
        self,
        policy: EgressPolicy,
        log: EgressLog,
        network: ContainerNetwork,
        thread: LoopThread,
        outside: Outside,
        services: tuple[str, ...],
    ) -> None:
        self._policy = policy
        self._log = log
        self._network = network
        self._thread = thread
        self._outside = outside
        self._services = services
        self._listener = GuardedListener(network.host_address, self._handle, network.admits, limit=CONNECTIONS)
        self.closed: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """Where containers of the cell's network reach it."""
        return f"http://{self._network.host_address}:{self._listener.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What tells programs to use it, by the names that they look for; asked when all services are attached."""
        direct = ["localhost", "127.0.0.1", "::1", *self._services, *self._network.hosts, self._network.host_address]
        names = ",".join(dict.fromkeys(direct))
        return {
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), names),
            # Node.js looks at the others only when it is told to.
            "NODE_USE_ENV_PROXY": "1",
        }

    @property
    def is_full(self) -> bool:
        """Whether there were so many attempts that further ones are not written down."""
        return self._log.full is not None

    @property
    def failure(self) -> str | None:
        """Why the record of its decisions is incomplete, else None."""
        if self._log.failure is None and self._thread.defects:
            return f"the egress proxy failed while serving: {self._thread.defects[0]}"
        return self._log.failure

    async def listen(self) -> None:
        """In the proxy's loop. Raises ServiceError."""
        await self._listener.open()

    async def end(self) -> None:
        """In the proxy's loop: ends every connection; each has its line in the audit log then."""
        await self._listener.close()
        self.closed()

    async def settle(self) -> None:
        """From any other loop, when a client has ended: all that it asked for is in the audit log. Others are served
        afterwards."""
        if self._thread.loop is not None:
            await self._thread.call(self._listener.settle())

    async def close(self) -> None:
        """From any other loop. Harmless when repeated, or when the proxy was stopped."""
        if self._thread.loop is not None:
            await self._thread.call(self.end())

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = (reader, writer)
        head = await self._head(client)
        if head is None:
            return
        began = time.monotonic()
        egress = EgressRecord("", None, "", "deny", "the connection broke off")
        try:
            refusal = await self._serve(head, client, egress)
        finally:
            egress.duration_s = time.monotonic() - began
            self._log.write(egress)
        if refusal is not None:
            await _reply(client, refusal)

    async def _head(self, client: StreamPair) -> bytes | None:
        """The head of a request; None when the client sends none."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                return await client[0].readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            self._log.write(EgressRecord("", None, "", "deny", "the head of the request is too long"))
            await _reply(client, _Refusal(431, "The head of the request is too long."))
        except (asyncio.IncompleteReadError, OSError):  # a time limit's, too
            pass
        return None

    async def _serve(self, head: bytes, client: StreamPair, egress: EgressRecord) -> _Refusal | None:
        """The whole life of a tunnel or request that is let through; of any other, what its client is told."""
        if problem := self._log.failure or self._log.full:
            egress.reason = problem
            return _Refusal(507, f"No request is let through any more: {problem}.")
        try:
            request = parse_request(head)
            egress.host, egress.port, egress.method = str(request.host), request.port, request.method
            onward = await self._reach(request, egress)
        except UnreadableRequest as error:
            egress.host, egress.method, egress.reason = error.target, error.method, f"not understood: {error}"
            return _Refusal(400, f"This request is refused: {error}.")
        except Denied as error:
            egress.decision, egress.reason = "deny", str(error)
            return _Refusal(403, f"The network policy denies {request.authority}: {error}.", phrase=str(error))
        except _UnreachableError as error:
            egress.reason = f"{egress.reason}; {error}"
            return _Refusal(502, f"{request.authority} can't be reached: {error}.")
        async with closing_writer(onward[1]):
            await self._tunnel(request, client, onward, egress)
        return None

    async def _reach(self, request: ProxyRequest, egress: EgressRecord) -> StreamPair:
        """A connection to where a request may go. Raises Denied, and _UnreachableError when nobody answers there."""
        entry = self._policy.permit(request.host, request.port)
        egress.decision, egress.reason = "allow", f"allowed by {entry.text}"
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                found = await self._outside.resolve(str(request.host))
        except OSError as error:
            raise _UnreachableError(f"its name can't be resolved ({_describe_error(error)})") from None
        denied: Denied | None = None
        failed = _UnreachableError("its name has no address")
        for address in found[:_ADDRESSES]:
            try:
                self._policy.permit_address(entry, address, request.port, self._outside.is_own)
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await self._outside.connect(address, request.port)
            except Denied as error:
                denied = error
            except OSError as error:
                denied, failed = None, _UnreachableError(f"{address} does not answer ({_describe_error(error)})")
        raise denied or failed

    async def _tunnel(
        self, request: ProxyRequest, client: StreamPair, onward: StreamPair, egress: EgressRecord
    ) -> None:
        if request.head:
            onward[1].write(request.head)
        else:
            client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        loop = asyncio.get_running_loop()

        def go_on() -> None:
            if not idle.expired():
                idle.reschedule(loop.time() + IDLE_SECONDS)

        def sent(size: int) -> None:
            egress.bytes_sent += size
            go_on()

        def received(size: int) -> None:
            egress.bytes_received += size
            go_on()

        try:
            async with asyncio.timeout(IDLE_SECONDS) as idle:
                await pass_both_ways(client, onward, sent=sent, received=received)
        except OSError as error:
            idled = f"ended after {IDLE_SECONDS:g} s without a byte"
            egress.reason += f"; {idled}" if idle.expired() else f"; broke off ({_describe_error(error)})"


async def _reply(client: StreamPair, refusal: _Refusal) -> None:
    """A whole answer, after which the client is heard out."""
    reader, writer = client
    body = f"{refusal.text}\n".encode()
    lines = [
        f"HTTP/1.1 {refusal.status} {refusal.phrase or _PHRASES[refusal.status]}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode("ascii", "replace") + body)
    # To close while something it sent is unread would reset the connection, and it might never see the answer.
    with suppress(OSError):
        async with asyncio.timeout(REPLY_SECONDS):
            await writer.drain()
            writer.write_eof()
            while await reader.read(CHUNK):
                pass


def _describe_error(error: OSError) -> str:
    if isinstance(error, TimeoutError) and not error.strerror:
        return "no answer in time"
    return error.strerror or " ".join(str(error).split()) or type(error).__name__
