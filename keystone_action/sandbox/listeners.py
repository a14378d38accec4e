"""Who listens on a TCP port, as Linux tells it in /proc/net/tcp and tcp6: no packet of ours disturbs a server."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_ANY = {"0.0.0.0": ("127.0.0.1",), "::": ("127.0.0.1", "::1")}  # noqa: S104 - compared with, never bound to
"""Where a server that listens everywhere is reached; one of IPv6 takes IPv4 too, unless it said otherwise."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. addresses: where it is reached from the same machine, the likeliest first. uid: whose."""

    addresses: tuple[str, ...]
    uid: int


def listeners(rows: Iterable[str], port: int) -> Iterator[Listener]:
    """Those of a port among the rows of these tables; other rows are left out."""
    for row in rows:
        columns = row.split()
        if len(columns) < 8 or columns[3] != _LISTEN:
            continue
        number, _, digits = columns[1].partition(":")
        try:
            if int(digits, 16) != port:
                continue
            address = _address(number)
            uid = int(columns[7])
        except (ValueError, struct.error, OSError):
            continue
        yield Listener(_ANY.get(address, (address,)), uid)


def _address(digits: str) -> str:
    """The kernel prints each 32 bits as a number of its own byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
