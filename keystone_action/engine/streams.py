"""The output of a container as an engine sends it: frames of two streams over one connection."""

from __future__ import annotations

import struct

from keystone_action.errors import SandboxError
from keystone_action.files.kept_output import HeadAndTail, OutputFile
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, Capture, KeptWhole

_HEADER = struct.Struct(">BxxxL")
_STDOUT, _STDERR = 1, 2


class KeptStream(HeadAndTail):
    """What is kept of one stream. whole: where all of it goes besides; where that can't be written, `add` raises
    SandboxError."""

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

    def __init__(self, stdout: KeptWhole | None = None, stderr: KeptWhole | None = None) -> None:
        self.stdout = KeptStream(whole=stdout)
        self.stderr = KeptStream(whole=stderr)
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
            raise SandboxError("what the Docker engine sends as a container's output is no output of a container")
        self._stream = streams[kind]
