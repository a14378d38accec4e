"""A file of ours that gets what a command prints, as it comes (`KeptWhole`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from keystone_action.errors import SandboxError
from keystone_action.files.head_and_tail import write_all

_CHUNK = 1 << 18


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
        self._loop.remove_reader(self._reader)
        data = os.read(self._reader, _CHUNK)
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
                data = os.read(self._reader, _CHUNK)
        os.close(self._reader)
