"""Our own copy of a trace: the form that Touchstone's reader reads."""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import CLAUDE, CODEX, sample

from keystone_action.evidence.trace import TOOL_KINDS, Message, Permission, ToolCall, Trace, Usage, write_trace
from keystone_action.evidence.trace_readers.reading import read_trace

WORD = st.text(min_size=1, max_size=20)
COUNT = st.none() | st.integers(0, 2**62)
CALLS = st.builds(
    ToolCall,
    id=WORD,
    raw_name=WORD,
    name=WORD,
    kind=st.sampled_from(TOOL_KINDS),
    arguments=st.none() | st.dictionaries(WORD, st.none() | st.integers() | WORD | st.lists(WORD)),
    status=st.sampled_from(["ok", "error"]),
    result=st.text(max_size=20),
)
PERMISSIONS = st.builds(Permission, tool_call_id=WORD, allowed=st.sampled_from([True, False, None]))
TRACES = st.builds(
    Trace,
    source=st.just("touchstone"),
    timeline=st.lists(CALLS | st.builds(Message, role=WORD, text=WORD), max_size=5).map(tuple),
    permissions=st.lists(PERMISSIONS).map(tuple),
    usage=st.builds(Usage, COUNT, COUNT, st.none() | st.floats(0, 1e9)),
    stop_reason=st.text(max_size=20),
    final_output=st.text(max_size=20),
).map(
    lambda trace: dataclasses.replace(
        trace,
        tool_calls=tuple(entry for entry in trace.timeline if isinstance(entry, ToolCall)),
        messages=tuple(entry for entry in trace.timeline if isinstance(entry, Message)),
    )
)  # fmt: skip


def written(trace: Trace, path: Path) -> Trace:
    write_trace(trace, path)
    with path.open("rb") as file:
        return read_trace(file, "touchstone", "our copy")


@given(TRACES)
def test_what_is_written_is_read_back(trace):
    with tempfile.TemporaryDirectory() as directory:
        assert written(trace, Path(directory) / "trace.jsonl") == trace


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"ts": "2026-03-01T10:15:00.5Z"}, "2026-03-01T10:15:00.500000Z"),
        ({"timestamp": "2026-03-01T12:15:00+02:00"}, "2026-03-01T10:15:00.000000Z"),
        ({"ts": 1_795_306_627.25}, "2026-11-22T00:17:07.250000Z"),
        ({"ts": "2026-03-01T10:15:00"}, ""),
        ({"ts": "0001-01-01T00:00:00+23:59"}, ""),
        ({"ts": 3.0}, ""),
        ({"ts": 10**400}, ""),
        ({"ts": float("nan")}, ""),
        ({"ts": True}, ""),
        ({"ts": ["2026"]}, ""),
        ({"ts": "<script>"}, ""),
        ({}, ""),
    ],
)
def test_the_time_of_an_event_is_kept_where_it_is_one(told, shown, tmp_path):
    event = {"type": "message", "payload": {"role": "assistant", "text": "x"}}
    read = read_trace(io.BytesIO(json.dumps(event | told).encode()), "touchstone", "a trace")
    write_trace(read, tmp_path / "trace.jsonl")
    line = json.loads((tmp_path / "trace.jsonl").read_text("utf-8").splitlines()[1])
    assert (read.messages[0].ts, line.get("ts", "")) == (shown, shown)


@given(TRACES, st.text(max_size=10))
def test_times_change_nothing_that_is_compared(trace, ts):
    timeline = tuple(dataclasses.replace(entry, ts=ts) for entry in trace.timeline)
    assert dataclasses.replace(trace, timeline=timeline) == trace


@pytest.mark.parametrize("name", [CLAUDE, CODEX])
def test_a_real_transcript_survives(tmp_path, name):
    trace = sample(name)
    found = written(trace, tmp_path / "trace.jsonl")
    assert (found.tool_calls, found.timeline, found.usage) == (trace.tool_calls, trace.timeline, trace.usage)


def test_the_first_line_says_what_was_not_understood(tmp_path):
    trace = Trace(source="codex", problem="it is empty", not_understood=("2 × line that is not JSON",))
    write_trace(trace, tmp_path / "trace.jsonl")
    (line,) = (tmp_path / "trace.jsonl").read_text("utf-8").splitlines()
    payload = {"source": "codex", "problem": "it is empty", "not_understood": ["2 × line that is not JSON"]}
    assert json.loads(line) == {"seq": 0, "type": "trace", "payload": payload}


def test_what_can_be_no_text_does_not_keep_it_from_being_written(tmp_path):
    trace = Trace(source="codex", messages=(Message("assistant", "a\ud800b"),))
    write_trace(trace, tmp_path / "trace.jsonl")
    assert "a?b" in (tmp_path / "trace.jsonl").read_text("utf-8")
