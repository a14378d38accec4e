"""What is said over the sockets between us, the launcher and its supervisors: one JSON object, then raw bytes.

Only the standard library, and little of it: the launcher imports this and is to stay small.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, Literal, Protocol, TypedDict

HEADER = struct.Struct("!II")
"""Length in bytes of the JSON text and of what follows it."""

WireMessage = dict[str, Any]

MARK = b"."
"""What file descriptors are sent with where only they matter."""

_MOST_PASSED = 8


class Sender(Protocol):
    """What messages are sent with."""

    async def send(self, message: object) -> None: ...


class CommandRequest(TypedDict):
    """One command for a supervisor. Sizes in bytes, times in seconds, None = not limited or not used."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    inside: str
    """`cwd` must be this directory or lie below it."""
    uid: int | None
    """The user (and group) it runs as."""
    groups: list[int]
    """Further groups of that user."""
    guard: int | None
    """A user that nothing runs as (`User`)."""
    rules: list[tuple[str, int]] | None
    """Landlock rules as (path, access), see `landlock`; None = not confined."""
    lasting_rules: list[tuple[str, int]]
    """Further rules, the same in every request of a run."""
    timeout: float | None
    memory: int | None
    disk: int | None
    pids: int | None
    disk_roots: list[str]
    """The trees whose size is watched."""
    head: int
    """How many of the first bytes of each stream are kept."""
    tail: int
    """How many of the last bytes of each stream are kept."""
    whole: list[tuple[int, int] | None]
    """For stdout and for stderr, None or two numbers: above how many bytes, and up to how many, all of the stream goes
    to one of the last descriptors that came with the order."""
    unix_sockets: bool
    """Whether it may make Unix sockets."""
    service: bool
    """Whether it is a service: its start is reported, it takes signals, and its output goes to the log that came with
    the order."""
    lists_processes: bool
    """Whether the report says which processes there were."""
    others: str | None
    """Where other cells have their files, for a command that gets mounts of its own (`shut_in`)."""
    closed: ClosedNetworkWay | None
    """How its network is closed (`closed_network`); None where it is this machine's."""
    reachable: list[tuple[str, int]]
    """The addresses that lead out of a closed one."""


ClosedNetworkWay = Literal["namespace", "ports"]
LastingPart = tuple[int | None, int | None, bool, bool, bool, bool, bool, ClosedNetworkWay | None]


def lasting_part(request: CommandRequest) -> LastingPart:
    """What a supervisor takes on for good with its first request: the limits (disk, pids), and what decides of
    privileges and system calls. It can serve another request for which all this is equal."""
    user, confined_files = request["uid"] is not None, request["rules"] is not None
    own_mounts = request["others"] is not None
    kind = request["unix_sockets"], request["service"]
    return request["disk"], request["pids"], user, confined_files, own_mounts, *kind, request["closed"]


def pack(message: object, blob: bytes = b"") -> bytes:
    """The bytes of one message."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(text), len(blob)) + text + blob


def receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    """`count` bytes, or None when the other side closed before they were complete. Blocks."""
    data = bytearray()
    while len(data) < count:
        piece = channel.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def receive(channel: socket.socket) -> WireMessage | None:
    """The next message (its raw bytes dropped), None at the end. Blocks."""
    header = receive_exactly(channel, HEADER.size)
    if header is None:
        return None
    size, extra = HEADER.unpack(header)
    body = receive_exactly(channel, size + extra)
    if body is None:
        return None
    message: WireMessage = json.loads(body[:size])
    return message


def receive_descriptors(channel: socket.socket, size: int = len(MARK)) -> tuple[bytes, list[int]]:
    """The file descriptors sent with up to `size` bytes, and these bytes; none at all at the end. No descriptors where
    not all could be had: this process has none left. Blocks."""
    data, ancillary, flags, _ = channel.recvmsg(size, socket.CMSG_SPACE(_MOST_PASSED * 4), socket.MSG_CMSG_CLOEXEC)
    passed: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            passed.extend(struct.unpack(f"{len(payload) // 4}i", payload))
    if flags & socket.MSG_CTRUNC:
        while passed:
            os.close(passed.pop())
    return data, passed
