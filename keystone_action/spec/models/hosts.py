"""Hosts as `network.egress.allow` names them: `host`, `*.example.com`, an address, each with `:port` or without.

What is compared is always a name in its one spelling (lower case, no dot at the end, IDNA in its ASCII form) or an
address as a number, never text that a client chose.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from keystone_action.spec.globs import label_pattern

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

WEB_PORTS = (80, 443)
"""What an entry without a port allows."""
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
"""Names that a resolver may take for an address (`127.1`, `0x7f000001`): no name ends in a number."""
_GLOB = re.compile(r"(?:\*\.)?[a-z0-9_*-]+(?:\.[a-z0-9_*-]+)*")
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST = 253


def parse_host(text: str) -> str | IPAddress:
    """A name in its one spelling, or an address (IPv6 with or without brackets). Raises ValueError with a sentence."""
    if text.startswith("[") and text.endswith("]"):
        return _address(text[1:-1], ipaddress.IPv6Address)
    if ":" in text:
        return _address(text, ipaddress.IPv6Address)
    name = _ascii(text)
    if _NUMBER.fullmatch(name):
        return _address(name, ipaddress.IPv4Address)
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        raise ValueError(f"{text!r} is no host name")
    return name


def parse_port(text: str) -> int:
    """1 to 65535. Raises ValueError with a sentence."""
    # int() would take digits of other scripts, signs, blanks and underscores.
    if _PORT.fullmatch(text) is None or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is no port")
    return int(text)


def split_port(text: str) -> tuple[str, str | None]:
    """`host:port` and `[address]:port` taken apart; None when there is no port. A bare IPv6 address has none."""
    if text.startswith("["):
        address, bracket, rest = text.partition("]")
        return (address + bracket, rest[1:]) if rest.startswith(":") else (text, None)
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host else (text, None)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of `allow`. text: as the author wrote it. kind: `name`, `glob` or `address`. port: None = WEB_PORTS."""

    text: str
    kind: Literal["name", "glob", "address"]
    host: str | IPAddress
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Raises ValueError with a sentence that says what was expected."""
        _refuse_other_things(text)
        host, port_text = split_port(text)
        port = None if port_text is None else parse_port(port_text)
        if "*" in host:
            return cls(text, "glob", _glob(host), port)
        parsed = parse_host(host)
        return cls(text, "name" if isinstance(parsed, str) else "address", parsed, port)

    def allows(self, host: str | IPAddress, port: int) -> bool:
        """Whether a host, as `parse_host` gives it, is meant at this port. An address only by its own entry."""
        return self.names(host) and (port in WEB_PORTS if self.port is None else port == self.port)

    def names(self, host: str | IPAddress) -> bool:
        """Whether this host is meant, at any port."""
        if self.kind == "glob":
            return isinstance(host, str) and _is_meant(str(self.host), host)
        return self.host == host


def parse_allowed(entries: Sequence[str]) -> tuple[AllowedHost, ...]:
    """Raises ValueError for the first that is not a host."""
    return tuple(AllowedHost.parse(entry) for entry in entries)


def _refuse_other_things(text: str) -> None:
    expected = "expected a host like api.example.com, *.example.com or api.example.com:8443"
    if "://" in text:
        raise ValueError(f"{expected}, found a URL: {text!r}")
    if "/" in text:
        raise ValueError(f"{expected}, found {text!r}; neither paths nor ranges of addresses can be allowed")
    if "@" in text or not text or text != text.strip():
        raise ValueError(f"{expected}, found {text!r}")


def _ascii(text: str) -> str:
    name = text.removesuffix(".")
    if name.isascii():
        return name.lower()
    import idna

    try:
        return idna.encode(name, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise ValueError(f"{text!r} is no host name: {error}") from None


def _address(text: str, kind: type[IPAddress]) -> IPAddress:
    try:
        found = kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is no address") from None
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            raise ValueError(f"{text!r} is an address of one link only")
        return found.ipv4_mapped or found
    return found


def _glob(text: str) -> str:
    # A label that is not all ASCII has no ASCII form in pieces: the rest of the name has.
    head, dot, rest = text.partition(".")
    name = f"{head}.{_ascii(rest)}" if dot and head == "*" and "*" not in rest else text.lower().removesuffix(".")
    if name != "*" and (len(name) > _LONGEST or _GLOB.fullmatch(name) is None):
        raise ValueError(f"{text!r} is no pattern of host names")
    return name


@lru_cache(maxsize=256)
def _labels(glob: str) -> tuple[re.Pattern[str], ...]:
    return tuple(label_pattern(label) for label in glob.split("."))


def _is_meant(glob: str, name: str) -> bool:
    """`*.` at the front stands for any names below, any other `*` for a part of one label, `*` alone for every name."""
    if glob == "*":
        return bool(name)
    below = glob.startswith("*.")
    patterns, labels = _labels(glob.removeprefix("*.")), name.split(".")
    above = len(labels) - len(patterns)
    if (above < 1 or "" in labels[:above]) if below else above:
        return False
    return all(pattern.match(label) for pattern, label in zip(patterns, labels[above:], strict=True))
