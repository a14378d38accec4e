"""How far a run is, in words, and a thread that says so when nothing else is said: what prints nothing looks as if it
hung, and some CI systems end it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from keystone_action.report import words
from keystone_action.report.sentences.facts import money
from keystone_action.scoring.aggregate import paid
from keystone_action.scoring.results import CellResult

_NAMED = 2
"""Cells that are named while they run."""
_STOP_SECONDS = 1.0


class SoFar:
    """What is known of a run while it goes on. Told by one thread, asked by others too."""

    def __init__(self) -> None:
        self.total = self.done = self._before = 0
        self._spent = 0.0
        self._began = time.monotonic()
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()

    def started(self, cells: int, finished: int) -> None:
        """The run has so many cells, of which so many finished before."""
        self.total, self.done, self._before, self._began = cells, finished, finished, time.monotonic()

    def phase(self, cell_id: str, phase: str) -> None:
        """A cell entered a phase of its life."""
        with self._lock:
            self._running[cell_id] = phase

    def cell(self, result: CellResult) -> None:
        """A cell is finished."""
        with self._lock:
            self._running.pop(result.id, None)
            self.done += 1
            self._spent += paid(result)

    def not_run(self) -> None:
        """The run has one cell less."""
        with self._lock:
            self.total -= 1

    def phase_of(self, cell_id: str) -> str | None:
        """The phase that a running cell is in."""
        return self._running.get(cell_id)

    def sentence(self) -> str:
        """`3 of 10 cells after 1 min 5 s, about 2 min left, $0.12 spent; running: a.r0: agent`"""
        said = [f"{self.done:,} of {self.total:,} cells after {words.duration(time.monotonic() - self._began)}"]
        said += filter(None, [self.time_left(), self.money()])
        running = self.what_runs()
        return ", ".join(said) + (f"; running: {running}" if running else "")

    def time_left(self) -> str:
        """By how long the cells of this call have taken so far; empty until one is finished, and at the end."""
        done, left = self.done - self._before, self.total - self.done
        if done <= 0 or left <= 0:
            return ""
        return f"about {words.duration((time.monotonic() - self._began) / done * left)} left"

    def money(self) -> str:
        """What was spent; empty for nothing."""
        return f"{money(self._spent)} spent" if self._spent else ""

    def what_runs(self) -> str:
        """The first cells that run, with their phases; empty for none."""
        with self._lock:
            running = list(self._running.items())
        more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
        return "; ".join(f"{name}: {phase}" for name, phase in running[:_NAMED]) + more


class Heartbeat:
    """Calls `say` when `spoke` was not called for so many seconds, until it is stopped. `say` is called by a thread of
    its own and must not raise."""

    def __init__(self, say: Callable[[], None], silence: float) -> None:
        self._say, self._silence = say, silence
        self._last = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; where the system gives us no further thread, nothing is said."""
        self._last = time.monotonic()
        thread = threading.Thread(target=self._beat, name="keystone-heartbeat", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def spoke(self) -> None:
        """Something was said."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """Say nothing from here on. What is being said is waited for, unless it hangs."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _beat(self) -> None:
        wait = self._silence
        while not self._stopped.wait(wait):
            quiet_for = time.monotonic() - self._last
            if quiet_for >= self._silence and not self._stopped.is_set():
                self._say()
                self._last, quiet_for = time.monotonic(), 0.0
            wait = self._silence - quiet_for
