"""Server-sent events, read from pieces of bytes of any size (HTML standard, "Server-sent events")."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""A stream may begin with it."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """raw: its bytes as they came, the empty line at its end included. data: its `data` lines, joined; None = it has
    none, as a comment that keeps the connection alive."""

    raw: bytes
    data: str | None

    def json(self) -> Mapping[str, Any] | None:
        """Its data as an object; None when it is none."""
        try:
            found = json.loads(self.data or "")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class EventStream:
    """Takes the bytes of a stream and gives its events, each when its last byte is there."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._line = 0
        """Where the line begins that has not ended."""
        self._searched = 0

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return bytes(self._kept)

    @property
    def waiting(self) -> int:
        """How many bytes that is."""
        return len(self._kept)

    def last(self) -> Event:
        """What came after the last whole event, as one: some clients take it for one."""
        return Event(self.rest, _data(self.rest))

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece."""
        self._kept += piece
        while (end := self._end()) is not None:
            raw = bytes(self._kept[:end])
            del self._kept[:end]
            self._line = self._searched = 0
            yield Event(raw, _data(raw))

    def _end(self) -> int | None:
        """Where the first event ends: after its first empty line."""
        while found := _LINE_END.search(self._kept, self._searched):
            if found.group() == b"\r" and found.end() == len(self._kept):
                self._searched = found.start()
                return None  # it may be the first half of CRLF
            if found.start() == self._line:
                return found.end()
            self._line = self._searched = found.end()
        self._searched = len(self._kept)
        return None


def _data(raw: bytes) -> str | None:
    lines = (
        raw.removeprefix(_BYTE_ORDER_MARK)
        .decode("utf-8", "replace")
        .replace("\r\n", "\n")
        .replace("\r", "\n")
        .split("\n")
    )
    values = [line[5:].removeprefix(" ") for line in lines if line == "data" or line.startswith("data:")]
    return "\n".join(values) if values else None
