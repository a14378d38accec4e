"""Recordings that are made by hand: a request and its answer in the form of each API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keystone_action.gateway.recordings.files import write_recording
from keystone_action.gateway.recordings.recording import Entry, Recording, recording_path
from keystone_action.gateway.recordings.request_key import key_of_request

MESSAGES = [
    {"role": "user", "content": "Repair it"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "{id:1}", "name": "bash", "input": {"cmd": "ls"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "{id:1}", "content": "a.py\nb.py"}]},
]
USED: dict[str, Any] = {"uncached": 1_000, "cache_read": 0, "output": 200}
ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "anthropic": (
        {
            "model": "m",
            "system": "You repair.",
            "tools": [{"name": "bash"}, {"name": "edit"}],
            "messages": MESSAGES[:1],
        },
        {
            "type": "message",
            "model": "m",
            "stop_reason": "tool_use",
            "content": [{"type": "text", "text": "Let me look."}, *MESSAGES[1]["content"]],
        },
    ),
    "openai responses": (
        {
            "model": "m",
            "instructions": "You repair.",
            "tools": [{"type": "function", "name": "bash"}],
            "input": "Repair it",
        },
        {
            "object": "response",
            "status": "completed",
            "model": "m",
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "Let me look."}]},
                {"type": "function_call", "call_id": "{id:1}", "name": "bash", "arguments": '{"cmd": "ls"}'},
            ],
        },
    ),
    "openai chat": (
        {
            "model": "m",
            "messages": [{"role": "system", "content": "You repair."}, *MESSAGES[:1]],
            "tools": [{"type": "function", "function": {"name": "bash"}}],
        },
        {
            "model": "m",
            "choices": [
                {
                    "finish_reason": "tool_calls",
                    "message": {
                        "content": "Let me look.",
                        "tool_calls": [
                            {
                                "id": "{id:1}",
                                "type": "function",
                                "function": {"name": "bash", "arguments": '{"cmd": "ls"}'},
                            }
                        ],
                    },
                }
            ],
        },
    ),
    "gemini": (
        {
            "systemInstruction": {"parts": [{"text": "You repair."}]},
            "contents": [{"role": "user", "parts": [{"text": "Repair it"}]}],
            "tools": [{"functionDeclarations": [{"name": "bash"}]}],
        },
        {
            "modelVersion": "m",
            "candidates": [
                {
                    "finishReason": "STOP",
                    "content": {
                        "parts": [{"text": "Let me look."}, {"functionCall": {"name": "bash", "args": {"cmd": "ls"}}}]
                    },
                }
            ],
        },
    ),
}


def entry(
    request: Mapping[str, Any], answer: Mapping[str, Any], *, turn: int = 0, api: str = "anthropic", **more: Any
) -> Entry:
    key = key_of_request(api, more.get("model", "m"), request)
    values: dict[str, Any] = {"usage": USED, "seconds": 1.25, "with_tools": True, "conversation": 0, "model": "m"}
    return Entry(api=api, key=key, whole_key=key, turn=turn, request=request, answer=answer, **(values | more))


FIRST = entry(*ANSWERS["anthropic"])
SECOND = entry(
    {**ANSWERS["anthropic"][0], "messages": MESSAGES, "max_tokens": 5},
    {"type": "message", "model": "m", "stop_reason": "end_turn", "content": [{"type": "text", "text": "Done.\nAll."}]},
    turn=1,
)


def keep(folder: Path, *entries: Entry, cell: str = "repair.r0", **more: Any) -> Path:
    values: dict[str, Any] = {
        "spec": "repair",
        "product": "1.0",
        "date": "2026-11-23T14:05:00Z",
        "providers": {"anthropic": "anthropic", "router": "openai", "gemini": "gemini"},
    }
    path = recording_path(folder, cell)
    write_recording(path, Recording(entries or (FIRST, SECOND), cell=cell, **(values | more)), None)
    return path
