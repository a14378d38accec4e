"""Transcripts of known agents and of known formats, read into the one model of a trace."""

from __future__ import annotations

import io
import json
from typing import get_args

import pytest
from support.traces import CLAUDE, CODEX, SAMPLES, calls, event, read, sample, span

from keystone_action.evidence.trace import Message, Permission, Usage
from keystone_action.evidence.trace_readers.builder import tool_kind
from keystone_action.evidence.trace_readers.reading import read_trace, reader_of
from keystone_action.spec.models.agents import TraceFormat


def test_every_format_that_a_spec_may_name_has_a_reader():
    assert len({reader_of(name) for name in get_args(TraceFormat)}) == len(get_args(TraceFormat))


# Claude Code


def test_claude_counts_a_message_once_and_takes_totals_from_the_result():
    trace = sample(CLAUDE)
    assert trace.usage == Usage(6400, 170, 0.041375)
    assert trace.usage.tokens == 6570
    assert trace.stop_reason == "end_turn"
    assert trace.final_output == 'Fixed the typo. Done: é✓ "quoted" <b>&amp;</b>'
    assert (trace.not_understood, trace.problem, trace.permissions) == ((), "", ())


def test_claude_joins_results_that_come_in_another_order():
    trace = sample(CLAUDE)
    assert calls(trace) == [
        ("Write", "write", "ok"),
        ("Read", "read", "ok"),
        ("Edit", "write", "ok"),
        ("Bash", "execute", "ok"),
        ("Bash", "execute", "error"),
    ]
    cat, ls = trace.tool_calls[3:]
    assert (cat.arguments, cat.result) == ({"command": "cat hello.txt"}, "hello from the script")
    assert (ls.arguments, ls.result[:11]) == ({"command": "ls /nonexistent-dir"}, "Exit code 2")
    assert trace.messages[:2] == (
        Message("thought", "First write, then look."),
        Message("assistant", "I will write the file."),
    )
    assert [type(entry).__name__ for entry in trace.timeline][:3] == ["Message", "Message", "ToolCall"]


@pytest.mark.parametrize(
    ("name", "reason", "usage", "count"),
    [
        ("retries", "end_turn", Usage(2100, 52, 0.012050000000000002), 1),
        ("stopped-by-400", "api_error 400", Usage(1000, 40, 0.0061), 1),
        ("max-turns", "error_max_turns", Usage(30000, 1500, 0.1875), 3),
    ],
)
def test_claude_that_did_not_go_smoothly(name, reason, usage, count):
    trace = sample(f"{CLAUDE}-{name}")
    assert (trace.stop_reason, trace.usage, len(trace.tool_calls)) == (reason, usage, count)
    assert trace.not_understood == ()
    if name == "stopped-by-400":
        assert trace.messages[-1] == Message("system", "API Error: 400 keystone: budget of this cell is spent")


def test_claude_without_a_result_has_no_totals_and_says_so():
    lines = (SAMPLES / f"{CLAUDE}.jsonl").read_bytes().splitlines(keepends=True)
    trace = read_trace(io.BytesIO(b"".join(lines[:-1])), "claude", "the trace")
    assert trace.usage == Usage()
    assert len(trace.tool_calls) == 5
    assert trace.permissions is None
    assert "there is no result event" in trace.not_understood[0]
    assert "6,400 input tokens" in trace.not_understood[0]  # each message once, though two came as several events


def test_claude_totals_that_are_lower_than_its_messages_are_not_believed():
    trace = read(
        "claude",
        {"type": "assistant", "message": {"id": "a", "content": [], "usage": {"input_tokens": 1000}}},
        {"type": "assistant", "message": {"id": "b", "content": [], "usage": {"input_tokens": 1100}}},
        {"type": "result", "subtype": "success", "usage": {"input_tokens": 1100, "output_tokens": 7}},
    )
    assert trace.usage == Usage(2100, 7, None)
    assert "1,100" in trace.not_understood[0]


def test_claude_tells_denied_permissions():
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "rm -r /"}}
    trace = read(
        "claude",
        {"type": "assistant", "message": {"id": "a", "content": [use]}},
        {"type": "assistant", "message": {"id": "a", "content": [use]}},
        {"type": "result", "subtype": "success", "permission_denials": [{"tool_name": "Bash", "tool_use_id": "t1"}]},
    )
    assert trace.permissions == (Permission("t1", allowed=False),)
    assert calls(trace) == [("Bash", "execute", None)]  # the same event twice is one call


def test_claude_calls_that_share_an_id_are_calls_all_the_same():
    def use(command):
        block = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": command}}
        return {"type": "assistant", "message": {"id": command, "content": [block]}}

    assert len(read("claude", use("ls"), use("rm -r /")).tool_calls) == 2


