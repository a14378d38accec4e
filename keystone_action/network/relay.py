"""A port of ours for the containers of one cell, whose connections go on to what only we can reach.

`Outside` looks up names and connects; tests put their own in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from keystone_action.engine.networks import ContainerNetwork
from keystone_action.network.guarded_listener import CHUNK, GuardedListener, StreamPair, closing_writer, pass_both_ways
from keystone_action.network.loop_thread import LoopThread
from keystone_action.spec.models.policies import IPAddress
from keystone_action.system.shutdown import undoing

_LOOK_UPS = 32
_ROUTES = Path("/proc/net/route")


class Outside:
    """Looks up names and connects. One object belongs to one event loop."""

    def __init__(self) -> None:
        self._look_ups = asyncio.Semaphore(_LOOK_UPS)

    async def resolve(self, host: str) -> list[IPAddress]:
        """The addresses of a name, the preferred ones first; of an address, itself. Raises OSError."""
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        async with self._look_ups:
            return await asyncio.shield(_in_a_thread_of_its_own(host))

    async def connect(self, address: IPAddress, port: int) -> StreamPair:
        """To exactly this address: nothing is looked up again. Raises OSError."""
        return await asyncio.open_connection(str(address), port, limit=CHUNK)

    def is_own(self, address: IPAddress) -> bool:
        """Whether this machine has this address, or reaches others through it: then what is behind it is our own
        neighbourhood."""
        return _is_local(address) or address in _gateways()


def _in_a_thread_of_its_own(host: str) -> asyncio.Future[list[IPAddress]]:
    # Threads of an executor are waited for when the program ends, and a name server may take half a minute to fail.
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[IPAddress]] = loop.create_future()

    def settle(addresses: list[IPAddress], error: BaseException | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)
            found.exception()  # nobody may be waiting any more

    def resolve_host() -> None:
        addresses: list[IPAddress] = []
        failed: BaseException | None = None
        try:
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            texts = dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows)
            addresses = [ipaddress.ip_address(text) for text in texts]
        except UnicodeError as error:
            failed = OSError(str(error))
        except BaseException as error:  # noqa: BLE001 - told to the caller that waits
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, addresses, failed)

    threading.Thread(target=resolve_host, name="keystone-look-up", daemon=True).start()
    return found


def _is_local(address: IPAddress) -> bool:
    # Only what is ours can be bound to.
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _gateways() -> set[IPAddress]:
    """Where our own routes lead: in a container, the machine that it runs on."""
    found: set[IPAddress] = set()
    with contextlib.suppress(OSError):
        for row in _ROUTES.read_text(encoding="ascii").splitlines()[1:]:
            # interface, destination, gateway (hexadecimal, in this machine's order of bytes)
            found.add(ipaddress.IPv4Address(struct.pack("=I", int(row.split()[2], 16))))
    return found


CONNECTIONS = 256
"""Connections of one relay at a time; further ones wait until one is over."""
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """Where a relay's connections go."""

    host: str
    """A name or an address. We look it up for each connection."""
    port: int


class PortRelay:
    """One port at one network's `host_address`, for that network's containers alone."""

    def __init__(self, thread: LoopThread, network: ContainerNetwork, target: RelayTarget) -> None:
        self._thread = thread
        self._target = target
        self._outside = Outside()
        self._address = network.host_address
        self._admits = network.admits
        self._listener: GuardedListener | None = None

    @property
    def port(self) -> int:
        """The target's own port where it was free, else another. Only while it is open."""
        assert self._listener is not None
        return self._listener.port

    async def open(self) -> None:
        """Raises ServiceError."""
        self._thread.start()
        self._listener = await self._thread.call(self._open())

    async def _open(self) -> GuardedListener:
        listener = GuardedListener(self._address, self._forward, self._admits, limit=CONNECTIONS)
        await listener.open(self._target.port)
        return listener

    async def close(self) -> None:
        """Ends every connection. Harmless when it was never opened, or the thread does not run any more."""
        listener, self._listener = self._listener, None
        if listener is not None and self._thread.loop is not None:
            await self._thread.call(listener.close())

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            onward_reader, onward = await self._connect()
        async with closing_writer(onward):
            await pass_both_ways((reader, writer), (onward_reader, onward))

    async def _connect(self) -> StreamPair:
        """To the first address that takes it. Raises OSError."""
        failed = OSError(f"{self._target.host} has no address")
        for address in await self._outside.resolve(self._target.host):
            try:
                return await self._outside.connect(address, self._target.port)
            except OSError as error:
                failed = error
        raise failed


class PortRelays:
    """Those of one service. thread: one to share [its own, when the first is opened]."""

    def __init__(self, thread: LoopThread | None = None) -> None:
        self._owns_thread = thread is None
        self._thread = thread if thread is not None else LoopThread("keystone-relay", "the relay to services")

    @asynccontextmanager
    async def open(self, network: ContainerNetwork, target: RelayTarget) -> AsyncIterator[PortRelay]:
        """A relay for the block. Raises ServiceError."""
        relay = PortRelay(self._thread, network, target)
        await relay.open()
        async with undoing(relay.close):
            yield relay

    async def stop(self) -> None:
        """End a thread of its own. Never raises."""
        if self._owns_thread:
            self._thread.stop(_nothing)


async def _nothing() -> None:
    return
