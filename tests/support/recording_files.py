"""Recordings of a made-up cell, as objects and as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from keystone_action.gateway.recordings.files import write_recording
from keystone_action.gateway.recordings.recording import Entry, Recording
from keystone_action.gateway.recordings.request_key import key_of_request

MESSAGES = [
    {"role": "user", "content": "Repair it — ☃ \ud800 \u2028"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "{id:1}", "name": "bash", "input": {"c": "ls"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "{id:1}", "content": "a.py\r\nb.py"}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
]


def entry(turn: int, **changes: Any) -> Entry:
    """The request with which a turn begins, and its answer."""
    request: dict[str, Any] = {"model": "m", "system": "You repair.", "messages": MESSAGES[: 2 * turn + 1]}
    normal = {**request, **changes.pop("request", {})}
    key = key_of_request("anthropic", "m", normal)
    answer = {"id": f"{{id:{turn + 1}:msg_}}", "content": [{"type": "text", "text": "{workspace}/a.py"}]}
    found = Entry(
        api="anthropic",
        model="m",
        key=key,
        whole_key=key,
        conversation=0,
        turn=turn,
        with_tools=True,
        request=normal,
        answer=answer,
        usage={"uncached": 5, "output": 7, "cost_usd": 0.01},
        seconds=1.25,
    )
    return replace(found, **changes)


def recording(*entries: Entry) -> Recording:
    """Of three turns where nothing else is said."""
    return Recording(
        entries or (entry(0), entry(1), entry(2)),
        spec="repair",
        cell="repair.r0",
        product="1.0",
        date="2026-11-23T14:05:00Z",
        providers={"anthropic": "anthropic"},
    )


def written(path: Path, *entries: Entry) -> list[bytes]:
    """The lines of a recording that was written there."""
    write_recording(path, recording(*entries), None)
    return path.read_bytes().splitlines(keepends=True)
