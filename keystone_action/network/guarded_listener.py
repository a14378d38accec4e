"""A port of ours that only some may reach: containers of one network, or users of this machine.

Where a connection comes from is told by its address. Which user of this machine made one, the kernel tells, and only it
can't be lied to: by sock_diag (one exact look-up, some microseconds), else by /proc/net/tcp, whose length grows with
every socket of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keystone_action.errors import ServiceError

_PAUSE_SECONDS = 0.01


async def accept(listening: socket.socket, slots: asyncio.Semaphore) -> AsyncIterator[tuple[socket.socket, Any]]:
    """The connections to a port with the addresses of their peers, each when there is a slot for it. The receiver
    releases the slot."""
    loop = asyncio.get_running_loop()
    while True:
        await slots.acquire()
        try:
            accepted = await loop.sock_accept(listening)
        except OSError:
            # No descriptors left, or a client that gave up: neither may end the port.
            slots.release()
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        except BaseException:
            slots.release()
            raise
        yield accepted


def no_port(address: str, error: OSError) -> ServiceError:
    """Why we can't listen there."""
    if error.errno == errno.EADDRNOTAVAIL:
        return ServiceError(
            f"{address} is not an address of this machine, so containers can't reach us there",
            help="The container engine must run on this machine, or this program in one of its containers.",
        )
    return ServiceError(f"no port to listen on at {address}: {error.strerror}")


CHUNK = 64 << 10
"""Bytes read at once, and held for one direction of a connection while its receiver is slow."""
LINGER_SECONDS = 5.0
_QUIET_ROUNDS = 4
_ROUND_SECONDS = 0.005
_BACKLOG = 128

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class GuardedListener:
    """Accepts connections at one address and hands them to a coroutine. Lives in one event loop.

    admits: says by a peer's address whether it may speak with us; others are hung up on, unheard. limit: connections
    at a time; further ones wait until one is over.
    """

    def __init__(self, address: str, handle: Handler, admits: Callable[[str], bool], *, limit: int) -> None:
        self._address = address
        self._handle = handle
        self._admits = admits
        self._slots = asyncio.Semaphore(limit)
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, port: int = 0) -> None:
        """Listen at this port where it is free, else at any other. Raises ServiceError."""
        try:
            self._socket = _open_socket(self._address, port)
        except OSError as error:
            raise no_port(self._address, error) from error
        self.port = self._socket.getsockname()[1]
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._socket))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async for accepted, peer in accept(listening, self._slots):
            if not self._admits(str(peer[0])):
                accepted.close()
                self._slots.release()
                continue
            task = loop.create_task(self._serve(accepted))
            self._connections.add(task)
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a connection's handler failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            reader, writer = await asyncio.open_connection(sock=accepted, limit=CHUNK)
        except BaseException as error:
            accepted.close()
            if isinstance(error, OSError):
                return  # the client went away
            raise
        async with closing_writer(writer):
            await self._handle(reader, writer)

    async def settle(self) -> None:
        """End every connection, after what was sent before was read; returns when their handlers have ended. Goes on
        listening."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            # One that was accepted just now still has to read what waits for it.
            connections = list(self._connections)
            await asyncio.sleep(_ROUND_SECONDS)
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            quiet = 0 if connections or self._connections else quiet + 1

    async def close(self) -> None:
        """Stop listening and end every connection; returns when their handlers have ended. Harmless when repeated."""
        accepting, self._accepting = self._accepting, None
        connections = list(self._connections)
        for task in (*connections, *([accepting] if accepting else [])):
            task.cancel()
        await asyncio.gather(*connections, *([accepting] if accepting else []), return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@asynccontextmanager
async def closing_writer(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closes it at the end: what was written is still sent, for some seconds, but not when we are cancelled. That the
    other end went away ends the block without an error."""
    try:
        yield
        writer.close()
        async with asyncio.timeout(LINGER_SECONDS):
            await writer.wait_closed()
    except OSError:  # a time limit's, too
        return
    finally:
        writer.transport.abort()


async def pass_both_ways(
    here: StreamPair,
    there: StreamPair,
    *,
    sent: Callable[[int], None] = lambda _: None,
    received: Callable[[int], None] = lambda _: None,
) -> None:
    """Pass on all bytes between two connections until both directions have ended. sent, received: get the size of
    each piece that goes there and that comes from there. Raises OSError when one of the two breaks off."""
    try:
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_send(here[0], there[1], sent))
            directions.create_task(_pass_on(there[0], here[1], received))
    except* OSError as errors:
        raise _first(errors) from None


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    try:
        await _pass_on(reader, writer, count)
    except OSError:
        if reader.exception() is not None:
            raise
        # A server may answer and hang up before it was told everything: its answer is still to come.


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    while piece := await reader.read(CHUNK):
        writer.write(piece)
        count(len(piece))
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _first(errors: BaseExceptionGroup[OSError]) -> OSError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _open_socket(address: str, port: int) -> socket.socket:
    try:
        made = socket.create_server((address, port), backlog=_BACKLOG)
    except OSError as error:
        # Taken by somebody else, or below 1024 and not for us.
        if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        made = socket.create_server((address, 0), backlog=_BACKLOG)
    made.setblocking(False)
    return made


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
