"""Our side of closed networks: which way there is to close one, and what comes out of a command's network namespace.

What connects in there to an address of the cell is passed on to that address here, byte for byte, its end and its
breaking off too; and we connect to what listens in there. In a thread of its own, so that a service answers an agent
while the run is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from keystone_action.errors import SandboxError, ServiceError
from keystone_action.network.loop_thread import LoopThread
from keystone_action.sandbox.processes import wire
from keystone_action.sandbox.processes.closed_network import NetworkAddress
from keystone_action.sandbox.processes.wire import ClosedNetworkWay

if TYPE_CHECKING:
    from keystone_action.sandbox.processes.client import LauncherClient
    from keystone_action.sandbox.protocol import Sandbox, SandboxProvider

_CHUNK = 64 << 10
_TABLES = 2
_PAUSE = 0.01
_LINGER = 5.0
"""Seconds for which what a command sent before its end is still passed on."""
_BREAK_OFF = struct.pack("ii", 1, 0)  # SO_LINGER
_MOST_OF_CELL = 256
"""Connections of a cell at a time; further ones wait in the kernel until one is over."""
_LEAST_OF_CELL = 8
"""It can have so many whatever others hold on to."""
_DESCRIPTORS_EACH = 8
"""A connection takes two of our descriptors, and up to two more where a mock or the gateway answers it: however many
connections there are, this leaves half of the descriptors to the run."""


class ProcessNetworks:
    """The closed networks of a run's process sandboxes."""

    def __init__(self, launcher: LauncherClient, *, has_isolation: bool, has_landlock: bool) -> None:
        self._launcher = launcher
        self._has_isolation, self._has_landlock = has_isolation, has_landlock
        self._thread = LoopThread("keystone-relay", "the relay out of closed networks")
        self._room = RelayRoom()
        self.way: ClosedNetworkWay | None = None
        """How they are closed; None where nobody asked yet, or there is no way."""

    async def find_way(self, *, without: Collection[ClosedNetworkWay] = ()) -> ClosedNetworkWay | None:
        """The best way that this machine has, found by trying. Where nothing isolates commands there is none: they
        could have other processes of their user connect for them. Raises SandboxError."""
        if self._has_isolation:
            needs_landlock = () if self._has_landlock else ("ports",)
            found = await self._launcher.closed_networks()
            self.way = next((way for way in found if way not in (*without, *needs_landlock)), None)
        return self.way

    def closed(self, addresses: Collection[NetworkAddress]) -> ClosedNetwork:
        """A network that leads to these addresses alone. Raises ServiceError, SandboxError."""
        if self.way is None:
            raise SandboxError("this machine has no way to close a command's network")
        if self.way == "namespace":
            self._thread.start()
        return ClosedNetwork(self.way, tuple(dict.fromkeys(addresses)), self._thread, CellRoom(self._room))

    def stop(self) -> None:
        """Never raises."""
        self._thread.stop(_nothing)


async def _nothing() -> None:
    return


