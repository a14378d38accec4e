"""Claude Code's `--output-format stream-json` (seen: 2.1.197).

One message of the API comes as several `assistant` events with the same `message.id` and the same usage; only the last
`result` has totals. Results come in another order than calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers.builder import (
    TraceBuilder,
    TraceReader,
    amount,
    as_arguments,
    as_text,
    identifier,
    mapping,
    objects,
    text,
    token_count,
)

_PASSED_OVER = ("system", "stream_event", "control_request", "control_response", "control_cancel_request", "keep_alive")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_SYNTHETIC = "<synthetic>"


class ClaudeReader(TraceReader):
    """Of permissions only the denied ones are told, and only by a `result`."""

    has_ids_of_api = True

    def __init__(self, builder: TraceBuilder) -> None:
        self._trace = builder
        self._read: dict[str, int] = {}
        self._result: Mapping[str, Any] | None = None
        self._totals = Usage()
        self._last_text = ""

    def event(self, event: Mapping[str, Any]) -> bool:
        """Take one; False when its type is unknown. Raises MalformedTrace."""
        match event.get("type"):
            case "assistant":
                self._assistant(mapping(event, "message"))
            case "user":
                self._user(mapping(event, "message"))
            case "result":
                self._read_result(event)
            case kind:
                return kind in _PASSED_OVER
        return True

    def _assistant(self, message: Mapping[str, Any]) -> None:
        synthetic = message.get("model") == _SYNTHETIC
        read = token_count(mapping(message, "usage"), "input_tokens")
        if read is not None and not synthetic:
            self._trace.room(self._read, "messages of a model")
            self._read[identifier(message, "id")] = read
        for block in objects(message, "content"):
            self._block(block, "system" if synthetic else "assistant")

    def _block(self, block: Mapping[str, Any], role: str) -> None:
        kind = text(block, "type")
        if kind == "text":
            self._last_text = text(block, "text")
            self._trace.message(role, self._last_text)
        elif kind == "thinking":
            self._trace.message("thought", text(block, "thinking"))
        elif kind in _CALLS:
            name, arguments = text(block, "name"), as_arguments(block.get("input"))
            if not self._trace.same_call(identifier(block, "id"), name, arguments):
                self._trace.call(identifier(block, "id"), name, arguments)
        elif kind.endswith("tool_result"):
            self._tool_result(block)
        elif kind != "redacted_thinking":
            self._trace.skip(f"content block of an unknown type: {kind[:40]!a}")

    def _user(self, message: Mapping[str, Any]) -> None:
        self._trace.message("user", text(message, "content"))
        for block in objects(message, "content"):
            if text(block, "type").endswith("tool_result"):
                self._tool_result(block)
            else:
                self._trace.message("user", text(block, "text"))

    def _tool_result(self, block: Mapping[str, Any]) -> None:
        status = "error" if block.get("is_error") else "ok"
        self._trace.result(identifier(block, "tool_use_id"), status, as_text(block.get("content")))  # type: ignore[arg-type]

    def _read_result(self, event: Mapping[str, Any]) -> None:
        usage = mapping(event, "usage")
        self._totals = Usage(
            token_count(usage, "input_tokens"), token_count(usage, "output_tokens"), amount(event, "total_cost_usd")
        )
        self._result = event

    def finish(self) -> None:
        """Totals, the end, and the permissions that were denied."""
        result, trace = self._result, self._trace
        if result is None:
            trace.final_output = self._last_text
            trace.notes.append(
                "there is no result event, so the totals of tokens and cost are unknown "
                f"(its messages show {sum(self._read.values()):,} input tokens)"
            )
            return
        trace.usage = self._usage()
        trace.stop_reason = _stop_reason(result)
        trace.failure = _failure(result)
        trace.final_output = text(result, "result") or self._last_text
        trace.permissions_known = "permission_denials" in result
        for number, denial in enumerate(objects(result, "permission_denials")):
            trace.ask(str(number), identifier(denial, "tool_use_id"))
            trace.answer(str(number), allowed=False)

    def _usage(self) -> Usage:
        # Claude leaves the answer to a request that it repeated after a cut stream out of its totals.
        shown = sum(self._read.values())
        total = self._totals
        read = max(total.input_tokens or 0, shown) if self._read else total.input_tokens
        if total.input_tokens is not None and read != total.input_tokens:
            self._trace.notes.append(
                f"its totals have {total.input_tokens:,} input tokens, its messages {shown:,}: the messages count"
            )
        return Usage(read, total.output_tokens, total.cost_usd)


def _stop_reason(result: Mapping[str, Any]) -> str:
    subtype, status = text(result, "subtype"), result.get("api_error_status")
    if subtype not in ("", "success"):
        return subtype
    if result.get("is_error"):
        return f"api_error {status}" if isinstance(status, int) else "error"
    return text(result, "stop_reason") or subtype


def _failure(result: Mapping[str, Any]) -> str:
    """Why the run failed; empty where the result does not say so."""
    if text(result, "subtype") in ("", "success") and not result.get("is_error"):
        return ""
    errors = result.get("errors")
    said = [one for one in errors if isinstance(one, str)] if isinstance(errors, list) else []
    return ": ".join(filter(None, [_stop_reason(result), "; ".join(said) or text(result, "result")]))
