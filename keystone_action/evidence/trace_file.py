"""Our own copy of a trace, `trace.jsonl`: Touchstone's envelope `{seq, type, payload}`, one event a line.

The first line is of type `trace`: `{source, problem, not_understood}`. Then, in the order they came in where that is
known: `message {role, text}`, `thought {text}`, `tool_call {tool_call_id, raw_name, name, kind, input}` with its
`tool_result {tool_call_id, status, output}` after it where one was seen; then `permission_request {request_id,
tool_call_id, options}` with its `permission_response {request_id, outcome: allow|deny}`, one `usage {input_tokens,
output_tokens, cost_usd}` where any of these is known, and one `stop {reason, final_output}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keystone_action.evidence.trace import Message, ToolCall, Trace, Usage

_Event = tuple[str, Mapping[str, Any]]


def write_trace(trace: Trace, path: Path) -> None:
    """Write it; what was there is replaced. Raises OSError."""
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for number, (kind, payload) in enumerate(_events(trace)):
            json.dump({"seq": number, "type": kind, "payload": payload}, file, ensure_ascii=False)
            file.write("\n")


def _events(trace: Trace) -> Iterator[_Event]:
    yield "trace", {"source": trace.source, "problem": trace.problem, "not_understood": list(trace.not_understood)}
    for entry in trace.timeline or (*trace.messages, *(trace.tool_calls or ())):
        yield from _message_events(entry) if isinstance(entry, Message) else _call_events(entry)
    for number, permission in enumerate(trace.permissions or ()):
        request = {"request_id": str(number), "tool_call_id": permission.tool_call_id, "options": []}
        yield "permission_request", request
        if permission.allowed is not None:
            yield (
                "permission_response",
                {"request_id": str(number), "outcome": "allow" if permission.allowed else "deny"},
            )
    usage = trace.usage
    if usage != Usage():
        figures = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost_usd": usage.cost_usd}
        yield "usage", figures
    if trace.stop_reason or trace.final_output:
        yield "stop", {"reason": trace.stop_reason, "final_output": trace.final_output}


def _message_events(message: Message) -> Iterator[_Event]:
    if message.role == "thought":
        yield "thought", {"text": message.text}
    else:
        yield "message", {"role": message.role, "text": message.text}


def _call_events(call: ToolCall) -> Iterator[_Event]:
    payload = {"tool_call_id": call.id, "raw_name": call.raw_name, "name": call.name, "kind": call.kind}
    yield "tool_call", {**payload, "input": call.arguments}
    if call.status is not None or call.result:
        yield "tool_result", {"tool_call_id": call.id, "status": call.status, "output": call.result}