class RelayRoom:
    """For how many more connections of all cells there is room. Lives in the relay's thread. most: None for as many as
    this process has descriptors for."""

    def __init__(self, most: int | None = None) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allowed = soft if soft != resource.RLIM_INFINITY else 1 << 20
        self.left = max(1, allowed // _DESCRIPTORS_EACH) if most is None else most


class CellRoom:
    """One cell's part. Beyond the least, it grows no larger than what is then left for others."""

    def __init__(self, run: RelayRoom) -> None:
        self._run = run
        self._taken = 0

    def is_left(self) -> bool:
        """Whether the cell may have one more connection."""
        return self._taken < max(_LEAST_OF_CELL, min(_MOST_OF_CELL, self._run.left))

    def take(self) -> None:
        """For one connection."""
        self._taken += 1
        self._run.left -= 1

    def give_back(self) -> None:
        """It is over."""
        self._taken -= 1
        self._run.left += 1


class ClosedNetwork(NamedTuple):
    """How the network of a sandbox's commands is closed."""

    way: ClosedNetworkWay
    addresses: tuple[NetworkAddress, ...]
    """What they reach all the same."""
    thread: LoopThread
    room: CellRoom

    def relay(self) -> NamespaceRelay | None:
        """For one command; None where it needs none."""
        return NamespaceRelay(self.thread, self.addresses, self.room) if self.way == "namespace" else None


class ClosedProvider:
    """The sandboxes of a provider, their networks closed; those on the host are the author's, and stay open."""

    def __init__(self, real: SandboxProvider, network: ClosedNetwork) -> None:
        self._real = real
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def open(self, *arguments: Any, **named: Any) -> Sandbox:
        """See `SandboxProvider.open`."""
        sandbox: Any = await self._real.open(*arguments, **named)
        sandbox.network = self._network
        return cast("Sandbox", sandbox)


class NamespaceRelay:
    """The network namespace of one command. addresses: those that it reaches. room: for its connections to them."""

    def __init__(self, thread: LoopThread, addresses: Sequence[NetworkAddress], room: CellRoom) -> None:
        self._thread = thread
        self._addresses = addresses
        self._room = room
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._opening: asyncio.Task[None] | None = None
        self._tables: tuple[int, ...] = ()
        self._relays: list[_Relay] = []
        self._asking = asyncio.Lock()

    @property
    def passed(self) -> int:
        """The descriptor that the supervisor gets."""
        return self._theirs.fileno()

    def begin(self, stop: Callable[[], Awaitable[None]]) -> None:
        """The supervisor has got the command. stop: ends the command, which would wait in vain for what we can't pass
        on; `close` then raises."""
        self._theirs.close()
        self._opening = asyncio.ensure_future(self._open(stop))

    async def _open(self, stop: Callable[[], Awaitable[None]]) -> None:
        count = len(self._addresses)
        try:
            found = await self._receive(count + _TABLES)
        except SandboxError:
            await stop()
            raise
        self._tables = tuple(found[count:])
        for one, address in zip(map(_socket_of, found[:count]), self._addresses if found else (), strict=True):
            self._relays.append(_Relay(one, address, self._room))
        await self._thread.call(self._start())

    async def _start(self) -> None:
        for relay in self._relays:
            relay.start()

    async def _receive(self, count: int) -> list[int]:
        """The descriptors of the next message, so many; none at the end. Raises SandboxError when some are missing."""
        await _until_readable(self._ours)
        try:
            data, found, flags, _ = socket.recv_fds(self._ours, len(wire.MARK), count, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:  # the supervisor was killed, which others tell
            return []
        if not data or len(found) == count:
            return found
        for descriptor in found:
            os.close(descriptor)
        short = bool(flags & socket.MSG_CTRUNC)
        raise SandboxError(
            f"of {count} sockets of a command's closed network, {len(found)} arrived"
            + (": this program has no descriptor left" if short else ""),
            help="raise its limit (`ulimit -n`), or lower parallelism.max_concurrency" if short else "",
        )

    def rows(self) -> list[str]:
        """Those of its tables of TCP sockets."""
        found: list[str] = []
        for table in self._tables:
            text = bytearray()
            while piece := os.pread(table, _CHUNK, len(text)):
                text += piece
            found += text.decode("ascii", "replace").splitlines()
        return found

    async def connect(self, channel: wire.Sender, address: str, port: int) -> socket.socket:
        """A connection to what listens in there. channel: to the command's supervisor. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        async with self._asking:
            await channel.send({"socket": int(family)})
            try:
                async with asyncio.timeout(_LINGER):
                    found = await self._receive(1)
            except SandboxError as error:
                raise OSError(errno.EMFILE, str(error)) from error
        if not found:
            raise ConnectionAbortedError("the command has ended")
        made = socket.socket(family, socket.SOCK_STREAM, fileno=found[0])
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except BaseException:
            made.close()
            raise
        return made

    async def close(self) -> None:
        """The command has ended: pass on what it sent, and end its connections."""
        try:
            if self._opening is not None:
                if not self._opening.done() and not self._is_readable():
                    self._opening.cancel()
                await asyncio.wait([self._opening])
            with contextlib.suppress(ServiceError):
                await self._thread.call(self._finish())
        finally:
            for table in self._tables:
                os.close(table)
            self._tables = ()
            self._ours.close()
            self._theirs.close()
        if self._opening is not None and not self._opening.cancelled():
            self._opening.result()

    def _is_readable(self) -> bool:
        with contextlib.suppress(OSError):  # nothing yet, or the supervisor was killed
            return bool(self._ours.recv(1, socket.MSG_PEEK))
        return False

    async def _finish(self) -> None:
        await asyncio.gather(*(relay.finish() for relay in self._relays))


def _socket_of(descriptor: int) -> socket.socket:
    made = socket.socket(fileno=descriptor)
    made.setblocking(False)
    return made


async def _until_readable(waited_for: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(waited_for, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(waited_for)


class _Relay:
    """One address. listening: at which nothing blocks."""

    def __init__(self, listening: socket.socket, address: NetworkAddress, room: CellRoom) -> None:
        self._listening = listening
        self._address = address
        self._room = room
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            await _until_readable(self._listening)
            await self._accept_waiting()

    async def _accept_waiting(self) -> None:
        """Those that wait in the kernel, each as soon as there is room for it."""
        while True:
            while not self._room.is_left():  # noqa: ASYNC110 - of whatever cell a connection ends next
                await asyncio.sleep(_PAUSE)
            try:
                accepted, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptors left, or a client that gave up
                await asyncio.sleep(_PAUSE)
            else:
                self._serve(accepted)

    def _serve(self, accepted: socket.socket) -> None:
        self._room.take()
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(_relay(accepted, self._address))
        self._connections.add(task)
        task.add_done_callback(partial(self._on_end, accepted))

    def _on_end(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        accepted.close()  # by itself it was not, where the task never ran
        self._connections.discard(task)
        self._room.give_back()

    async def finish(self) -> None:
        """Nobody connects any more, and all that was to be sent has been."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                await self._accept_waiting()
                while self._connections:
                    await asyncio.wait(self._connections)
        self._listening.close()
        late = list(self._connections)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _socket() -> socket.socket:
    """As soon as this process has a descriptor for it: that it has none now is not the command's fault."""
    while True:
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        await asyncio.sleep(_PAUSE)


async def _relay(here: socket.socket, address: NetworkAddress) -> None:
    loop = asyncio.get_running_loop()
    ends = [here]
    try:
        there = await _socket()
        ends.append(there)
        there.setblocking(False)
        for one in ends:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(there, address)
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_pass_on(here, there))
            directions.create_task(_pass_on(there, here))
    except* OSError:  # one side broke off: so does the other
        for one in ends:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BREAK_OFF)
    finally:
        for one in ends:
            one.close()


async def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until the end of what the source sends. Raises OSError when the source breaks off."""
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, _CHUNK):
        try:
            await loop.sock_sendall(target, piece)
        except OSError:  # it does not listen any more; what it said before is on its way in the other direction
            return
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
