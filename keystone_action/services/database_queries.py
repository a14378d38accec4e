"""What the readers of all databases share: how many rows they keep, a time limit that is kept from outside the query's
session, and a role of our own on a server that somebody else runs.

The role is made for one query and dropped when that was answered. What the agent did to the role of the URL (its
settings, rights and sessions) does not touch it. It is made when the agent has ended, and its name is random, so
the agent can't prepare anything for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from keystone_action.evidence.model import QueryFailed

ROWS_LIMIT = 10_000
"""Rows that a query keeps; that there were more is said."""
_RETRY_SECONDS = 10.0
"""For as long it is tried again: on a busy machine each try may be in somebody's way."""
_PAUSE_SECONDS = 0.05
_FAST_SECONDS = 1.0
_LONG_PAUSE_SECONDS = 0.5
"""After the first second: whoever is in the way then stays, and others use the server too."""
_NAME = re.compile(r"cell_([0-9a-f]{8})[0-9a-f]{8}")
_LEFT_OVER_SECONDS = 6 * 3600.0
T = TypeVar("T")


class RefusedError(Exception):
    """The user of the URL may not make a role, or not one that reads what that user reads. The text says why."""


class OwnRole(ABC):
    """connection: what the client connects with as the user of the URL. refusal: why that user asks itself; empty
    when it does not."""

    errors: tuple[type[Exception], ...] = (OSError,)
    """What the client raises."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self.connection = connection
        self.refusal = "nobody has tried to make a role yet"
        self._roles: set[str] = set()
        self._lock = threading.Lock()

    def try_out(self) -> None:
        """Make a role, look whether it can read what the URL's user reads, drop it: `refusal` says how that went. To be
        called before the agent starts. Never raises."""
        try:
            with contextlib.suppress(*self.errors):  # a later run tries again
                self.retry(self._drop_left_over)
            with self._temporary_role(_RETRY_SECONDS) as fields:
                self.retry(partial(self._prove, fields))
        except RefusedError as reason:
            self.refusal = str(reason)
        except self.errors as error:
            self.refusal = " ".join(str(error).split()) or type(error).__name__
        else:
            self.refusal = ""

    @contextmanager
    def lend(self, seconds: float) -> Iterator[Mapping[str, Any]]:
        """What a query connects with: a new role of ours, or the URL's user where there can be none. Raises the
        client's errors; QueryFailed where the agent took away the right to make one. seconds: for so long at most it is
        tried again."""
        if self.refusal:
            yield self.connection
            return
        try:
            with self._temporary_role(seconds) as fields:
                yield fields
        except RefusedError as reason:
            raise QueryFailed(
                f"before the agent started, a role could be made to ask with; now it can't: {reason}", by_agent=True
            ) from None

    def drop(self) -> None:
        """What is still there, of queries that were cut off. Never raises: what can't be dropped in `_RETRY_SECONDS` is
        dropped when this database is next used, six hours later or more."""
        with self._lock:
            left = list(self._roles)
        deadline = time.monotonic() + _RETRY_SECONDS
        with contextlib.suppress(*self.errors):
            for name in left:
                self.retry(partial(self._drop, name), deadline - time.monotonic())
                self._roles.discard(name)

    @contextmanager
    def _temporary_role(self, seconds: float) -> Iterator[Mapping[str, Any]]:
        name, password = self._make_one(seconds)
        try:
            yield {**self.connection, "user": name, "password": password}
        finally:
            with contextlib.suppress(*self.errors):  # `drop` tries again
                self._drop(name)
                self._roles.discard(name)

    def _make_one(self, seconds: float) -> tuple[str, str]:
        name, password = new_name(), secrets.token_urlsafe(32)
        with self._lock:
            self._roles.add(name)
        tried = False

        def make() -> None:
            nonlocal tried
            if tried:
                self._drop(name)  # the try before may have worked, and its answer been lost
            tried = True
            self._make(name, password)

        try:
            self.retry(make, seconds)
        except RefusedError:
            self._roles.discard(name)
            raise
        return name, password

    def retry(self, call: Callable[[], T], seconds: float = math.inf) -> T:
        """Call it, and call it again where another session was in the way: one that ends sessions of the URL's user, or
        another cell's that grants the same rights at that moment. Returns what it returns. seconds: for so long at
        most."""
        start = time.monotonic()
        while True:
            try:
                return call()
            except self.errors as error:
                waited = time.monotonic() - start
                if waited > min(_RETRY_SECONDS, seconds) or not self._may_pass(error):
                    raise
            time.sleep(_PAUSE_SECONDS if waited < _FAST_SECONDS else _LONG_PAUSE_SECONDS)

    @abstractmethod
    def _make(self, name: str, password: str) -> None:
        """The role with the rights to read, or nothing. Raises RefusedError and the client's errors."""

    @abstractmethod
    def _prove(self, fields: Mapping[str, Any]) -> None:
        """Raises RefusedError unless a new role can connect with these, and reads what the URL's user does; and the
        client's errors where that could not be found out."""

    @abstractmethod
    def _drop(self, name: str) -> None:
        """If it is there; its sessions end. Raises the client's errors."""

    @abstractmethod
    def _drop_left_over(self) -> None:
        """Drop the roles of runs that were killed. Raises the client's errors."""

    @abstractmethod
    def _may_pass(self, error: Exception) -> bool:
        """Whether the same may succeed a moment later."""


def new_name() -> str:
    """A name that says nothing to the agent, and to us when it was made."""
    return f"cell_{int(time.time()):08x}{secrets.token_hex(4)}"


def is_left_over(name: str) -> bool:
    """Whether a role of this name is ours and of a run that has ended long ago."""
    found = _NAME.fullmatch(name)
    return found is not None and 0 < int(found[1], 16) < time.time() - _LEFT_OVER_SECONDS


LIMIT_GRACE_SECONDS = 0.5
"""How much longer than the limit a server has to keep that itself."""
_ENDING_SECONDS = 3.0


class QueryLimit:
    """Past the limit the connection is closed, and then the session ended. is_over: that has begun.

    line: the connection's descriptor. end_session: by another session; what it raises is ignored.
    """

    def __init__(self, seconds: float, line: Callable[[], int], end_session: Callable[[], None]) -> None:
        self.is_over = False
        self._line = line
        self._end_session = end_session
        self._timer = threading.Timer(seconds + LIMIT_GRACE_SECONDS, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.is_over:
            # Who asked may be a role that is dropped now: then nobody could end the session as it any more.
            self._timer.join(_ENDING_SECONDS)

    def _end(self) -> None:
        self.is_over = True
        # The connection first: the check goes on even if the server hangs.
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(self._line())) as line:
            line.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self._end_session()
