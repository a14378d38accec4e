"""The copy of an answer that is read while the answer passes, and server-sent events, read from pieces of bytes of any
size (HTML standard, "Server-sent events")."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from keystone_action.gateway.api import AnswerReader, ModelApi
from keystone_action.gateway.exchange import Answer

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""A stream may begin with it."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event."""

    raw: bytes
    """The bytes as they came, with the empty line at the end."""
    data: str | None
    """The `data` lines, joined; None where there are none, as in a comment that keeps the connection alive."""

    def json(self) -> Mapping[str, Any] | None:
        """The data as an object; None where it is something else."""
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
        """How many bytes have come after the last whole event."""
        return len(self._kept)

    def last(self) -> StreamEvent:
        """What came after the last whole event, as an event: some clients take it for one."""
        return StreamEvent(self.rest, _data(self.rest))

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        """The events that end in this piece."""
        self._kept += piece
        while (end := self._end()) is not None:
            raw = bytes(self._kept[:end])
            del self._kept[:end]
            self._line = self._searched = 0
            yield StreamEvent(raw, _data(raw))

    def _end(self) -> int | None:
        """Where the first event ends: after the first empty line."""
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


READ_LIMIT = 32 << 20
"""Bytes of an answer in one piece, or of one event of a stream. A longer one is cut: it can't be read in bounded
memory, and what we did not read must not reach the agent."""
_NO_JSON = "its answer is not JSON"
_NO_ANSWER = {"", "[DONE]"}
"""Data of events that say nothing of the answer."""

_ERROR_LIMIT = 16 << 10
"""Bytes of an error that are read."""


class TooLong(Exception):  # noqa: N818 - an outcome
    """READ_LIMIT is reached."""


class AnswerCopy:
    """What is read of an answer while it passes.

    without_usage: whether the event with usage is kept from the client, which did not ask for it. keeps_document:
    whether `document` will be asked for. lost: why the answer broke off; empty where it did not. is_answer: whether the
    status says that it is an answer and not an error.
    """

    def __init__(self, provider: ModelApi, *, without_usage: bool, keeps_document: bool = False) -> None:
        self._provider, self._without_usage = provider, without_usage
        self._reader: AnswerReader | None = None
        self._keeps_document = keeps_document
        self._document: dict[str, Any] | None = None
        self._size = 0
        self._events = EventStream()
        self._read = 0
        self._whole = bytearray()
        self._answer: Answer | None = None
        self._ended = self._unreadable = False
        self.is_answer = False
        self.lost = ""

    def start(self, status: int, content_type: str) -> None:
        """The head of the answer has come."""
        self.is_answer = 200 <= status < 300
        if self.is_answer and content_type.lower().startswith("text/event-stream"):
            self._reader = self._new_reader()

    def _new_reader(self) -> AnswerReader:
        reader = self._provider.reader()
        reader.keeps_document = self._keeps_document
        return reader

    def _keep_no_document(self) -> None:
        self._keeps_document = False
        if self._reader is not None:
            self._reader.keeps_document = False

    def feed(self, piece: bytes) -> bytes:
        """The next piece has come. Returns what the client gets of it. Raises TooLong."""
        if not self.is_answer:
            self._whole += piece[: max(0, _ERROR_LIMIT - len(self._whole))]
            return piece
        self._size += len(piece)
        if self._size > READ_LIMIT:
            self._keep_no_document()
        if self._reader is None:
            self._whole += piece
            self._require_room(len(self._whole))
            return piece
        passed = bytearray()
        for event in self._events.feed(piece):
            data = self._take(self._reader, event)
            if data is None and (event.data or "").strip() not in _NO_ANSWER:
                self._unreadable = True
            if not (self._without_usage and data is not None and _is_usage_alone(data)):
                passed += event.raw
        self._require_room(self._events.waiting)
        return bytes(passed) if self._without_usage else piece

    def _require_room(self, size: int) -> None:
        if size > READ_LIMIT:
            self._unreadable = True
            raise TooLong

    def end(self) -> bytes:
        """The answer came to its end. Returns what stood after the last whole event and was not passed on yet."""
        self._ended = True
        return self._events.rest if self._without_usage else b""

    def error(self) -> Any:
        """The beginning of an error, as JSON; None where it is not JSON."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(bytes(self._whole))
        return None

    def so_far(self) -> Answer:
        """What has come of a stream."""
        return self._reader.answer() if self._reader is not None else Answer()

    def answer(self) -> Answer:
        """What came. Call it when there will be no more."""
        if self._answer is None:
            is_empty = not (self._read or self._events.waiting or self._whole.strip())
            found = self._read_stream(self._reader) if self._reader is not None else self._read_whole()
            self._whole.clear()
            # Of one that was cut off there may be nothing to read; that is a failure, which is told elsewhere.
            nothing = (
                self._ended and not is_empty and found in (Answer(), Answer(problem=_NO_JSON, unread=found.unread))
            )
            # A stream that just ends looks whole to some clients: they make the call with what they have of it.
            is_unsure = found.is_unsure or (found.has_partial_call and self._ended and not self.lost)
            self._answer = replace(found, unreadable=self._unreadable or nothing, is_unsure=is_unsure)
        return self._answer

    def document(self) -> dict[str, Any] | None:
        """The answer in one piece, however it came. None where it is not kept: for an error, and where something was
        lost, could not be read, or is longer than READ_LIMIT."""
        answer = self.answer()
        if not self._keeps_document or self.lost or not self._ended or answer.unreadable or not answer.finished:
            return None
        return self._document or (self._reader.document() if self._reader is not None else None)

    def _take(self, reader: AnswerReader, event: StreamEvent) -> Mapping[str, Any] | None:
        data = event.json()
        if data is not None:
            self._read += 1
            reader.event(data)
        elif (event.data or "").strip() not in _NO_ANSWER:
            self._keep_no_document()
        return data

    def _read_stream(self, reader: AnswerReader) -> Answer:
        rest = self._events.last()
        self._take(reader, rest)
        if not self._read and rest.raw:
            with contextlib.suppress(ValueError, RecursionError):
                return self._read_json(rest.raw)
        return reader.answer()

    def _read_json(self, content: bytes) -> Answer:
        body = json.loads(content)
        if isinstance(body, dict):
            self._document = body
        elif isinstance(body, list) and all(isinstance(event, dict) for event in body):
            reader = self._new_reader()
            for event in body:  # Gemini's form of a stream
                reader.event(event)
            self._document = reader.document()
        else:
            self._keep_no_document()
        return self._provider.whole(body)

    def _read_whole(self) -> Answer:
        content = bytes(self._whole)
        with contextlib.suppress(ValueError, RecursionError):
            return self._read_json(content)
        # A client that asked for a stream reads one, whatever the answer calls itself.
        self._reader = reader = self._new_reader()
        for event in self._events.feed(content):
            self._take(reader, event)
        self._take(reader, self._events.last())
        return reader.answer() if self._read else Answer(problem=_NO_JSON, unread=len(content))


def _is_usage_alone(data: Mapping[str, Any]) -> bool:
    return data.get("choices") == [] and isinstance(data.get("usage"), dict)
