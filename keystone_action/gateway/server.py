"""The gateways of a run: each cell has a port of its own, all in one thread. Connections are those of uvicorn, with
limits on what comes before a request is read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from keystone_action.gateway.application import Application, GatewaySettings
from keystone_action.gateway.request import Bodies
from keystone_action.gateway.upstreams import SILENT_SECONDS, UpstreamClient
from keystone_action.network.guarded_listener import accept, no_port
from keystone_action.network.loop_thread import DEFECTS, LoopThread
from keystone_action.pricing import read_prices

_BACKLOG = 256
CONNECTIONS = 256
"""Of a cell at the same time; further ones wait until one is over."""
_IDLE_SECONDS = 120
"""Of a connection between two requests: longer than clients keep one, so that none is closed while it is used."""


class Gateways:
    """Opens and closes the gateways of cells. Call `start` before and `stop` after that, from any thread.

    trust: a bundle of certificates; None = the usual ones. silent: seconds that a provider may take for its next byte.
    """

    def __init__(self, trust: str | None = None, silent: float = SILENT_SECONDS) -> None:
        self._thread = LoopThread("keystone-gateway", "the model gateway")
        self._trust, self._silent = trust, silent
        self._client: UpstreamClient | None = None
        self._open: set[OpenGateway] = set()
        self._reading = asyncio.Lock()

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in our own code and can't be ascribed to one cell. With any, the gateways of all cells may
        have missed something."""
        return tuple(self._thread.defects)

    def start(self) -> None:
        """Raises ServiceError."""
        self._thread.start()
        with contextlib.suppress(RuntimeError):  # no thread for it: they are read when they are asked for
            threading.Thread(target=read_prices, name="keystone-prices", daemon=True).start()

    def stop(self) -> None:
        """Close all gateways."""
        self._thread.stop(self._close_all)

    async def open(self, settings: GatewaySettings, address: str = "127.0.0.1") -> OpenGateway:
        """Open the gateway of one cell; it listens. Raises ServiceError."""
        return await self._thread.call(self._opened(settings, address))

    async def close(self, gateway: OpenGateway) -> None:
        """Close a gateway. Answers under way end, and are counted as far as they came."""
        await self._thread.call(self._closed(gateway))

    async def _opened(self, settings: GatewaySettings, address: str) -> OpenGateway:
        gateway = OpenGateway(Application(settings, self._asking, Bodies(self._reading)), address)
        gateway.start()
        self._open.add(gateway)
        return gateway

    def _asking(self) -> UpstreamClient:
        """The client that asks providers, made with the first request that needs it."""
        self._client = self._client or UpstreamClient(self._trust, self._silent)
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
    """A gateway that listens. It lives in the gateways' loop, except for its address and its defects."""

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
        """What went wrong in our own code for this cell. With any, its gateway may have missed something."""
        return tuple(self._defects)

    def start(self) -> None:
        """Raises ServiceError."""
        # It tells of clients that hang up, at length; what is ours to tell, `defects` has.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        try:
            self._listening = socket.create_server((self.address, 0), backlog=_BACKLOG)
        except OSError as error:
            raise no_port(self.address, error) from error
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        config = Config(
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
        # was an import of itself

        DEFECTS.set(self._defects)  # of its connections and requests, too: these are started from here
        loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(CONNECTIONS)
        async for accepted, _ in accept(listening, slots):
            try:
                await loop.connect_accepted_socket(partial(AgentConnection, config, state, slots.release), accepted)
            except OSError:  # it was closed at once
                accepted.close()
                slots.release()

    async def stop(self) -> None:
        """End every connection at once. What was under way is counted as far as it came. A second call does nothing."""
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


HEAD_LIMIT = 64 << 10
"""Bytes of a request before its body."""
HEAD_SECONDS = 30.0
"""For all of them, and for the first one."""
UNREAD_SECONDS = 60.0
"""For a client to read what it was sent. One that doesn't is as good as gone, and must not hold an answer up."""


class AgentConnection(HttpToolsProtocol):
    """A connection of an agent. over: called when it has ended."""

    def __init__(self, config: Config, state: ServerState, over: Callable[[], None]) -> None:
        super().__init__(config, state, {})
        self._over = over
        self._head_bytes = 0
        self._too_slow: asyncio.TimerHandle | None = None
        """While the head of a request is awaited."""
        self._too_deaf: asyncio.TimerHandle | None = None
        """While more was sent than the client reads."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_pause()
        super().connection_lost(exc)
        self._over()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._too_slow is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._too_slow is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_pause()
        self._too_deaf = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_pause()
        super().resume_writing()

    def _end_pause(self) -> None:
        if self._too_deaf is not None:
            self._too_deaf.cancel()
            self._too_deaf = None

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._too_slow = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _end_head(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None
