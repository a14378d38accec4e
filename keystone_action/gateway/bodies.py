"""The bodies of one cell's requests: bounded in our memory, and read without holding up other cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from keystone_action.gateway.conversation import BODY_LIMIT, Request

MEMORY_LIMIT = 2 * BODY_LIMIT
"""Bytes of a cell's bodies at the same time; at least one of the longest has a place."""
SMALL = 256 << 10
"""Bytes of a body that needs no place of its own: there are only so many requests at once."""
SHORT = 16 << 10
"""Bytes of a body that is read at once: a thread would take longer."""

Result = TypeVar("Result")


class Bodies:
    """reading: held while a body is read, of all cells of a run."""

    def __init__(self, reading: asyncio.Lock) -> None:
        self._reading, self._reading_own = reading, asyncio.Lock()
        self._free = MEMORY_LIMIT
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def place_for(self, request: Request) -> AsyncIterator[Callable[[int], None]]:
        """Waits until there is a place for this request's body; the place is kept to the end of the block. Gives what
        is to be called with the body's size once that is known."""
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
        """What the reader says of a body. A long one is read in a thread, one at a time, each cell in turn."""
        if size <= SHORT:
            return reader()
        async with self._reading_own, self._reading:
            return await asyncio.to_thread(reader)


def _most(request: Request) -> int:
    """Bytes for which its body needs a place."""
    if request.method != "POST":
        return 0
    told = request.header(b"content-length")
    size = int(told) if told.isdecimal() and len(told) < 20 else BODY_LIMIT
    return 0 if size <= SMALL else min(size, BODY_LIMIT)
