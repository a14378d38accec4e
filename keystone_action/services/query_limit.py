"""A time limit of a query that is kept from outside its session: not every query heeds its server's own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

GRACE_SECONDS = 0.5
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
        self._timer = threading.Timer(seconds + GRACE_SECONDS, self._end)
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
