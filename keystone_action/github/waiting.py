"""How long to wait for GitHub, and when to give up: by the headers of its answers and the best practices of its REST
API (docs.github.com/rest/guides/best-practices-for-using-the-rest-api), within the bounds of the contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_WITHOUT_HEADERS = 60.0
"""Seconds: a rate limit that names no time asks for at least a minute, twice as long each time."""
_LONGEST = 10.0**9


@dataclass(frozen=True, slots=True)
class Limits:
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


class Patience:
    """The waiting of all requests of one client: it is said, paced and bounded here.

    log: takes a line for every wait. A client that hangs silently looks like one that is broken.
    """

    def __init__(self, limits: Limits, clock: Clock, log: Callable[[str], None]) -> None:
        self._clock = clock
        self._log = log
        self._limits = limits
        self._last_write: float | None = None
        self.left = limits.waiting

    def wait(self, seconds: float, why: str) -> bool:
        """Waits, or returns False at once when that is longer than what is left of all waiting."""
        if seconds > self.left:
            return False
        self.left -= seconds
        self._log(f"{why}; waiting {seconds:.0f} s ({self.left:.0f} s of waiting left)")
        self._clock.sleep(seconds)
        return True

    def before_write(self) -> None:
        """Waits until a second has gone by since the last write."""
        if self._last_write is None:
            return
        pause = self._last_write + self._limits.between_writes - self._clock.monotonic()
        if pause > 0:
            self._log(f"waiting {pause:.1f} s, since GitHub asks for a second between writes")
            self._clock.sleep(pause)

    def after_write(self) -> None:
        """Notes when the last write ended."""
        self._last_write = self._clock.monotonic()
