"""Cleaning up to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def undoing(undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Undo something when the block is left, to the end, also where that is because of a cancellation."""
    import anyio

    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await undo()
