"""A program's input and output as an engine carries them: one connection, and in it frames of two streams."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import Any

from keystone_action.engine.calls import NoAnswer, connection_error
from keystone_action.errors import SandboxError
from keystone_action.files.kept_output import HeadAndTail, OutputFile
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, Capture, KeptWhole

_HEADER = struct.Struct(">BxxxL")
_STDOUT, _STDERR = 1, 2
_CHUNK = 1 << 18


class AttachedStreams:
    """A connection that is the input and the output of a program in a container, in frames (`Demultiplexer`). attached:
    what docker-py gave for it, which closes it when it is forgotten."""

    def __init__(self, connected: socket.socket, attached: Any) -> None:
        self._socket = connected
        self._attached = attached

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.socket`."""
        self._socket.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        """See `socket.socket`. Raises TimeoutError when nothing came in the time that was set, NoAnswer, OSError."""
        try:
            return self._socket.recv(size)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # not the connection's end
                raise
            raise connection_error(error) from error

    def sendall(self, data: bytes) -> None:
        """See `socket.socket`. Raises NoAnswer, OSError."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise connection_error(error) from error

    def close(self) -> None:
        """Close it, also where objects of libraries hold on to it: an engine waits for its reader while it is open.
        Never raises."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


class KeptStream(HeadAndTail):
    """What is kept of one stream. whole: a file that gets all of it; `add` raises SandboxError when that can't be
    written."""

    def __init__(self, head: int = CAPTURE_HEAD, tail: int = CAPTURE_TAIL, *, whole: KeptWhole | None = None) -> None:
        self._file = None if whole is None else OutputFile(whole.path)
        if whole is None or self._file is None:
            super().__init__(head, tail)
        else:
            super().__init__(head, tail, copy=self._file.write, above=whole.above, limit=whole.limit)

    def close(self) -> None:
        """Nothing more comes."""
        if self._file is not None:
            self._file.close()

    def capture(self) -> Capture:
        """What was kept."""
        return Capture(*self.parts(), self.total)


class Demultiplexer:
    """Takes what an attached connection brings, in pieces of any size, and sorts it into stdout and stderr.

    A frame is one byte for the stream, three of nothing, four for its length (big-endian), and that many bytes
    (Docker Engine API, "Attach to a container", stream format).
    """

    def __init__(self, stdout: KeptStream, stderr: KeptStream) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._header = b""
        self._left = 0
        self._stream: KeptStream | None = None

    def feed(self, data: bytes) -> None:
        """Raises SandboxError when this can't be what an engine sends, or a file can't be written."""
        position = 0
        while position < len(data):
            if self._left:
                part = data[position : position + self._left]
                if self._stream is not None:
                    self._stream.add(part)
                self._left -= len(part)
                position += len(part)
                continue
            missing = _HEADER.size - len(self._header)
            self._header += data[position : position + missing]
            position += missing
            if len(self._header) == _HEADER.size:
                self._begin()

    def close(self) -> None:
        """Nothing more comes."""
        self.stdout.close()
        self.stderr.close()

    def _begin(self) -> None:
        kind, self._left = _HEADER.unpack(self._header)
        self._header = b""
        streams = {0: None, _STDOUT: self.stdout, _STDERR: self.stderr}
        if kind not in streams:
            raise SandboxError("what the Docker engine sends as a container's output is not the output of a container")
        self._stream = streams[kind]


class FollowedOutput:
    """All that a container prints, taken by a thread of its own. connection: made before its start. whole: the file
    that gets both its streams, as they come."""

    def __init__(self, connection: AttachedStreams, whole: KeptWhole) -> None:
        self._connection, self._kept = connection, KeptStream(whole=whole)
        self._failure: Exception | None = None
        connection.settimeout(None)
        self._thread = threading.Thread(target=self._follow, name="keystone-output", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        output = Demultiplexer(self._kept, self._kept)
        try:
            while data := self._connection.recv(_CHUNK):
                output.feed(data)
        except (OSError, SandboxError) as error:
            self._failure = error
        finally:
            output.close()

    def capture(self, patience: float) -> Capture:
        """What a container that has ended had printed. Raises SandboxError, OSError where that may not be all of it.
        Blocking; patience: seconds until the engine has sent it."""
        self._thread.join(patience)
        if self._thread.is_alive():
            raise NoAnswer(f"its output did not end within {patience:g} s")
        if self._failure is not None:
            raise self._failure
        return self._kept.capture()

    def close(self) -> None:
        """Follow it no more."""
        self._connection.close()