def test_claude_content_of_results_and_of_users():
    use = {"type": "tool_use", "id": "1", "name": "mcp__a__b", "input": {}}
    blocks = [{"type": "text", "text": "one"}, {"type": "image"}]
    results = [
        {"type": "tool_result", "tool_use_id": "1", "content": blocks},
        {"type": "tool_result", "tool_use_id": "none", "content": "x"},
    ]
    trace = read(
        "claude",
        {"type": "user", "message": {"role": "user", "content": "do it"}},
        {"type": "assistant", "message": {"content": [use]}},
        {"type": "user", "message": {"content": results}},
        {"type": "assistant", "message": {"content": [{"type": "hologram"}]}},
    )
    assert trace.messages == (Message("user", "do it"),)
    assert trace.tool_calls[0].result == "one\n[image]"
    assert trace.tool_calls[0].kind == "other"
    assert "1 × result of a tool call that was not seen" in trace.not_understood
    assert "1 × content block of an unknown type: 'hologram'" in trace.not_understood


# Codex


def test_codex():
    trace = sample(CODEX)
    assert trace.usage == Usage(6400, 170, None)
    assert (trace.stop_reason, trace.final_output[:15]) == ("completed", "Fixed the typo.")
    assert calls(trace) == [("command_execution", "execute", "ok")] * 4 + [("command_execution", "execute", "error")]
    assert trace.tool_calls[1].arguments == {"command": "cat hello.txt"}
    assert trace.tool_calls[0].arguments["command"].startswith("cat > hello.txt <<'SCRIPTED_EOF'\n")
    assert trace.tool_calls[4].result.startswith("ls: cannot access")
    assert trace.messages[0] == Message(
        "system",
        "Model metadata for `gpt-5` not found. Defaulting to fallback metadata; this can degrade performance and "
        "cause issues.",
    )
    assert trace.messages[1] == Message("thought", "First write, then look.")
    assert (trace.not_understood, trace.problem, trace.permissions) == ((), "", None)


@pytest.mark.parametrize(("name", "count"), [("stopped-by-400", 1), ("refused-401", 0)])
def test_codex_that_failed(name, count):
    trace = sample(f"{CODEX}-{name}")
    assert (trace.stop_reason, trace.usage, len(trace.tool_calls)) == ("failed", Usage(), count)
    assert trace.problem == ""


def test_codex_other_items():
    change = {"id": "1", "type": "file_change", "changes": [{"path": "a.py", "kind": "add"}], "status": "completed"}
    search = {"id": "2", "type": "web_search"}
    remote = {"id": "3", "type": "mcp_tool_call", "server": "fs", "tool": "read_file", "arguments": {"path": "x"}}
    trace = read(
        "codex",
        {"type": "item.completed", "item": change},
        {"type": "item.started", "item": search},
        {"type": "item.completed", "item": {**search, "query": "weather"}},
        {"type": "item.started", "item": remote},
        {"type": "item.completed", "item": {**remote, "error": {"message": "no"}, "status": "failed"}},
        {"type": "item.completed", "item": {"id": "4", "type": "todo_list", "items": []}},
        {"type": "item.completed", "item": {"id": "5", "type": "dream"}},
        {"type": "item.started", "item": {"id": "6", "type": "command_execution", "command": "sleep 'unclosed"}},
    )
    assert calls(trace) == [
        ("file_change", "write", "ok"),
        ("web_search", "fetch", "ok"),
        ("fs.read_file", "read", "error"),
        ("command_execution", "execute", None),
    ]
    assert trace.tool_calls[1].arguments == {"query": "weather"}
    assert trace.tool_calls[2].name == "read_file"
    assert trace.tool_calls[3].arguments == {"command": "sleep 'unclosed"}
    assert len(trace.not_understood) == 1


def test_codex_ids_start_anew_with_each_thread():
    item = {"id": "item_0", "type": "command_execution", "command": "ls", "exit_code": 0, "status": "completed"}
    one = [
        {"type": "thread.started", "thread_id": "a"},
        {"type": "item.completed", "item": item},
        {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 1}},
    ]
    two = [{**event, "thread_id": "b"} for event in one]
    trace = read("codex", *one, *two)
    assert len(trace.tool_calls) == 2
    assert trace.usage == Usage(20, 2)


# Touchstone


def test_touchstone_usage_is_cumulative_and_the_latest_holds():
    trace = read(
        "touchstone",
        event("message", role="user", text="do it"),
        event("thought", text="hm"),
        event("tool_call", tool_call_id="1", raw_name="fs/edit", name="edit", kind="write", input={"path": "a"}),
        event("usage", input_tokens=10, output_tokens=1, cost_usd=0.5, context_used=3),
        event("permission_request", request_id="r", tool_call_id="1", options=["allow", "deny"]),
        event("permission_response", request_id="r", outcome="allow", chosen_option="allow"),
        event("tool_result", tool_call_id="1", status="ok", output="done", locations=[]),
        event("tool_call", tool_call_id="2", raw_name="run", name="bash", kind="?", input='{"command": "ls"}'),
        event("permission_request", request_id="s", tool_call_id="2", options=[]),
        event("permission_response", request_id="s", outcome="deny", reason="no"),
        event("permission_request", request_id="t", tool_call_id="2", options=[]),
        event("tool_result", tool_call_id="2", status="denied", output="no"),
        event("usage", input_tokens=30, output_tokens=4),
        event("stop", reason="end_turn", final_output="bye"),
    )
    assert trace.usage == Usage(30, 4, 0.5)
    assert trace.permissions == (Permission("1", True), Permission("2", False), Permission("2", None))
    assert [(call.name, call.kind, call.status, call.arguments) for call in trace.tool_calls] == [
        ("edit", "write", "ok", {"path": "a"}),
        ("bash", "execute", "error", {"command": "ls"}),
    ]
    assert (trace.stop_reason, trace.final_output, trace.not_understood) == ("end_turn", "bye", ())


