"""Transcripts that are broken, huge or meant to mislead: survived, counted, never believed."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import SAMPLES, event, read, span

from keystone_action.evidence.trace import Usage
from keystone_action.evidence.trace_readers import builder as building
from keystone_action.evidence.trace_readers import reading as reading_lines
from keystone_action.evidence.trace_readers.reading import LINE_LIMIT, read_trace
from keystone_action.spec.models.agents import TraceFormat

NUMBERS = {
    "claude": lambda n: {"type": "result", "subtype": "success", "total_cost_usd": n, "usage": {}},
    "codex": lambda n: {"type": "turn.completed", "usage": {"input_tokens": n}},
    "gemini": lambda n: {"type": "result", "status": "success", "stats": {"output_tokens": n}},
    "mini": lambda n: {"info": {"model_stats": {"instance_cost": n}}, "messages": []},
    "touchstone": lambda n: event("usage", cost_usd=n),
    "keystone": lambda n: span("llm_call", cost={"estimated_usd": n}),
    "otel": lambda n: {"name": "chat", "attributes": {"gen_ai.usage.input_tokens": n}},
}
USE = {"type": "tool_use", "id": "1", "name": "Bash", "input": {}}
FINE = {
    "claude": {"type": "assistant", "message": {"content": [USE]}},
    "codex": {"type": "item.completed", "item": {"id": "1", "type": "command_execution", "command": "ls"}},
    "gemini": {"type": "tool_use", "tool_id": "1", "tool_name": "run_shell_command", "parameters": {"command": "ls"}},
    "mini": {
        "info": {},
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "bash", "arguments": "{}"}}]}
        ],
    },
    "touchstone": event("tool_call", tool_call_id="1", raw_name="Bash", name="Bash", kind="execute", input={}),
    "keystone": span("tool_call", "1", tool="Bash", phase="start", input={}),
    "otel": {"name": "x", "attributes": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "Bash"}},
}
FORMATS = sorted(get_args(TraceFormat))


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize(
    "number", [-0.01, -1, float("nan"), float("inf"), -float("inf"), 10**30, 10**400, "12", True, [1], {"n": 1}]
)
def test_senseless_numbers_make_a_trace_malformed(source, number):
    trace = read(source, FINE[source], NUMBERS[source](number))
    assert trace.problem.startswith("the trace is malformed: line 2: expected a ")
    assert (trace.tool_calls, trace.usage, trace.messages) == (None, Usage(), ())


@pytest.mark.parametrize("source", FORMATS)
def test_lines_that_are_not_understood_are_counted_and_survived(source):
    odd = [b"not json", b"[1, 2]", b'"text"', b"", b"   ", {"type": "martian"}, {"type": "martian"}, {"type": 7}]
    deep = b'{"a": ' + b"[" * 100_000
    trace = read(source, *odd, FINE[source], b'{"type": "\xff\xfe"}', deep, more=b'{"type": "assis')
    told = "; ".join(trace.not_understood)
    assert trace.problem == ""
    assert len(trace.tool_calls) == 1
    assert "1 × line that is not JSON" in told
    assert "3 × line or entry that is not a JSON object" in told
    assert "1 × line with bytes that are not UTF-8" in told
    assert "1 × line that is only half written, the last one" in told
    if source in ("claude", "codex", "touchstone"):
        assert '2 × event of an unknown type: "martian"' in told


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize(
    "data", [b"", b"\n\n  \n", b"hello\nworld\n", b"\xff\xfe\x00", b"{}\n", b'{"type": "?"}', b"null"]
)
def test_what_holds_nothing_of_the_format_is_no_trace(source, data):
    trace = read_trace(io.BytesIO(data), source, "the trace")
    assert trace.tool_calls is None
    expected = "holds no event of the format" if data.strip() else "is empty"
    assert f"the trace {expected}" in trace.problem


@pytest.mark.parametrize("data", [b"\n" * 11, b"{}\n" * 11, b"[1, 1, 1, 1, 1, 1]\n" * 2, b"x\n" * 11])
def test_a_crowd_of_short_lines_is_not_read_for_an_hour(data, monkeypatch):
    monkeypatch.setattr(reading_lines, "LINES_LIMIT", 10)
    trace = read_trace(io.BytesIO(data), "claude", "the trace")
    assert trace.problem == "the trace has more than 10 lines and entries of lists"
    assert read("claude", *[b""] * 9, FINE["claude"]).problem == ""


def test_the_transcript_of_another_agent_is_no_trace():
    with (SAMPLES / "gemini-cli-0.61.0.jsonl").open("rb") as file:
        trace = read_trace(file, "codex", "the trace out.jsonl")
    assert trace.problem.startswith("the trace out.jsonl holds no event of the format codex: 1 × event of an unknown")


def test_names_of_unknown_events_are_bounded():
    trace = read("claude", FINE["claude"], *({"type": f"{n} " * 500} for n in range(100)))
    assert len(trace.not_understood) == 22  # twenty names, the others together, and that there is no result
    assert "80 × further event of an unknown type" in trace.not_understood
    assert max(map(len, trace.not_understood)) < 200


def test_long_texts_are_cut_and_said():
    use = {**USE, "name": "Write", "input": {"file_path": "a", "content": "x" * 1_000_000}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "y" * 99_999}
    trace = read(
        "claude",
        {"type": "assistant", "message": {"content": [use]}},
        {"type": "user", "message": {"content": [result]}},
    )
    (call,) = trace.tool_calls
    assert call.arguments == {"file_path": "a", "content": "x" * building.ARGUMENT_LIMIT + "…"}
    assert call.result == "y" * building.TEXT_LIMIT + "…"
    assert "1 × tool call whose arguments were kept only in part" in trace.not_understood
    assert "1 × result or message that was kept only in part" in trace.not_understood


def test_arguments_are_whole_or_left_out(monkeypatch):
    monkeypatch.setattr(building, "ARGUMENTS_LIMIT", 1000)
    commands = ["a" * 600, "b" * 600, "ls"]
    trace = read("claude", *({"type": "assistant", "message": {"content": [
        {**USE, "id": str(n), "input": {"command": command}}]}} for n, command in enumerate(commands)))  # fmt: skip
    assert [call.arguments for call in trace.tool_calls] == [{"command": "a" * 600}, None, {"command": "ls"}]
    assert trace.not_understood[0] == "1 × tool call whose arguments were left out, there being too many"


def test_a_line_that_is_too_long_is_skipped_and_the_next_is_read():
    trace = read("codex", b'{"type": "' + b"x" * (LINE_LIMIT + 10) + b'"}', FINE["codex"])
    assert len(trace.tool_calls) == 1
    assert trace.not_understood == ("1 × line longer than 8 MiB",)


def test_too_many_calls_are_refused_rather_than_miscounted(monkeypatch):
    monkeypatch.setattr(building, "ENTRIES_LIMIT", 10)
    trace = read("codex", *[{**FINE["codex"], "n": n} for n in range(11)])
    assert trace.problem == "the trace is malformed: line 11: there are more than 10 messages and tool calls"


def test_arguments_nested_without_end_make_a_trace_malformed():
    nested: object = 1
    for _ in range(200):
        nested = [nested]
    trace = read("touchstone", event("tool_call", tool_call_id="1", raw_name="x", input={"a": nested}))
    assert "nested deeper than 64 levels" in trace.problem


class Endless(io.RawIOBase):
    """A file of a hundred megabytes that is nowhere."""

    def __init__(self, line: bytes, size: int) -> None:
        self.line, self.size, self.position = line, size, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        self.position = offset
        return offset

    def tell(self):
        return self.position

    def readinto(self, buffer):
        start = self.position % len(self.line)
        data = (self.line[start:] + self.line * (len(buffer) // len(self.line) + 1))[: len(buffer)]
        data = data[: max(0, self.size - self.position)]
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


@pytest.mark.slow
def test_a_hundred_megabytes_are_read_in_bounded_memory():
    result = json.dumps(event("tool_result", tool_call_id="1", status="ok", output="z" * 50_000)).encode() + b"\n"
    said = json.dumps(event("message", role="assistant", text="w" * 50_000)).encode() + b"\n"
    call = json.dumps(event("tool_call", tool_call_id="1", raw_name="Bash", input={"a": "v" * 50_000})).encode() + b"\n"
    turn = call + said + result
    assert 700 * len(turn) > 100 << 20
    tracemalloc.start()
    try:
        trace = read_trace(io.BufferedReader(Endless(turn, 700 * len(turn))), "touchstone", "the trace")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trace.problem == ""
    assert len(trace.tool_calls) == 700
    assert peak < 100 << 20


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_KEYS = """info messages actions tool_calls function stats object
type event_type payload message content id tool_call_id usage input_tokens cost tool phase span_id status
output item input name raw_name attributes resourceSpans scopeSpans spans text role error result changes"""
KEYS = st.sampled_from(_KEYS.split())
_KINDS = """assistant user result tool_use text tool_call tool_result usage stop permission_request llm_call
item.completed command_execution mcp_tool_call turn.completed message"""
KINDS = st.sampled_from(_KINDS.split())
EVENTS = st.recursive(
    st.dictionaries(KEYS, KINDS | JSON, max_size=5),
    lambda inner: st.dictionaries(KEYS, inner | st.lists(inner, max_size=2) | KINDS | JSON, max_size=5),
    max_leaves=12,
)


@given(source=st.sampled_from(FORMATS), events=st.lists(EVENTS, max_size=6), tail=st.binary(max_size=20))
def test_no_events_whatever_break_a_reader(source, events, tail):
    trace = read(source, *events, more=tail)
    if trace.problem:
        assert trace.tool_calls is None
        assert trace.usage == Usage()
    for figure in (trace.usage.input_tokens, trace.usage.output_tokens, trace.usage.cost_usd):
        assert figure is None or figure >= 0


@pytest.mark.parametrize("source", ["touchstone", "keystone"])
def test_long_identifiers_are_told_apart_and_not_kept(source):
    ids = ["i" * 100_000 + end for end in "ab"]
    if source == "touchstone":
        events = [event("tool_call", tool_call_id=one, raw_name="Bash", input={}) for one in ids]
        events.append(event("tool_result", tool_call_id=ids[0], status="ok", output="first"))
    else:
        events = [span("tool_call", one, tool="Bash", phase="start", input={}) for one in ids]
        events.append(span("tool_call", ids[0], tool="Bash", phase="end", status="ok", output="first"))
    trace = read(source, *events)
    assert [call.result for call in trace.tool_calls] == ["first", ""]
    assert {len(call.id) for call in trace.tool_calls} == {64}
