"""What is kept of a program's output: its first and last bytes in memory, and all of it in a file where that is wanted.

The launcher imports this: only the standard library, and little of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from keystone_action.errors import SandboxError

if TYPE_CHECKING:
    import threading

_CHUNK = 1 << 16
_LARGE = 1 << 20
_F_SETPIPE_SZ = 1031


class HeadAndTail:
    """The first `head` and the last `tail` bytes of what is added, in bounded memory. copy: gets the first `limit` of
    all bytes, once there are more than `above` (at most head and tail together)."""

    def __init__(
        self,
        head: int,
        tail: int,
        *,
        copy: Callable[[bytes | bytearray], object] | None = None,
        above: int = 0,
        limit: int = 0,
    ) -> None:
        self.total = 0
        self._head = bytearray()
        self._head_size = head
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_held = 0
        self._tail_size = tail
        self._copy = copy
        self._copied = 0
        self._above = above
        self._limit = limit

    def add(self, data: bytes) -> None:
        """Take the next bytes. Raises what `copy` raises."""
        if self._copy is not None and self.total + len(data) > self._above:
            # The first time, nothing has been dropped yet: head and tail are all that came before.
            for piece in (data,) if self._copied else (self._head, *self._tail, data):
                if piece and self._copied < self._limit:
                    self._copy(piece[: self._limit - self._copied])
                self._copied += len(piece)
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Large pieces as they are, without another copy; small ones joined, since each costs more than its bytes."""
        last = self._tail[-1] if self._tail else b""
        if len(data) < _CHUNK and isinstance(last, bytearray) and len(last) < _CHUNK:
            last += data
        else:
            self._tail.append(data if len(data) >= _CHUNK else bytearray(data))
        self._tail_held += len(data)
        while self._tail and self._tail_held - len(self._tail[0]) >= self._tail_size:
            self._tail_held -= len(self._tail.popleft())

    def parts(self) -> tuple[bytes, bytes]:
        """(head, tail)."""
        tail = b"".join(self._tail)
        return bytes(self._head), tail[-self._tail_size :] if self._tail_size else b""


class Stream:
    """Reads a non-blocking pipe, and keeps the beginning and the end of it in `kept`. copy: a descriptor that gets more
    of it, see HeadAndTail."""

    def __init__(
        self, descriptor: int, head: int, tail: int, *, copy: int | None = None, above: int = 0, limit: int = 0
    ) -> None:
        self.descriptor = descriptor
        self.open = True
        write = None if copy is None else functools.partial(write_all, copy)
        self.kept = HeadAndTail(head, tail, copy=write, above=above, limit=limit)
        self._chunk = _CHUNK

    def read(self) -> int:
        """Take what is there, up to a chunk. Returns 0 when the stream has ended or is empty, else more than 0.

        Raises OSError when the copy can't be written.
        """
        try:
            data = os.read(self.descriptor, self._chunk)
        except BlockingIOError:
            return 0
        if not data:
            self.open = False
            return 0
        if len(data) == _CHUNK == self._chunk:
            self._enlarge()
        self.kept.add(data)
        return len(data)

    def _enlarge(self) -> None:
        """A talkative program: fewer, larger reads."""
        self._chunk = _LARGE
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, _F_SETPIPE_SZ, _LARGE)

    def drain(self) -> None:
        """Take all that is left, once nobody writes any more: no more than the pipe can hold, for somebody out of our
        reach who does write must not hold us up."""
        left = fcntl.fcntl(self.descriptor, fcntl.F_GETPIPE_SZ)
        while left > 0 and (taken := self.read()):
            left -= taken


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write every byte. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_SLICE = 1 << 18


class OutputFile:
    """The file, for us alone; made, or emptied, with the first byte."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, data: bytes | bytearray) -> None:
        """Write every byte. Raises SandboxError."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            write_all(self._descriptor, data)
        except OSError as error:
            raise SandboxError(f"{self._path} can't be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Nothing more comes."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class PipeToFile:
    """An `OutputFile` at the end of a pipe, for who can't write to it: a supervisor has taken on the limits of its
    command, and the size of files is one of them. writer: our end of the pipe, closed with the context.

    Few commands print so much that there is something to write: only then is there a file, and a thread."""

    def __init__(self, path: Path) -> None:
        import asyncio  # not above: the launcher imports this module, and needs none of asyncio

        self._file = OutputFile(path)
        self._problem: SandboxError | None = None
        self._thread: threading.Thread | None = None
        self._begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._loop.add_reader(self._reader, self._begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.writer)

    def _begin(self) -> None:
        """Something came, or nothing ever will."""
        import threading

        self._loop.remove_reader(self._reader)
        data = os.read(self._reader, _SLICE)
        if data:
            # Its own: a thread of a pool would be gone for as long as the command runs.
            self._thread = threading.Thread(target=self._copy, args=(data,), name="keystone-output-file", daemon=True)
            self._thread.start()
        else:
            os.close(self._reader)
        self._begun.set()

    async def written(self) -> None:
        """After the context, and once the other side has closed its end too: until all of it is in the file. Raises
        SandboxError when that was not possible."""
        import asyncio

        await self._begun.wait()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        if self._problem is not None:
            raise self._problem

    def _copy(self, data: bytes) -> None:
        with contextlib.closing(self._file):
            # Reads on after a failure: the command is not to wait for us.
            while data:
                try:
                    if self._problem is None:
                        self._file.write(data)
                except SandboxError as problem:
                    self._problem = problem
                data = os.read(self._reader, _SLICE)
        os.close(self._reader)
