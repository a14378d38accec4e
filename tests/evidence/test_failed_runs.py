"""Transcripts that say that the run failed, in each format as far as it can say so; and others that only seem to."""

from __future__ import annotations

from typing import Any

import pytest
from support.traces import event, read, sample


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("codex-0.169.0", ""),
        ("codex-0.169.0-stopped-by-400", "keystone: budget of this cell is spent"),
        ("codex-0.169.0-refused-401", "401 Unauthorized"),
        ("gemini-cli-0.61.0", ""),
        ("gemini-cli-0.61.0-refused-400", "scripted bad request"),
        ("claude-code-2.1.197", ""),
        ("claude-code-2.1.197-retries", ""),
        ("claude-code-2.1.197-max-turns", "error_max_turns: Reached maximum number of turns (3)"),
        ("claude-code-2.1.197-stopped-by-400", "api_error 400: API Error: 400 keystone: budget"),
        ("mini-swe-agent-2.4.6", ""),
    ],
)
def test_what_real_transcripts_say(name: str, failure: str) -> None:
    found = sample(name).failure
    assert failure in found
    assert bool(found) == bool(failure)


BEGAN = {"type": "turn.started"}
FAILED = {"type": "turn.failed", "error": {"message": "stream disconnected"}}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
WARNING = {"type": "item.completed", "item": {"type": "error", "message": "unknown model"}}


def span(operation: str, *, failed: bool) -> dict[str, Any]:
    status = {"status_code": "ERROR"} if failed else {"status_code": "OK"}
    return {"name": operation, "attributes": {"gen_ai.operation.name": operation}, "status": status}


@pytest.mark.parametrize(
    ("source", "events", "failure"),
    [
        ("codex", [BEGAN, FAILED], "stream disconnected"),
        ("codex", [BEGAN, {"type": "turn.failed"}], "the turn failed"),
        ("codex", [BEGAN, FAILED, BEGAN, COMPLETED], ""),
        ("codex", [BEGAN, WARNING, COMPLETED], ""),
        ("codex", [BEGAN, {"type": "error", "message": "reconnecting"}, COMPLETED], ""),
        ("gemini", [{"type": "result", "status": "error", "stats": {}}], "status: error"),
        ("gemini", [{"type": "error", "message": "loop detected"}, {"type": "result", "status": "success"}], ""),
        ("claude", [{"type": "result", "subtype": "error_during_execution", "errors": 3}], "error_during_execution"),
        ("mini", [{"info": {"exit_status": "LimitsExceeded"}, "messages": []}], "LimitsExceeded"),
        ("mini", [{"info": {}, "messages": []}], ""),
        ("touchstone", [event("stop", reason="error")], "error"),
        ("touchstone", [event("stop", reason="end_turn")], ""),
        ("otel", [span("invoke_agent", failed=True)], "the agent's span failed: error"),
        ("otel", [span("invoke_agent", failed=False), span("execute_tool", failed=True)], ""),
    ],
)
def test_what_says_that_a_run_failed_and_what_does_not(source: str, events: list[dict[str, Any]], failure: str) -> None:
    assert read(source, *events).failure == failure
