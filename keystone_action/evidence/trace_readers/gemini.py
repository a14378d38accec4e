"""Gemini CLI's `--output-format stream-json` (seen: 0.61.0).

What the model says comes in pieces; a command that failed is a `tool_result` of status `success` all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    TEXTS_LIMIT,
    CallStatus,
    TraceBuilder,
    TraceReader,
    as_arguments,
    as_text,
    identifier,
    mapping,
    text,
    token_count,
)

_STATUS: dict[str, CallStatus] = {"success": "ok", "error": "error"}


class GeminiReader(TraceReader):
    """Tokens are those of the `result`, input tokens with those of the cache; there is no cost."""

    has_ids_of_api = True

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._said: list[str] = []
        self._length = 0
        self._has_result = False

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one; False when its type is unknown. Raises MalformedTrace."""
        kind = event.get("type")
        if kind != "message" or event.get("role") != "assistant":
            self._end_message()
        match kind:
            case "init":
                pass
            case "message":
                self._read_message(event)
            case "tool_use":
                self._trace.call(
                    identifier(event, "tool_id"), text(event, "tool_name"), as_arguments(event.get("parameters"))
                )
            case "tool_result":
                status = _STATUS.get(text(event, "status"))
                output = as_text(event.get("output")) or text(mapping(event, "error"), "message")
                self._trace.result(identifier(event, "tool_id"), status, output)
            case "error":
                self._trace.message("system", text(event, "message"))
            case "result":
                self._read_result(event)
            case _:
                return False
        return True

    def _read_message(self, event: Mapping[str, Any]) -> None:
        said = as_text(event.get("content"))
        if event.get("role") != "assistant":
            self._trace.message(text(event, "role") or "user", said)
            return
        if not event.get("delta"):
            self._end_message()
        if self._length <= TEXTS_LIMIT:
            self._said.append(said)
            self._length += len(said) + 1  # a crowd of empty pieces is bounded too

    def _end_message(self) -> None:
        said = "".join(self._said)
        self._said, self._length = [], 0
        if said:
            self._trace.message("assistant", said)
            self._trace.final_output = said

    def _read_result(self, event: Mapping[str, Any]) -> None:
        stats = mapping(event, "stats")
        self._trace.usage = Usage(token_count(stats, "input_tokens"), token_count(stats, "output_tokens"))
        status, said = text(event, "status"), text(mapping(event, "error"), "message")
        self._trace.stop_reason = status
        self._trace.failure = (said or f"status: {status}") if status not in ("", "success") else ""
        self._trace.message("system", said)
        self._has_result = True

    def finish(self) -> None:
        """What was said last."""
        self._end_message()
        if not self._has_result:
            self._trace.notes.append("there is no result event, so the totals of tokens are unknown")
