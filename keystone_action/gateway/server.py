"""The gateways of a run: each cell has a port of its own, all in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

from keystone_action.gateway.application import Application, Settings
from keystone_action.gateway.bodies import Bodies
from keystone_action.gateway.upstreams import SILENT_SECONDS, Client
from keystone_action.network.guarded_listener import accept, no_port
from keystone_action.network.loop_thread import DEFECTS, LoopThread
from keystone_action.pricing import read_prices

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

_BACKLOG = 256
CONNECTIONS = 256
"""Of a cell at the same time; further ones wait until one is over."""
_IDLE_SECONDS = 120
"""Of a connection between two requests: longer than clients keep one, so that none is closed while it is used."""


class Gateways:
    """Opens and closes the gateways of cells. `start` before, `stop` after; both may be called from any thread.

    trust: a bundle of certificates, None = the usual ones. silent: seconds that a provider may think.
    """

    def __init__(self, trust: str | None = None, silent: float = SILENT_SECONDS) -> None:
        self._thread = LoopThread("keystone-gateway", "the model gateway")
        self._trust, self._silent = trust, silent
        self._client: Client | None = None
        self._open: set[OpenGateway] = set()
        self._reading = asyncio.Lock()

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in our own code and is no one cell's: with any, what all of them saw may be incomplete."""
        return tuple(self._thread.defects)

    def start(self) -> None:
        """Raises ServiceError."""
        self._thread.start()
        with contextlib.suppress(RuntimeError):  # no thread for it: they are read when they are asked for
            threading.Thread(target=read_prices, name="keystone-prices", daemon=True).start()

    def stop(self) -> None:
        """Closes all."""
        self._thread.stop(self._close_all)

    async def open(self, settings: Settings, address: str = "127.0.0.1") -> OpenGateway:
        """The gateway of one cell, listening. Raises ServiceError."""
        return await self._thread.call(self._opened(settings, address))

    async def close(self, gateway: OpenGateway) -> None:
        """It answers nobody any more. What is under way ends, and is counted as far as it came."""
        await self._thread.call(self._closed(gateway))

    async def _opened(self, settings: Settings, address: str) -> OpenGateway:
        gateway = OpenGateway(Application(settings, self._asking, Bodies(self._reading)), address)
        gateway.start()
        self._open.add(gateway)
        return gateway

    def _asking(self) -> Client:
        """What asks providers: made with the first request that goes to one."""
        self._client = self._client or Client(self._trust, self._silent)
        return self._client

    async def _closed(self, gateway: OpenGateway) -> None:
        self._open.discard(gateway)
        await gateway.stop()

    async def _close_all(self) -> None:
        await asyncio.gather(*(gateway.stop() for gateway in self._open))
        self._open.clear()
        if self._client is not None:
            await self._client.close()


class OpenGateway:
    """One that listens. Lives in the gateways' loop, but for its address and its defects."""

    def __init__(self, application: Application, address: str) -> None:
        self._application = application
        self.address = address
        self.port = 0
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._state: ServerState | None = None
        self._defects: list[str] = []

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in our own code for this cell: with any, what was seen of it may be incomplete."""
        return tuple(self._defects)

    def start(self) -> None:
        """Raises ServiceError."""
        import uvicorn
        from uvicorn.server import ServerState

        # It tells of clients that hang up, at length; what is ours to tell, `defects` has.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        try:
            self._listening = socket.create_server((self.address, 0), backlog=_BACKLOG)
        except OSError as error:
            raise no_port(self.address, error) from error
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        config = uvicorn.Config(
            self._application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a cell's address is never what a header says
            timeout_keep_alive=_IDLE_SECONDS,
        )
        config.load()
        self._state = ServerState()
        accepting = self._accept(self._listening, config, self._state)
        self._accepting = asyncio.get_running_loop().create_task(accepting)

    async def _accept(self, listening: socket.socket, config: Config, state: ServerState) -> None:
        from keystone_action.gateway.connection import Connection

        DEFECTS.set(self._defects)  # of its connections and requests, too: these are started from here
        loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(CONNECTIONS)
        async for accepted, _ in accept(listening, slots):
            try:
                await loop.connect_accepted_socket(partial(Connection, config, state, slots.release), accepted)
            except OSError:  # it was closed at once
                accepted.close()
                slots.release()

    async def stop(self) -> None:
        """Ends every connection at once; what was under way is counted as far as it came. Harmless when repeated."""
        if self._accepting is None or self._listening is None or self._state is None:
            return
        accepting, self._accepting = self._accepting, None
        if accepting.done():
            self._defects.append(f"it ended by itself: {None if accepting.cancelled() else accepting.exception()!r}")
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        self._listening.close()
        under_way = list(self._state.tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.abort()
