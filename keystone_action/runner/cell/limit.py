"""The limit of a cell, which holds also where a thread of ours hangs in it and hears of no cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio

from keystone_action.system import signals

T = TypeVar("T")
_CLEANUP_SECONDS = 20.0
"""For what is cancelled to clean up after itself."""
_UNWIND_SECONDS = 10.0
"""For its clean-up after it was torn from the wait for its thread."""


class LimitReached(Exception):  # noqa: N818 - not an error of the caller that waits
    """The work was ended, or left to itself, because its time was up."""


async def within(seconds: float, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await work, for so many seconds. Raises what it raises, and LimitReached when the time is up.

    It is then cancelled. Where it waits for a thread that does not end, which cancellation respects, it is torn from
    that wait; where even that does not end it, it is left to itself, and what it holds goes at the end of the run.
    """
    scope = anyio.CancelScope()

    async def limited() -> T:
        with scope:
            return await work()
        raise LimitReached

    task = asyncio.create_task(limited())
    # Where we are cancelled, or have left it to itself, nobody asks how it ended.
    task.add_done_callback(lambda one: one.cancelled() or one.exception())
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await _await_end(task)
        raise
    if not task.done():
        scope.cancel()
        await _await_end(task)
    if not task.done() or task.cancelled():
        raise LimitReached
    return task.result()


async def _await_end(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task}, timeout=_CLEANUP_SECONDS)
    if task.done():
        return
    signals.leave_behind()
    task.cancel()
    await asyncio.wait({task}, timeout=_UNWIND_SECONDS)
