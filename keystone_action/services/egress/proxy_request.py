"""The head of a request to a proxy: `CONNECT host:port`, or a method with a whole http:// URL (RFC 9112, 3.2).

Read strictly: what two readers could take for two different hosts is refused, not understood.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from keystone_action.spec.models.hosts import IPAddress, parse_host, parse_port, split_port

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
    """Where a client wants to go. head: what to send there first; empty for CONNECT, which sends its own."""

    method: str
    host: str | IPAddress
    port: int
    head: bytes

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
