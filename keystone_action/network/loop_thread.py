"""A thread with an event loop of its own: what serves an agent answers while the run is busy."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from keystone_action.errors import ServiceError
from keystone_action.system.shortage import machine_shortage

_STOP_SECONDS = 5.0
_DEFECTS_LIMIT = 100
"""A client that provokes one can provoke any number."""
DEFECTS: ContextVar[list[str]] = ContextVar("defects")
"""Where a task, and all that it starts, keeps its defects; without one they are the thread's."""

Result = TypeVar("Result")


class LoopThread:
    """`start` and `stop` may be called from any thread, and again.

    name: the thread's. what: who can't be reached when it does not run, as errors say it.
    """

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """While it runs."""
        self.defects: list[str] = []
        """What went wrong in our own code while serving, outside of tasks with a list of their own; evidence is
        incomplete when there is any."""

    def start(self) -> None:
        """Returns when the loop runs. Harmless when it does already. Raises ServiceError."""
        with self._lock:
            if self.loop is not None:
                return
            ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
            self._thread = threading.Thread(target=self._serve, args=(ready,), name=self._name, daemon=True)
            try:
                self._thread.start()
                self.loop = ready.result()
            except Exception as error:
                self._thread = None
                raise ServiceError(f"{self._what} can't be started: {machine_shortage(error) or error}") from error

    def _serve(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        try:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(self._defect)
            loop.call_soon(ready.set_result, loop)
        except BaseException as error:  # noqa: BLE001 - told to the caller that waits
            ready.set_exception(error)
            return
        try:
            loop.run_forever()
        finally:
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):
            return  # a client that went away while we wrote
        defects = DEFECTS.get(self.defects)
        if len(defects) < _DEFECTS_LIMIT:
            defects.append(f"{context.get('message', '')}: {error!r}")

    def stop(self, close: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Runs `close` in the loop, at most some seconds, and ends the thread. Harmless when it does not run: False
        then."""
        with self._lock:
            loop, thread = self.loop, self._thread
            self.loop = self._thread = None
        if loop is None or thread is None:
            return False
        future = asyncio.run_coroutine_threadsafe(close(), loop)
        with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.result(_STOP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_SECONDS)
        return True

    async def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs it in the thread's loop, for callers in any other. Raises ServiceError when the thread does not run."""
        if self.loop is None:
            coroutine.close()
            raise ServiceError(f"{self._what} does not run")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))
