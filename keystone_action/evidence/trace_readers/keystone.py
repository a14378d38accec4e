"""Keystone's TraceEvent, one a line (research/keystone.md 2.7): what an instrumented agent reports of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    CallStatus,
    TraceBuilder,
    TraceReader,
    amount,
    as_arguments,
    as_text,
    identifier,
    mapping,
    text,
    token_count,
)

_STATUS: dict[str, CallStatus] = {"ok": "ok", "error": "error"}
_BEGINS = ("start", "invoked")
_ENDS = ("end", "complete")

_Cost = tuple[int | None, int | None, float | None]


class KeystoneReader(TraceReader):
    """The events of one span are one call: the beginning and the end are joined by `span_id`, or without one by the
    tool's name in the order they came. The cost of a span is that of its last event that has one."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._costs: dict[str, _Cost] = {}
        self._begun: dict[str, deque[str]] = {}
        self._events = 0

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one; False when its type is unknown, or a tool event names no tool. Raises MalformedTrace."""
        self._events += 1
        kind = event.get("event_type")
        if kind not in ("llm_call", "tool_use", "tool_call", "eval"):
            return False
        self._cost(event)
        if kind == "llm_call":
            self._read_message(event)
        elif kind != "eval":
            return self._tool(event)
        return True

    def _cost(self, event: Mapping[str, Any]) -> None:
        cost = mapping(event, "cost")
        found = token_count(cost, "input_tokens"), token_count(cost, "output_tokens"), amount(cost, "estimated_usd")
        if found != (None, None, None):
            self._trace.room(self._costs, "spans with a cost")
            self._costs[identifier(event, "span_id") or f"#{self._events}"] = found

    def _read_message(self, event: Mapping[str, Any]) -> None:
        output = as_text(event.get("output"))
        if output and event.get("phase") not in _BEGINS:
            self._trace.message("assistant", output)
            self._trace.final_output = output

    def _tool(self, event: Mapping[str, Any]) -> bool:
        tool, span, phase = identifier(event, "tool"), identifier(event, "span_id"), event.get("phase")
        if not tool:
            return False
        unnamed = self._begun.setdefault(tool, deque()) if not span else deque()
        call_id = span or f"#{self._events}"
        ends = phase in _ENDS
        joins = self._trace.is_seen(span, tool, ended=ends) if span else ends and bool(unnamed)
        if joins and not span:
            call_id = unnamed.popleft()
        elif not joins:
            self._trace.room(self._begun, "names of tools")
            self._trace.call(call_id, tool, as_arguments(event.get("input")))
            if not span and phase in _BEGINS:
                unnamed.append(call_id)
        if phase not in _BEGINS:
            self._trace.result(call_id, _STATUS.get(text(event, "status")), as_text(event.get("output")))
        return True

    def finish(self) -> None:
        """The usage of the run: that of all spans together."""
        found = list(self._costs.values())
        read = [cost[0] for cost in found if cost[0] is not None]
        written = [cost[1] for cost in found if cost[1] is not None]
        spent = [cost[2] for cost in found if cost[2] is not None]
        self._trace.usage = Usage(
            sum(read) if read else None, sum(written) if written else None, sum(spent) if spent else None
        )
