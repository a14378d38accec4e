"""Touchstone's trace.jsonl (research of its 0.1.1, section 4): `{seq, id, ts, type, parent_id, payload}`."""

from __future__ import annotations

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

_STATUS: dict[str, CallStatus] = dict.fromkeys(("ok", "success", "completed"), "ok")
_STATUS |= dict.fromkeys(("error", "failed", "denied", "timeout", "cancelled"), "error")
_FAILED = {
    "error",
    "failed",
    "failure",
    "timeout",
    "cancelled",
    "refusal",
    "max_tokens",
    "max_turn_requests",
    "max_turns",
}
"""Reasons to stop, also those of the Agent Client Protocol, that are not the end of the work."""
_ALLOWED = dict.fromkeys(("allow", "allowed", "approve", "approved", "accept", "accepted"), True)
_ALLOWED |= dict.fromkeys(("deny", "denied", "reject", "rejected"), False)


class TouchstoneReader(TraceReader):
    """Usage is cumulative: of each figure the latest holds. This is also the form in which we write traces, with a
    first line of type `trace`."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        builder.permissions_known = True

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one; False when its type is unknown. Raises MalformedTrace."""
        payload, trace = mapping(event, "payload"), self._trace
        match event.get("type"):
            case "message":
                trace.message(text(payload, "role") or "assistant", as_text(payload.get("text")))
            case "thought":
                trace.message("thought", as_text(payload.get("text")))
            case "tool_call":
                self._call(payload)
            case "tool_result":
                status = _STATUS.get(text(payload, "status").lower())
                trace.result(identifier(payload, "tool_call_id"), status, as_text(payload.get("output")))
            case "usage":
                self._usage(payload)
            case "permission_request":
                trace.ask(identifier(payload, "request_id"), identifier(payload, "tool_call_id"))
            case "permission_response":
                allowed = _ALLOWED.get(text(payload, "outcome").lower())
                trace.answer(identifier(payload, "request_id"), allowed)
            case "stop":
                trace.stop_reason = text(payload, "reason")
                trace.failure = trace.stop_reason if trace.stop_reason.lower() in _FAILED else ""
                trace.final_output = as_text(payload.get("final_output")) or trace.final_output
            case kind:
                return kind == "trace"
        return True

    def _call(self, payload: Mapping[str, Any]) -> None:
        raw_name, name = text(payload, "raw_name"), text(payload, "name")
        self._trace.call(
            identifier(payload, "tool_call_id"),
            raw_name or name,
            as_arguments(payload.get("input")),
            name=name,
            kind=payload.get("kind"),
        )

    def _usage(self, payload: Mapping[str, Any]) -> None:
        before = self._trace.usage
        given = token_count(payload, "input_tokens"), token_count(payload, "output_tokens"), amount(payload, "cost_usd")
        known = (before.input_tokens, before.output_tokens, before.cost_usd)
        read, written, cost = (old if new is None else new for new, old in zip(given, known, strict=True))
        self._trace.usage = Usage(None if read is None else int(read), None if written is None else int(written), cost)

    def finish(self) -> None:
        """Nothing is left open."""
