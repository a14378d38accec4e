"""How long to wait for GitHub, and when to give up: by the headers of its answers and the best practices of its REST
API (docs.github.com/rest/guides/best-practices-for-using-the-rest-api), within the bounds of the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from keystone_action.github.api.errors import GitHubError

_WITHOUT_HEADERS = 60.0
"""Seconds: a rate limit that names no time asks for at least a minute, twice as long each time."""
_LONGEST = 10.0**9


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """tries: of one request. seconds: of one try. waiting: seconds between tries, of all requests together.
    between_writes: seconds from the end of one write to the next, which that sum does not hold."""

    tries: int = 4
    seconds: float = 10.0
    waiting: float = 60.0
    between_writes: float = 1.0


@dataclass(frozen=True, slots=True)
class Clock:
    """monotonic: seconds from anywhere. now: seconds since 1970. sleep: takes seconds."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def seconds_to_wait(headers: Mapping[str, str], *, rate_limited: bool, tried: int, now: float) -> float:
    """Seconds until the next try.

    headers: of the answer, by lower-case name; empty when there was none. tried: from 1. now: since 1970, used when
    the server does not say its own time: what it calls a time is measured by its clock, not by ours.
    """
    here = _date(headers.get("date", ""))
    now = now if here is None else here
    after = _retry_after(headers.get("retry-after", ""), now)
    if after is not None:
        return max(after, 1.0)
    if rate_limited:
        reset = _number(headers.get("x-ratelimit-reset", ""))
        if headers.get("x-ratelimit-remaining", "").strip() == "0" and reset is not None:
            # Both are whole seconds, cut: one more, or the limit would still stand.
            return min(max(reset - now, 0.0) + 1.0, _LONGEST)
        return _WITHOUT_HEADERS * 2.0 ** (tried - 1)
    return 2.0 ** (tried - 1)


def _retry_after(value: str, now: float) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3)."""
    seconds = _number(value)
    if seconds is not None:
        return min(seconds, _LONGEST)
    date = _date(value)
    return None if date is None else min(date - now, _LONGEST)


def _number(value: str) -> float | None:
    value = value.strip()
    if not value.isascii() or not value.isdecimal():
        return None
    return 10.0**12 if len(value) > 12 else float(value)


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Writes:
    """What is known of a step's writes so far, by all of its clients, which may be in several threads: when the last
    one was under way, until when GitHub wants none, and what it has refused for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: float | None = None
        self._not_before: float | None = None
        self._refused: dict[str, GitHubError] = {}

    def note(self, now: float) -> None:
        """A write starts or ends."""
        with self._lock:
            self._last = now if self._last is None else max(self._last, now)

    def postpone(self, until: float) -> None:
        """GitHub asks for no write before then."""
        with self._lock:
            self._not_before = until if self._not_before is None else max(self._not_before, until)

    def pause(self, now: float, between: float) -> float:
        """Seconds until `between` have gone by since the last write; 0 or less when they have."""
        with self._lock:
            return 0.0 if self._last is None else self._last + between - now

    def postponement(self, now: float) -> float:
        """Seconds for which GitHub wants no write; 0 or less for none."""
        with self._lock:
            return 0.0 if self._not_before is None else self._not_before - now

    def refuse(self, what: str, error: GitHubError) -> None:
        """GitHub refused it, and would each time. what: a permission, or one thing to write."""
        with self._lock:
            self._refused[what] = error

    def refusal(self, what: str) -> GitHubError | None:
        """The error of an earlier try; None where there was none."""
        with self._lock:
            return self._refused.get(what)


class Patience:
    """The waiting of all requests of one client: it is said, paced and bounded here.

    log: takes a line for every wait. A client that hangs silently looks like one that is broken. writes: those of
    other clients of this step count, too.
    """

    def __init__(
        self, limits: RequestLimits, clock: Clock, log: Callable[[str], None], writes: Writes | None = None
    ) -> None:
        self._clock = clock
        self._log = log
        self._limits = limits
        self._writes = writes or Writes()
        self.left = limits.waiting

    def wait(self, seconds: float, why: str) -> bool:
        """Waits, or returns False at once when that is longer than what is left of all waiting."""
        if seconds > self.left:
            return False
        self.left -= seconds
        self._log(f"{why}; waiting {seconds:.0f} s ({self.left:.0f} s of waiting left)")
        self._clock.sleep(seconds)
        return True

    def pause(self) -> None:
        """Waits until a second has gone by since the last write of any client, also of one that failed."""
        pause = self._writes.pause(self._clock.monotonic(), self._limits.between_writes)
        if pause > 0:
            self._log(f"waiting {pause:.1f} s, since GitHub asks for a second between writes")
            self._clock.sleep(pause)

    def before_write(self) -> None:
        """Pauses, and notes when the write begins."""
        self.pause()
        self._writes.note(self._clock.monotonic())

    def after_write(self) -> None:
        """Notes when the last write ended."""
        self._writes.note(self._clock.monotonic())

    def postpone_writes(self, seconds: float) -> None:
        """GitHub refused a request, and asks for so long a wait."""
        self._writes.postpone(self._clock.monotonic() + seconds)

    def wait_for_writes(self, why: str) -> float:
        """Waits until GitHub takes writes again. Returns the seconds that this would take where there is not so much
        waiting left, else 0."""
        seconds = self._writes.postponement(self._clock.monotonic())
        if seconds <= 0 or self.wait(seconds, why):
            return 0.0
        return seconds
