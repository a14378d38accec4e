"""What only we can reach, for the containers of one cell: a port of ours whose connections go on to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from keystone_action.engine.networks import ContainerNetwork
from keystone_action.network.guarded_listener import Connection, GuardedListener, closing_writer, pass_both_ways
from keystone_action.network.loop_thread import LoopThread
from keystone_action.network.outside import Outside
from keystone_action.system.cleanup import undoing

CONNECTIONS = 256
"""Connections of one relay at a time; further ones wait until one is over."""
CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """Where a relay's connections go. host: a name or an address, looked up by us for each of them."""

    host: str
    port: int


class Relay:
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

    async def _connect(self) -> Connection:
        """To the first address that takes it. Raises OSError."""
        failed = OSError(f"{self._target.host} has no address")
        for address in await self._outside.resolve(self._target.host):
            try:
                return await self._outside.connect(address, self._target.port)
            except OSError as error:
                failed = error
        raise failed


class Relays:
    """Those of one service. thread: one to share [its own, when the first is opened]."""

    def __init__(self, thread: LoopThread | None = None) -> None:
        self._owns_thread = thread is None
        self._thread = thread if thread is not None else LoopThread("keystone-relay", "the relay to services")

    @asynccontextmanager
    async def open(self, network: ContainerNetwork, target: RelayTarget) -> AsyncIterator[Relay]:
        """A relay for the block. Raises ServiceError."""
        relay = Relay(self._thread, network, target)
        await relay.open()
        async with undoing(relay.close):
            yield relay

    async def stop(self) -> None:
        """End a thread of its own. Never raises."""
        if self._owns_thread:
            self._thread.stop(_nothing)


async def _nothing() -> None:
    return
