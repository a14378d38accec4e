"""Transcripts for tests: real ones, and events of the formats."""

from __future__ import annotations

import io
import json
from pathlib import Path

from keystone_action.evidence.trace import Trace
from keystone_action.evidence.trace_readers.reading import read_trace

SAMPLES = Path(__file__).parent.parent / "data" / "traces"
CLAUDE, CODEX = "claude-code-2.1.197", "codex-0.169.0"
GEMINI, MINI = "gemini-cli-0.61.0", "mini-swe-agent-2.4.6"


def sample(name: str) -> Trace:
    """One of tests/data/traces; its first word is the format."""
    with (SAMPLES / f"{name}.jsonl").open("rb") as file:
        return read_trace(file, name.partition("-")[0], "the trace")


def read(source: str, *events: object, more: bytes = b"") -> Trace:
    """A transcript of these events, one a line; bytes are a line as they are. more: what follows the last line."""
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return read_trace(io.BytesIO(b"".join(line + b"\n" for line in lines) + more), source, "the trace")


def event(kind: str, /, **payload: object) -> dict[str, object]:
    """One of Touchstone's."""
    return {"seq": 1, "id": "x", "ts": 1.5, "type": kind, "parent_id": None, "payload": payload}


def span(kind: str, span_id: str | None = None, /, **more: object) -> dict[str, object]:
    """One of Keystone's."""
    return {"ts": "2026-01-01T00:00:00Z", "event_type": kind, **({"span_id": span_id} if span_id else {}), **more}


def calls(trace: Trace) -> list[tuple[str, str, str | None]]:
    """The raw name, the kind and the status of each call."""
    assert trace.tool_calls is not None, trace.problem
    return [(call.raw_name, call.kind, call.status) for call in trace.tool_calls]
