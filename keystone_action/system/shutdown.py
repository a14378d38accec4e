"""How a run ends when a signal asks it to: cleanly where it can, and in time where it can't."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from keystone_action.errors import Cancelled, HarnessError, KeystoneError
from keystone_action.system import signals
from keystone_action.system.shortage import machine_shortage

T = TypeVar("T")
_TEARDOWN_SECONDS = 1.0


@dataclass
class RunStop:
    """Asks a run to end, from any thread."""

    requested: bool = False
    hurry: list[Callable[[], None]] = field(default_factory=list)
    """Called in the run's own thread then, before anything is cancelled."""
    so_far: Callable[..., Any] | None = None
    """Gives what the run has come to. The run sets it as soon as it has something to show. It is called with
    `abandoned=True` when the run did not end in time, and nobody waits for it any more."""
    _scopes: list[anyio.CancelScope] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None

    def request(self) -> None:
        """End soon. Again does no harm."""
        self.requested = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for call in self.hurry:
            call()
        for scope in self._scopes[-1:]:
            scope.cancel()

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Cancel the body once the run is asked to end; no exception leaves then. In the run's own thread."""
        self._loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                if self.requested:
                    self._cancel()
                yield
            finally:
                self._scopes.remove(scope)


def run_to_its_end(work: Callable[[RunStop], Coroutine[Any, Any, T]]) -> T:
    """Run it in an event loop of a thread of its own, while this one takes the signals.

    A signal asks it to end. One that has not ended `RUN_SECONDS` later, because a thread or the loop itself hangs, is
    left to itself: what it has come to so far is returned. Raises what it raises, and Cancelled when a signal came
    before it had anything to show.
    """
    stop = RunStop()
    outcome: Future[T] = Future()

    async def whole() -> None:
        try:
            with stop.stoppable():
                outcome.set_result(await work(stop))
            if not outcome.done():
                outcome.set_exception(cancellation())
        except BaseException as error:  # noqa: BLE001 - told to the caller that waits
            outcome.set_exception(error)

    def live() -> None:
        try:
            anyio.run(whole)
        except BaseException as error:  # noqa: BLE001 - the loop could not be made, or not be taken apart
            if not outcome.done():
                outcome.set_exception(_not_started(error))

    # Its own end is not waited for where it hangs: it must not keep the process alive.
    thread = threading.Thread(target=live, name="keystone-run", daemon=True)
    with signals.listening(stop.request):
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise _not_started(error) from error
        found = _wait(outcome, stop)
    thread.join(_TEARDOWN_SECONDS)
    if thread.is_alive():
        signals.leave_behind()
    return found


def _wait(outcome: Future[T], stop: RunStop) -> T:
    try:
        # In pieces: a signal that comes just before the wait begins does not end it.
        while not outcome.done() and (left := signals.seconds_left(signals.RUN_SECONDS)):
            wait([outcome], min(left, 0.5))
    except KeyboardInterrupt:  # of a program that takes its signals itself
        stop.request()
        wait([outcome], signals.RUN_SECONDS)
        raise
    if outcome.done():
        return outcome.result()
    if stop.so_far is None:
        raise cancellation()
    found: T = stop.so_far(abandoned=True)
    return found


def _not_started(error: BaseException) -> BaseException:
    lacking = machine_shortage(error)
    return HarnessError(f"the run could not be started: {lacking}") if lacking else error


def cancellation() -> Cancelled:
    """For a run that has nothing to show yet."""
    return Cancelled("the run was cancelled before it had begun")


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


@asynccontextmanager
async def undoing(undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Undo something when the block is left, to the end, also where that is because of a cancellation."""
    import anyio

    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await undo()
