"""Our side of closed networks: which way there is to close one, and what comes out of a command's network namespace.

What connects in there to an address of the cell is passed on to that address here, byte for byte, its end and its
breaking off too; and we connect to what listens in there. In a thread of its own, so that a service answers an agent
while the run is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Collection, Sequence
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


class ProcessNetworks:
    """The closed networks of a run's process sandboxes."""

    def __init__(self, launcher: LauncherClient, *, has_isolation: bool, has_landlock: bool) -> None:
        self._launcher = launcher
        self._has_isolation, self._has_landlock = has_isolation, has_landlock
        self._thread = LoopThread("keystone-relay", "the relay out of closed networks")
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
        return ClosedNetwork(self.way, tuple(dict.fromkeys(addresses)), self._thread)

    def stop(self) -> None:
        """Never raises."""
        self._thread.stop(_nothing)


async def _nothing() -> None:
    return


class ClosedNetwork(NamedTuple):
    """How the network of a sandbox's commands is closed."""

    way: ClosedNetworkWay
    addresses: tuple[NetworkAddress, ...]
    """What they reach all the same."""
    thread: LoopThread

    def relay(self) -> NamespaceRelay | None:
        """For one command; None where it needs none."""
        return NamespaceRelay(self.thread, self.addresses) if self.way == "namespace" else None


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
    """The network namespace of one command. addresses: those that it reaches."""

    def __init__(self, thread: LoopThread, addresses: Sequence[NetworkAddress]) -> None:
        self._thread = thread
        self._addresses = addresses
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

    def begin(self) -> None:
        """The supervisor has got the command."""
        self._theirs.close()
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        found = await self._receive(len(self._addresses) + _TABLES)
        listening = [socket.socket(fileno=one) for one in found[: len(self._addresses)]]
        self._tables = tuple(found[len(self._addresses) :])
        for one, address in zip(listening, self._addresses, strict=False):
            one.setblocking(False)
            self._relays.append(_Relay(one, address))
        await self._thread.call(self._start())

    async def _start(self) -> None:
        for relay in self._relays:
            relay.start()

    async def _receive(self, most: int) -> list[int]:
        """The descriptors of the next message; none at the end."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._ours, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._ours)
        _, found, _, _ = socket.recv_fds(self._ours, len(wire.MARK), most, socket.MSG_CMSG_CLOEXEC)
        return found

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
            async with asyncio.timeout(_LINGER):
                found = await self._receive(1)
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
        with contextlib.suppress(BlockingIOError):
            return bool(self._ours.recv(1, socket.MSG_PEEK))
        return False

    async def _finish(self) -> None:
        await asyncio.gather(*(relay.finish() for relay in self._relays))


class _Relay:
    """One address."""

    def __init__(self, listening: socket.socket, address: NetworkAddress) -> None:
        self._listening = listening
        self._address = address
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError:  # no descriptors left, or a client that gave up
                await asyncio.sleep(_PAUSE)
            else:
                self._serve(accepted)

    def _serve(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(_relay(accepted, self._address))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def finish(self) -> None:
        """Nobody connects any more, and all that was to be sent has been."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        with contextlib.suppress(OSError):
            while True:
                self._serve(self._listening.accept()[0])
        self._listening.close()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=_LINGER)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _relay(here: socket.socket, address: NetworkAddress) -> None:
    loop = asyncio.get_running_loop()
    there = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        there.setblocking(False)
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(there, address)
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_pass_on(here, there))
            directions.create_task(_pass_on(there, here))
    except* OSError:  # one side broke off: so does the other
        for one in (here, there):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _BREAK_OFF)
    finally:
        here.close()
        there.close()


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