# Keystone


def test_keystone_spans_are_one_call_and_costs_are_summed():
    cost = {"input_tokens": 100, "output_tokens": 10, "estimated_usd": 0.25, "cache_read_tokens": 7}
    trace = read(
        "keystone",
        span("llm_call", "l1", phase="start", input="prompt"),
        span("llm_call", "l1", phase="end", cost=cost, output="I will look."),
        span("tool_call", "t1", tool="read_file", phase="start", input={"path": "a"}),
        span("tool_call", "t1", tool="read_file", phase="end", status="ok", output="text"),
        span("llm_call", "l2", phase="end", cost={**cost, "input_tokens": 1}),
        span("llm_call", "l2", phase="complete", cost=cost, output="Done."),
        span("tool_use", tool="bash", phase="invoked", input='{"command": "a"}'),
        span("tool_use", tool="bash", phase="invoked", input='{"command": "b"}'),
        span("tool_use", tool="bash", phase="complete", status="error", output="no"),
        span("tool_use", tool="grep", status="ok"),
        span("tool_call", "t1", tool="bash", phase="start"),
        span("eval", expected="x"),
    )
    assert trace.usage == Usage(200, 20, 0.5)
    assert calls(trace) == [
        ("read_file", "read", "ok"),
        ("bash", "execute", "error"),
        ("bash", "execute", None),
        ("grep", "search", "ok"),
        ("bash", "execute", None),  # another tool in a span of that id hides nothing
    ]
    assert trace.tool_calls[0].arguments == {"path": "a"}
    assert trace.tool_calls[1].arguments == {"command": "a"}
    assert trace.final_output == "Done."


# OpenTelemetry


def attribute(name, value):
    key = {str: "stringValue", int: "intValue"}[type(value)]
    return {"key": name, "value": {key: str(value)}}


def otlp(span_id, began, status=None, **attributes):
    named = [attribute("gen_ai." + name.replace("__", "."), value) for name, value in attributes.items()]
    return {"traceId": "t", "spanId": span_id, "startTimeUnixNano": began, "attributes": named, "status": status or {}}


def test_otel_spans_are_put_in_order_and_agents_not_counted_twice():
    spans = [
        otlp(
            "3", "30", {"code": 2}, operation__name="execute_tool", tool__name="bash", tool__call__arguments='{"a": 1}'
        ),
        otlp("2", "20", operation__name="chat", usage__input_tokens=100, usage__output_tokens=10),
        otlp("1", "9", operation__name="execute_tool", tool__name="read_file", tool__call__result="text"),
        otlp("4", "40", operation__name="chat", usage__prompt_tokens=50, usage__completion_tokens=5),
        otlp("0", "1", operation__name="invoke_agent", usage__input_tokens=150, usage__output_tokens=15),
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    trace = read("otel", document, document)
    assert trace.usage == Usage(150, 15)
    assert calls(trace) == [("read_file", "read", "ok"), ("bash", "execute", "error")]
    assert trace.tool_calls[1].arguments == {"a": 1}
    assert read_trace(io.BytesIO(json.dumps(document, indent=2).encode()), "otel", "the trace") == trace


def test_otel_spans_as_sdks_print_them():
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash", "error.type": "timeout"}
    printed = {"name": "execute_tool bash", "context": {"span_id": "0x1"}, "attributes": attributes}
    assert calls(read("otel", printed)) == [("bash", "execute", "error")]


def test_otel_without_generative_ai_is_no_trace():
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "1", "name": "GET /", "attributes": []}]}]}]}
    assert "gen_ai" in read("otel", document).problem


# Kinds of tools


@pytest.mark.parametrize(
    ("name", "told", "kind"),
    [
        ("Read", None, "read"),
        ("write_file", None, "write"),
        ("MultiEdit", None, "write"),
        ("bash", None, "execute"),
        ("run_shell_command", None, "execute"),
        ("Grep", None, "search"),
        ("WebFetch", None, "fetch"),
        ("google_web_search", None, "fetch"),
        ("mcp__db__query", None, "other"),
        ("anything", "edit", "write"),
        ("anything", "delete", "write"),
        ("Bash", "read", "read"),
        ("Bash", "no such kind", "execute"),
        ("anything", 7, "other"),
        ("", None, "other"),
    ],
)
def test_kinds_of_tools(name, told, kind):
    assert tool_kind(name, told) == kind
