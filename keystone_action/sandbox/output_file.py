"""A file of ours that gets what a command prints, as it comes (`Command.stdout_to`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from keystone_action.errors import SandboxError
from keystone_action.sandbox.streams import write_all

_CHUNK = 1 << 18


class OutputFile:
    """The file, made or emptied, for us alone. Raises SandboxError when it can't be."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, data: bytes) -> None:
        """Write every byte. Raises SandboxError."""
        try:
            write_all(self._descriptor, data)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> SandboxError:
        return SandboxError(f"{self._path} can't be written: {error.strerror or error}")

    def close(self) -> None:
        """Nothing more comes."""
        os.close(self._descriptor)


class PipeToFile:
    """An `OutputFile` at the end of a pipe, for who can't write to it: a supervisor has taken on the limits of its
    command, and the size of files is one of them. writer: our end of the pipe, closed with the context."""

    def __init__(self, path: Path) -> None:
        self._file = OutputFile(path)
        self._problem: SandboxError | None = None
        reader, self.writer = os.pipe2(os.O_CLOEXEC)
        # Its own: a thread of a pool would be gone for as long as the command runs.
        self._thread = threading.Thread(target=self._copy, args=(reader,), name="keystone-output-file", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.writer)

    async def written(self) -> None:
        """After the context, and once the other side has closed its end too: until all of it is in the file. Raises
        SandboxError when that was not possible."""
        await asyncio.to_thread(self._thread.join)
        if self._problem is not None:
            raise self._problem

    def _copy(self, reader: int) -> None:
        with contextlib.closing(self._file):
            # Reads on after a failure: the command is not to wait for us.
            while data := os.read(reader, _CHUNK):
                try:
                    if self._problem is None:
                        self._file.write(data)
                except SandboxError as problem:
                    self._problem = problem
        os.close(reader)
