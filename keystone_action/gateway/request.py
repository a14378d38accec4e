"""A request of an agent over ASGI, its body and the reply to it. Bodies take a bounded part of our memory, and reading
one does not hold up other cells."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.upstreams import HeaderLines, Upstream

BODY_LIMIT = 32 << 20
"""Bytes of a request."""
BODY_SECONDS = 120.0
"""For all of them."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request as an agent sent it."""

    scope: Scope
    receive: Receive
    upstream: Upstream
    path: str
    """Below the provider's name."""

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def query(self) -> str:
        return str(self.scope["query_string"].decode("latin-1"))

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def headers(self) -> HeaderLines:
        return list(self.scope["headers"])

    def header(self, name: bytes) -> str:
        """The first one's value."""
        return next((value.decode("latin-1") for one, value in self.headers if one.lower() == name), "")

    def given_keys(self) -> Sequence[str]:
        """The keys in the request, from every place where an API may have its key."""
        scheme, _, token = self.header(b"authorization").partition(" ")
        in_headers = [
            token.strip() if scheme.lower() == "bearer" else "",
            self.header(b"x-api-key"),
            self.header(b"x-goog-api-key"),
        ]
        in_query = [value for name, value in parse_qsl(self.query) if name == "key"]
        return [key for key in (*in_headers, *in_query) if key]

    async def body(self) -> bytes:
        """Raises Refusal."""
        content = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client left")
                    content += message.get("body", b"")
                    if len(content) > BODY_LIMIT:
                        raise Refusal(413, f"a request may have {BODY_LIMIT:,} bytes")
                    if not message.get("more_body"):
                        return bytes(content)
        except TimeoutError:
            raise Refusal(408, "the request did not come to its end") from None

    async def left(self) -> None:
        """Returns when the client has hung up. Call it only after `body`."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class AgentReply:
    """The answer to an agent.

    is_gone: the client has left. is_cut: the provider's answer broke off, and so does ours. was_seen: something of the
    body was sent before the client left. heard: when the provider last sent something. silence: how many seconds that
    was before the client left.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.is_gone = self.is_cut = self.was_seen = False
        self.status = 0
        self.heard, self.silence = time.monotonic(), 0.0

    def leave(self) -> None:
        """Called when the client has hung up."""
        self.is_gone, self.silence = True, time.monotonic() - self.heard

    async def json(self, status: int, document: Mapping[str, Any]) -> None:
        """Send a reply of our own, unless one has begun."""
        if self.started:
            return
        content = json.dumps(document).encode()
        length = str(len(content)).encode()
        await self.start(status, [(b"content-type", b"application/json"), (b"content-length", length)])
        await self.body(content)
        await self.end()

    async def start(self, status: int, headers: HeaderLines) -> None:
        """Send the head."""
        self.started, self.status, self.heard = True, status, time.monotonic()
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes) -> None:
        """Send the next piece of the body."""
        if piece:
            self.heard = time.monotonic()
            self.was_seen = self.was_seen or not self.is_gone
            await self._sent({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """The answer is complete. The end of one that was cut, or that nobody reads, is not sent: the server hangs
        up."""
        if not self.is_cut and not self.is_gone:
            await self._sent({"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, message: dict[str, Any]) -> None:
        if not self.is_gone:
            await self._send(message)  # it doesn't raise where the client has left


MEMORY_LIMIT = 2 * BODY_LIMIT
"""Bytes of a cell's bodies at the same time; at least one of the longest has a place."""
SMALL = 256 << 10
"""Bytes of a body that needs no place of its own: there are only so many requests at once."""
SHORT = 16 << 10
"""Bytes of a body that is read at once: a thread would take longer."""

Result = TypeVar("Result")


class Bodies:
    """The bodies of one cell's requests. reading: a lock of the whole run, held while a body is read."""

    def __init__(self, reading: asyncio.Lock) -> None:
        self._reading, self._reading_own = reading, asyncio.Lock()
        self._free = MEMORY_LIMIT
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def place_for(self, request: AgentRequest) -> AsyncIterator[Callable[[int], None]]:
        """Waits until there is room for the body of this request, and keeps the room to the end of the block. Gives a
        function to call with the size of the body once that is known."""
        place = _most(request)
        if place:
            async with self._turn:  # in the order in which they came, so that a long one is not passed by for ever
                while self._free < place:
                    self._freed.clear()
                    await self._freed.wait()
                self._free -= place

        def shrink(size: int) -> None:
            nonlocal place
            needed = min(place, size) if size > SMALL else 0
            self._give_back(place - needed)
            place = needed

        try:
            yield shrink
        finally:
            self._give_back(place)

    def _give_back(self, size: int) -> None:
        self._free += size
        self._freed.set()

    async def read(self, size: int, reader: Callable[[], Result]) -> Result:
        """What the reader returns for a body. A long body is read in a thread, one at a time, and each cell has its
        turn."""
        if size <= SHORT:
            return reader()
        async with self._reading_own, self._reading:
            return await asyncio.to_thread(reader)


def _most(request: AgentRequest) -> int:
    """How many bytes of room the body needs."""
    if request.method != "POST":
        return 0
    told = request.header(b"content-length")
    size = int(told) if told.isdecimal() and len(told) < 20 else BODY_LIMIT
    return 0 if size <= SMALL else min(size, BODY_LIMIT)
