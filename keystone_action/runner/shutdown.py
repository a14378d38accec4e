"""SIGINT and SIGTERM: the run stops cleanly and what is finished is kept (the runner sends both within 7.5 s)."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from keystone_action.errors import KeystoneError


@dataclass
class Stop:
    """Whether a signal asked the run to end, and which. hurry: called then, before anything is cancelled."""

    signal_name: str = ""
    hurry: list[Callable[[], None]] = field(default_factory=list)

    @property
    def requested(self) -> bool:
        """True once a signal came."""
        return bool(self.signal_name)


@asynccontextmanager
async def stopped_by_signals() -> AsyncIterator[Stop]:
    """Cancel the body at the first SIGINT or SIGTERM; afterwards `Stop.requested` is true and no exception leaves.

    Further signals are taken and ignored while the body cleans up, so that impatience loses no result.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread can take signals; whoever runs us elsewhere stops us by cancellation.
        yield stop
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for number in signals:
                    stop.signal_name = stop.signal_name or signal.Signals(number).name
                    for call in stop.hurry:
                        call()
                    body.cancel()

            group.start_soon(watch)
            with anyio.CancelScope() as body:
                yield stop
            group.cancel_scope.cancel()


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What really happened, out of the groups that task groups put around it: our own errors first, since what they
    broke off may have failed in turn."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        error = todo.pop(0)
        if isinstance(error, BaseExceptionGroup):
            todo[:0] = error.exceptions
        else:
            leaves.append(error)
    return next((error for error in leaves if isinstance(error, KeystoneError)), leaves[0])
