"""The gateways of a run: each cell has a port of its own, all in one thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError
from keystone_action.gateway.application import Application, Settings
from keystone_action.gateway.upstreams import Client
from keystone_action.services.accepting import no_port
from keystone_action.services.loop_thread import LoopThread

if TYPE_CHECKING:
    import uvicorn

_BACKLOG = 256
_CLOSE_SECONDS = 2.0
_START_SECONDS = 10.0


class Gateways:
    """Opens and closes the gateways of cells. `start` before, `stop` after; both may be called from any thread."""

    def __init__(self, trust: str | None = None) -> None:
        self._thread = LoopThread("keystone-gateway", "the model gateway")
        self._trust = trust
        self._client: Client | None = None
        self._open: set[OpenGateway] = set()

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in our own code: with any, what it saw may be incomplete."""
        return tuple(self._thread.defects)

    def start(self) -> None:
        """Raises ServiceError."""
        self._thread.start()

    def stop(self) -> None:
        """Closes all."""
        self._thread.stop(self._close_all)

    async def open(self, settings: Settings, address: str = "127.0.0.1") -> OpenGateway:
        """The gateway of one cell, listening. Raises ServiceError."""
        return await self._thread.call(self._opened(settings, address))

    async def close(self, gateway: OpenGateway) -> None:
        """It answers nobody any more. What is under way ends."""
        await self._thread.call(self._closed(gateway))

    async def _opened(self, settings: Settings, address: str) -> OpenGateway:
        self._client = self._client or Client(self._trust)
        gateway = OpenGateway(Application(settings, self._client), address)
        await gateway.start()
        self._open.add(gateway)
        return gateway

    async def _closed(self, gateway: OpenGateway) -> None:
        self._open.discard(gateway)
        await gateway.stop()

    async def _close_all(self) -> None:
        await asyncio.gather(*(gateway.stop() for gateway in self._open))
        self._open.clear()
        if self._client is not None:
            await self._client.close()


class OpenGateway:
    """One that listens. Lives in the gateways' loop, but for its address."""

    def __init__(self, application: Application, address: str) -> None:
        self._application = application
        self.address = address
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ServiceError."""
        import uvicorn

        # It tells of clients that hang up, at length; what is ours to tell, `Gateways.defects` has.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        try:
            listening = socket.create_server((self.address, 0), backlog=_BACKLOG)
        except OSError as error:
            raise no_port(self.address, error) from error
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,  # a cell's address is never what a header says
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listening]))
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if self._serving.done() or time.monotonic() > deadline:
                await self.stop()
                raise ServiceError("the model gateway did not start")
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Harmless when repeated."""
        server, serving, self._server, self._serving = self._server, self._serving, None, None
        if server is None or serving is None:
            return
        server.should_exit = True
        await asyncio.wait([serving], timeout=_CLOSE_SECONDS)
        server.force_exit = True
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
