"""The three standard streams of the command line, as callers leave them: closed, full, non-blocking, without a reader.

stderr carries progress and diagnostics: what can't be written there is lost, and changes no verdict and no exit code.
stdout carries the report: a reader that left changes no exit code either, but a full disk is an error (exit 3).
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PATIENCE = 5.0
"""Seconds that a reader of stderr who does not read holds us up, altogether."""


def open_streams() -> None:
    """Give every stream that the caller closed a place that leads nowhere, and both outputs their rules. What the
    terminal's encoding lacks is a question mark in reports, never an end of the run."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                setattr(sys, name, open(_number(number), mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if type(sys.stdout) is io.TextIOWrapper:
        sys.stdout = _over(_Report(sys.stdout.fileno()), sys.stdout)
    if type(sys.stderr) is io.TextIOWrapper:  # a test's own kind is left as it is
        sys.stderr = _over(_Forgiving(sys.stderr.fileno()), sys.stderr)


def give_up(stream: TextIO | _Stream) -> None:
    """What is still in the stream's buffer goes nowhere, so that leaving does not fail on it again."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _number(number: int) -> int:
    """This descriptor, open: else the next file that is opened would become it."""
    try:
        os.fstat(number)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free one: this
    return number


def _over(raw: _Stream, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """A text stream like the one before over another way to write."""
    raw.name = before.name
    return io.TextIOWrapper(
        raw,  # writes all or raises, as a buffer does
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=True,
    )


class _Stream(io.RawIOBase):
    """Writes everything to a descriptor, waiting where that does not block by itself."""

    name: str = ""

    def __init__(self, number: int) -> None:
        self._number = number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def _write_all(self, data: memoryview, wait: Callable[[], object]) -> None:
        while data:
            try:
                data = data[os.write(self._number, data) :]
            except BlockingIOError:
                wait()


class _Report(_Stream):
    """Waits for its reader, as a stream that blocks does. Once that has left, what is written goes nowhere."""

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        try:
            self._write_all(view, lambda: _wait(self._number, None))
        except BrokenPipeError:
            give_up(self)
        return len(view)


class _Forgiving(_Stream):
    """Drops what it can't write."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._patience = _PATIENCE

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            self._write_all(view, self._wait)
        return len(view)

    def _wait(self) -> None:
        began = time.monotonic()
        if self._patience <= 0 or not _wait(self._number, self._patience):
            self._patience = 0.0
            raise BlockingIOError
        self._patience -= time.monotonic() - began


def _wait(number: int, seconds: float | None) -> bool:
    """Until it can be written to, or is broken; False when it takes longer."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
