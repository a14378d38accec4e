"""The copy of an answer that is read while the answer passes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from keystone_action.gateway.event_stream import EventStream
from keystone_action.gateway.exchange import Answer, AnswerReader, Provider

READ_LIMIT = 32 << 20
"""Bytes of an answer in one piece that are read; a longer one is passed on all the same, and is estimated."""


class AnswerCopy:
    """What is read of an answer while it passes. without_usage: the client did not ask for the event with usage."""

    def __init__(self, provider: Provider, *, without_usage: bool) -> None:
        self._provider, self._without_usage = provider, without_usage
        self._reader: AnswerReader | None = None
        self._events = EventStream()
        self._whole = bytearray()
        self._answer: Answer | None = None
        self.is_answer = self.broken = False

    def start(self, status: int, content_type: str) -> None:
        self.is_answer = 200 <= status < 300
        if content_type.lower().startswith("text/event-stream"):
            self._reader = self._provider.reader()

    def feed(self, piece: bytes) -> bytes:
        """What the client gets of it."""
        if self._reader is None:
            if len(self._whole) <= READ_LIMIT:
                self._whole += piece
            return piece
        passed = bytearray()
        for event in self._events.feed(piece):
            data = event.json()
            if data is not None:
                self._reader.event(data)
            if not (self._without_usage and data is not None and _is_usage_alone(data)):
                passed += event.raw
        return bytes(passed) if self._without_usage else piece

    def end(self) -> bytes:
        """What stood after the last whole event and was not passed on yet."""
        return self._events.rest if self._without_usage else b""

    def answer(self) -> Answer:
        if self._answer is None:
            self._answer = self._reader.answer() if self._reader is not None else self._read_whole()
        return self._answer

    def _read_whole(self) -> Answer:
        with contextlib.suppress(ValueError, RecursionError):
            return self._provider.whole(json.loads(bytes(self._whole)))
        return Answer(problem="its answer is no JSON")


def _is_usage_alone(data: Mapping[str, Any]) -> bool:
    return data.get("choices") == [] and isinstance(data.get("usage"), dict)


def with_usage(body: bytes) -> tuple[bytes, bool]:
    """The body of a streamed chat with `stream_options.include_usage`; and whether that was added."""
    parsed = json.loads(body)
    options = parsed.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return body, False
    if options is None and "stream_options" not in parsed:
        # All other bytes stay: a provider's cache of prompts goes by them.
        place = body.index(b"{") + 1
        comma = b"," if parsed else b""
        return body[:place] + b'"stream_options":{"include_usage":true}' + comma + body[place:], True
    parsed["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return json.dumps(parsed).encode(), True
