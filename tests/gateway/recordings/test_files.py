from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings.reading import read_recording
from keystone_action.gateway.recordings.recording import Entry, Recording, recording_path
from keystone_action.gateway.recordings.request_key import key_of
from keystone_action.gateway.recordings.writing import write_recording

MESSAGES = [
    {"role": "user", "content": "Repair it — ☃ \ud800 \u2028"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "{id:1}", "name": "bash", "input": {"c": "ls"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "{id:1}", "content": "a.py\r\nb.py"}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
]


def entry(turn: int, **changes: Any) -> Entry:
    request: dict[str, Any] = {"model": "m", "system": "You repair.", "messages": MESSAGES[: 2 * turn + 1]}
    normal = {**request, **changes.pop("request", {})}
    key = key_of("anthropic", "m", normal)
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
    return Recording(
        entries or (entry(0), entry(1), entry(2)),
        spec="repair",
        cell="repair.r0",
        product="1.0",
        date="2026-11-23T14:05:00Z",
        providers={"anthropic": "anthropic"},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return recording_path(tmp_path / "recordings" / "repair", "repair.r0")


def test_a_recording_is_read_as_it_was_written(path: Path) -> None:
    others = (
        entry(0, conversation=1, with_tools=False),
        entry(1, request={"tools": [{"name": "bash"}]}),
        entry(2, request={"system": "changed"}),
        entry(1, conversation=1, with_tools=False, status=404),
        entry(0),
    )
    write_recording(path, recording(entry(0), *others), Masker(["hunter22"]))
    assert read_recording(path, spec_id="repair") == recording(entry(0), *others)


def test_a_conversation_is_written_once(path: Path) -> None:
    write_recording(path, recording(), None)
    first, *lines = [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    assert first["spec"] == "repair"
    assert [line.get("continues") for line in lines] == [None, {"messages": 1}, {"messages": 3}]
    assert [line["request"] for line in lines[1:]] == [{"messages": MESSAGES[1:3]}, {"messages": MESSAGES[3:5]}]


def test_keys_are_made_with_the_patterns_of_the_reader(path: Path) -> None:
    write_recording(path, recording(entry(0)), None)
    (found,) = read_recording(path, ignore=["Repair.*"]).entries
    assert found.whole_key == entry(0).key
    assert found.key == key_of("anthropic", "m", found.request, ["Repair.*"])
    assert found.key != found.whole_key
