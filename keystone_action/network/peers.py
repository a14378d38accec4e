"""Whose connection is this? On Linux the kernel knows the user of every local socket, and only it can't be lied to.

Asked by sock_diag (one exact look-up, some microseconds), else read from /proc/net/tcp and tcp6, whose length grows
with every socket of the machine.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

Endpoint = tuple[str, int]

_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST = 1
_TCP_LISTEN = 10
_NO_COOKIE = b"\xff" * 8
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_SOCKET_ID = struct.Struct("!HH4s12x4s12x4x8s")
_REPLY = struct.Struct("=BBBB48xIIIII")


class PeerLookup:
    """Finds the user behind the other end of a connection on the loopback interface.

    `owner` answers None where it can't be known: no kernel that tells, or the peer has already closed its socket.
    (The kernel shows a closed one with its owner while the other side has not been told, and then with user 0, which
    must not be taken for root's.)
    """

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        if hasattr(socket, "AF_NETLINK"):
            with contextlib.suppress(OSError):
                self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
                self._netlink.setblocking(False)

    def owner(self, peer: Endpoint, local: Endpoint) -> int | None:
        """The numeric user that owns the socket whose own address is `peer` and whose other end is `local`."""
        if self._netlink is not None:
            try:
                return _ask(self._netlink, peer, local)
            except OSError:  # a kernel or a seccomp filter without sock_diag
                self._netlink.close()
                self._netlink = None
        return _read(peer, local)

    def close(self) -> None:
        """Give the socket back."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None


def _ask(netlink: socket.socket, peer: Endpoint, local: Endpoint) -> int | None:
    wanted = _SOCKET_ID.pack(peer[1], local[1], socket.inet_aton(peer[0]), socket.inet_aton(local[0]), _NO_COOKIE)
    question = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + wanted
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    netlink.send(header + question)
    answer = netlink.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if error == 2:  # ENOENT: the peer is gone
            return None
        raise OSError(error, "sock_diag refused the question")
    _family, state, _timer, _retransmits, _expires, _received, _sent, user, inode = _REPLY.unpack_from(
        answer, _HEADER.size
    )
    return None if state == _TCP_LISTEN else _real_user(user, inode)


def _read(peer: Endpoint, local: Endpoint) -> int | None:
    plain = [_hexadecimal(*end) for end in (peer, local)]
    mapped = [f"0000000000000000FFFF0000{end}" for end in plain]
    for table, wanted in (("/proc/net/tcp", plain), ("/proc/net/tcp6", mapped)):
        with contextlib.suppress(OSError), Path(table).open(encoding="ascii") as rows:
            for row in rows:
                columns = row.split(None, 10)
                if columns[1:3] == wanted:
                    return _real_user(int(columns[7]), int(columns[9]))
    return None


def _hexadecimal(host: str, port: int) -> str:
    # The kernel prints the address as a number of its own byte order, the port in the network's.
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"


def _real_user(user: int, inode: int) -> int | None:
    return None if user == 0 and inode == 0 else user
