"""What an agent may reach outside, by `network.egress`, and the line in its audit log that says what it tried."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from keystone_action.evidence.audit import AuditLog, now
from keystone_action.spec.models.policies import WEB_PORTS, AllowedHost, IPAddress, parse_allowed

LAST_RECORD = 256 << 20
"""Bytes of decisions above which nothing is let through any more. Refusals cost an agent nothing: it must not be able
to make them our error, so they are no longer written down one by one."""
FULL = "nothing is let through any more"
"""The beginning of the reason in the last line, which is not about a request."""
_SHOWN = 300
"""Characters of a client's text that are kept: a host name has 253 at most."""
_METADATA: frozenset[IPAddress] = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)
"""Where clouds tell a machine its credentials. Not all are addresses of one link only; GitHub's runners have the
second."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_TUNNELS = (ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2001::/32"))
"""6to4 and Teredo: the networks on the way decide who answers there. Whether Python counts the first as global
depends on its patch version."""
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")


class Denied(Exception):  # noqa: N818 - it is an answer, not an error
    """The policy denies it; the message is the reason, as part of a sentence."""


class EgressPolicy:
    """The `allow` of an `egress` whose default is `deny`."""

    def __init__(self, allow: Sequence[str]) -> None:
        """Raises ValueError for an entry that is not a host."""
        self._entries = parse_allowed(allow)

    def permit(self, host: str | IPAddress, port: int) -> AllowedHost:
        """The entry that allows a host, which `parse_host` gave, at a port: an exact one before a glob. Raises
        Denied."""
        entries = sorted(self._entries, key=lambda entry: entry.kind == "glob")
        for entry in entries:
            if entry.allows(host, port):
                return entry
        if any(entry.names(host) for entry in entries):
            raise Denied(
                f"port {port} of {host} is not in network.egress.allow: an entry without a port allows "
                f"{WEB_PORTS[0]} and {WEB_PORTS[1]}, others are listed as {_with_port(host, port)}"
            )
        raise Denied(f"{host} is not in network.egress.allow")

    def permit_address(
        self, entry: AllowedHost, address: IPAddress, port: int, is_own: Callable[[IPAddress], bool]
    ) -> None:
        """Whether what a name stands for may be connected to. Raises Denied.

        Names belong to others, who can have them stand for anything: our own machine (whose services take us for
        their friend), the cloud's metadata, the network behind us. Globs never lead there; an exact name may be in a
        private network; the rest is reached only by an address that is listed itself. is_own: says what our own
        addresses are.
        """
        real = _unwrap(address)
        if any(one.kind == "address" and one.allows(real, port) for one in self._entries):
            return
        if entry.host == "localhost" and real.is_loopback:
            return
        if _is_never_outside(real) or is_own(real):
            raise Denied(f"{entry.text} stands for {address}, which is not outside")
        if entry.kind != "name" and (not real.is_global or any(address in tunnel for tunnel in _TUNNELS)):
            raise Denied(
                f"{address} is in a private network, to which {entry.text} does not reach: list the exact name"
            )


def _unwrap(address: IPAddress) -> IPAddress:
    """The IPv4 address that an IPv6 address leads to by translation or a tunnel, else itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    tunnel = address.teredo
    return address.ipv4_mapped or address.sixtofour or (tunnel[1] if tunnel is not None else address)


def _is_never_outside(address: IPAddress) -> bool:
    return (
        address in _METADATA
        or address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address.is_reserved
        or (isinstance(address, ipaddress.IPv4Address) and address in _THIS_NETWORK)
    )


def _with_port(host: str | IPAddress, port: int) -> str:
    return f"[{host}]:{port}" if isinstance(host, ipaddress.IPv6Address) else f"{host}:{port}"


@dataclass
class EgressRecord:
    """One request to a host outside; `connect` in the audit log."""

    host: str
    port: int | None
    method: str
    decision: Literal["allow", "deny"]
    reason: str
    """Why it was allowed or denied, and how it failed if it did."""
    bytes_sent: int = 0
    """Bytes of bodies and tunnels, without the heads that we wrote."""
    bytes_received: int = 0
    """The same, of what came back."""
    duration_s: float = 0.0


class EgressLog:
    """Writes decisions into a cell's audit log."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._bytes = 0
        self.failure: str | None = None
        """Why the log is incomplete, if it is."""
        self.full: str | None = None
        """Why nothing is let through any more, if so. What was let through before is still written."""

    def write(self, egress: EgressRecord) -> None:
        """Write one decision. Never raises: a line that can't be written is a `failure`."""
        if self.full is None or egress.decision == "allow":
            self._write(egress)
        if self.full is None and self._bytes > LAST_RECORD:
            self.full = f"more than {LAST_RECORD >> 20} MiB of decisions; those to deny are no longer recorded"
            self._write(EgressRecord("", None, "", "deny", f"{FULL}: {self.full}"))

    def _write(self, egress: EgressRecord) -> None:
        details = asdict(egress)
        details["allowed"] = details.pop("decision") == "allow"
        for name in ("host", "method", "reason"):
            details[name] = _cut(details[name])
        details["duration_s"] = round(egress.duration_s, 3)
        try:
            self._bytes += self._audit.write("connect", details, ts=now())
        except OSError as error:
            self.failure = f"a decision about the network could not be recorded: {error.strerror}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}[… {len(text) - _SHOWN:,} characters cut …]"
