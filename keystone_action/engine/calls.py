"""Asking the container engine without waiting in the event loop: its client blocks, so each call goes to a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from keystone_action.engine.errors import engine_errors
from keystone_action.errors import ServiceError

REMOVAL_SECONDS = 10.0
"""How long an engine that does not answer may hold up the end of a cell or a run, each time it is asked to remove
something."""

Result = TypeVar("Result")


async def ask(call: Callable[[], Result], what: str, *, abandon: bool = False) -> Result:
    """Run a blocking call of the engine's client in a thread. Raises ServiceError: `what`, and what the engine said.

    A call that was begun is waited for, since what it makes must be known to be removed; with `abandon`, one that
    makes nothing is left to itself when we are cancelled.
    """
    import anyio.to_thread

    return await anyio.to_thread.run_sync(lambda: ask_here(call, what), abandon_on_cancel=abandon)


async def ask_within(call: Callable[[], Result], what: str, seconds: float) -> Result:
    """The result of a call that takes no longer than this; a longer one is left to itself, in a thread that does not
    keep our process alive. Raises ServiceError then, too."""
    import anyio

    answered = anyio.Event()
    loop = asyncio.get_running_loop()

    def tell(_: Future[Result]) -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(answered.set)

    outcome = aside(lambda: ask_here(call, what))
    outcome.add_done_callback(tell)
    with anyio.move_on_after(seconds):
        await answered.wait()
    if not outcome.done():
        raise ServiceError(f"{what}: the container engine did not answer within {seconds:g} s")
    return outcome.result()


def ask_here(call: Callable[[], Result], what: str) -> Result:
    """The result of a call in the caller's own thread. Raises ServiceError."""
    with engine_errors(what, ServiceError):
        return call()


def aside(function: Callable[[], Result]) -> Future[Result]:
    """Do it in a thread of its own, which does not keep our process alive."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - for the caller who asks for the result
            future.set_exception(error)

    threading.Thread(target=work, name="keystone-engine", daemon=True).start()
    return future
