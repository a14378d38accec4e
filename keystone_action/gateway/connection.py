"""One connection of an agent to its cell's gateway: uvicorn's, with limits on what comes before a request is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_LIMIT = 64 << 10
"""Bytes of a request before its body."""
HEAD_SECONDS = 30.0
"""For all of them, and for the first one."""
UNREAD_SECONDS = 60.0
"""For a client to read what it was sent. One that doesn't is as good as gone, and must not hold an answer up."""


class Connection(HttpToolsProtocol):
    """over: called when it has ended."""

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
