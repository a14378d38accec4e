"""What the APIs say, as streams, in one piece, cut off, and as nobody expects it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_streams import CALL, STREAMS, anthropic_events, chat_events, gemini_events, read, responses_events

from keystone_action.gateway.answer_copy import EventStream
from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, ToolResult
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

SAMPLES = Path(__file__).parents[1] / "data" / "gateway"
ALL = (Anthropic(), OpenAiResponses(), OpenAiChat(), Gemini())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
BY_NAME = pytest.mark.parametrize(
    ("provider", "events", "tokens", "model", "stop"), STREAMS, ids=[one[0].title for one in STREAMS]
)


@BY_NAME
def test_a_stream_is_read(provider, events, tokens, model, stop):
    assert read(provider, events) == Answer(model, "I write", "hm", (CALL,), tokens, stop, finished=True)


@BY_NAME
def test_a_cut_stream_has_what_came_and_is_not_finished(provider, events, tokens, model, stop):
    whole = read(provider, events)
    for end in range(len(events) - 1):
        cut = read(provider, events[:end])
        assert whole.text.startswith(cut.text), end
        assert not cut.finished or isinstance(provider, OpenAiChat), end  # its usage comes after its end
        for call in cut.calls:
            assert call.arguments in ({"path": "a.txt"}, None, {}), end


def test_a_call_whose_arguments_did_not_arrive_whole_does_not_count():
    cut = [read(Anthropic(), anthropic_events()[:end]) for end in (11, 12, 13)]
    assert [answer.calls for answer in cut] == [(), (CALL,), (CALL,)]
    assert [answer.unread for answer in cut] == [8, 0, 0]
    assert [answer.has_partial_call for answer in cut] == [True, False, False]
    cut = [read(OpenAiChat(), chat_events()[:end]) for end in (5, 6)]
    assert [answer.calls for answer in cut] == [(), (CALL,)]
    assert [answer.unread for answer in cut] == [8, 0]


def test_arguments_that_are_not_an_object_are_none():
    ends = piece_of_chat({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "write", "arguments": "[1"}}]})
    assert read(OpenAiChat(), [ends]).calls == (ModelCall("c", "write", None),)


def piece_of_chat(delta: dict[str, Any]) -> dict[str, Any]:
    return {"model": "gpt", "choices": [{"index": 0, "delta": delta, "finish_reason": "length"}]}


WHOLE = {
    "anthropic": {
        "type": "message",
        "model": "opus",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "I write"},
            {"type": "tool_use", "id": "call_1", "name": "write", "input": {"path": "a.txt"}},
        ],
        "stop_reason": "tool_use",
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 3,
            "output_tokens": 60,
        },
    },
    "responses": responses_events()[-1]["response"],
    "chat": {
        "model": "gpt",
        "choices": [
            {
                "index": 0,
                "message": {
                    "content": "I write",
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "call_1", "function": {"name": "write", "arguments": '{"path": "a.txt"}'}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": chat_events()[-1]["usage"],
    },
    "gemini": gemini_events(),
}


@pytest.mark.parametrize(("streamed", "whole"), [*zip(STREAMS, WHOLE.values(), strict=True)], ids=[*WHOLE])
def test_an_answer_in_one_piece_says_what_its_stream_says(streamed, whole):
    provider, events, *_ = streamed
    assert provider.whole(whole) == read(provider, events)


ERRORS = [
    (Anthropic(), {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    (OpenAiResponses(), {"type": "error", "message": "Overloaded"}),
    (OpenAiResponses(), {"type": "response.failed", "response": {"error": {"message": "Overloaded"}}}),
    (OpenAiChat(), {"error": {"message": "Overloaded"}}),
    (OpenAiChat(), {"error": "Overloaded"}),
    (Gemini(), {"error": {"code": 503, "message": "Overloaded"}}),
]


@pytest.mark.parametrize(("provider", "error"), ERRORS)
def test_an_error_in_the_stream_is_its_problem(provider, error):
    (events,) = [events for one, events, *_ in STREAMS if one.title == provider.title]
    answer = read(provider, [*events[:-1], error])
    assert answer.problem == "Overloaded"
    assert not answer.finished


ASKED = [
    (
        Anthropic(),
        {
            "model": "opus",
            "stream": True,
            "tools": [{"name": "write"}, {"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305"}],
            "mcp_servers": [{"url": "https://example.com"}],
            "messages": [
                {"role": "user", "content": "do it"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "write", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "done"}]},
                        {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True},
                    ],
                },
            ],
        },
        "/v1/messages",
        Asked(
            "opus",
            streams=True,
            tools=("write", "bash", "web_search_20250305"),
            run_by_provider=("web_search_20250305", "mcp_servers"),
            results=(ToolResult("call_1", "done", "ok"), ToolResult("call_2", "no", "error")),
            conversation=3,
        ),
    ),
    (
        OpenAiResponses(),
        {
            "model": "gpt",
            "background": True,
            "tools": [
                {"type": "function", "name": "write"},
                {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
                {"type": "web_search"},
            ],
            "input": [
                {"type": "message", "role": "user", "content": "do it"},
                {"type": "additional_tools", "tools": [{"type": "custom", "name": "exec"}]},
                {"type": "function_call_output", "call_id": "call_1", "output": "done"},
                {"type": "custom_tool_call_output", "call_id": "call_2", "output": "no"},
            ],
        },
        "/v1/responses",
        Asked(
            "gpt",
            background=True,
            tools=("write", "web_search", "exec", "read"),
            run_by_provider=("web_search",),
            results=(ToolResult("call_1", "done"), ToolResult("call_2", "no")),
            conversation=4,
        ),
    ),
    (
        OpenAiChat(),
        {
            "model": "gpt",
            "tools": [{"type": "function", "function": {"name": "bash"}}],
            "messages": [
                {"role": "user", "content": "do it"},
                {"role": "tool", "tool_call_id": "c", "content": "done"},
            ],
        },
        "/v1/chat/completions",
        Asked("gpt", tools=("bash",), results=(ToolResult("c", "done"),), conversation=2),
    ),
    (
        Gemini(),
        {
            "tools": [{"functionDeclarations": [{"name": "write"}]}, {"googleSearch": {}}],
            "contents": [
                {"role": "user", "parts": [{"text": "do it"}]},
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"id": "c", "name": "write", "response": {"output": "done"}}},
                        {"functionResponse": {"name": "write", "response": {"error": "no"}}},
                    ],
                },
            ],
        },
        "/v1beta/models/gem:streamGenerateContent",
        Asked(
            "gem",
            streams=True,
            tools=("write",),
            run_by_provider=("googleSearch",),
            results=(ToolResult("c", "done", None, "write"), ToolResult("", '{"error": "no"}', "error", "write")),
            conversation=2,
        ),
    ),
]


@pytest.mark.parametrize(("provider", "body", "path", "asked"), ASKED, ids=[one[0].title for one in ASKED])
def test_a_request_is_read(provider, body, path, asked):
    assert provider.asked(body, path) == asked


NAMES = st.sampled_from(
    [
        "type",
        "message",
        "content",
        "delta",
        "index",
        "content_block",
        "usage",
        "model",
        "response",
        "item",
        "output",
        "choices",
        "tool_calls",
        "function",
        "candidates",
        "parts",
        "functionCall",
        "args",
        "error",
        "messages",
        "input",
        "tools",
        "contents",
        "functionResponse",
        "summary",
    ]
)
HOSTILE = st.recursive(
    JSON, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)
KINDS = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "error",
        "response.output_item.done",
        "response.completed",
        "response.failed",
        "response.created",
        "tool_use",
        "text",
    ]
)


@pytest.mark.parametrize("provider", ALL, ids=[one.title for one in ALL])
@given(data=st.data())
def test_nothing_that_comes_raises(provider, data):
    events = data.draw(st.lists(st.dictionaries(NAMES, HOSTILE | KINDS, max_size=5), max_size=4))
    read(provider, events)
    provider.whole(data.draw(HOSTILE))
    provider.asked(data.draw(st.dictionaries(NAMES, HOSTILE, max_size=4)), data.draw(st.text(max_size=20)))


@pytest.mark.parametrize("provider", ALL, ids=[one.title for one in ALL])
def test_a_refusal_is_read_as_an_error_of_that_api(provider):
    refused = provider.refusal(400, "stopped at $0.52 of $0.50")
    assert provider.whole(json.loads(json.dumps(refused))).problem == "stopped at $0.52 of $0.50"


def test_the_scripted_streams_of_each_api():
    found = {}
    for provider, name in zip(ALL, ("anthropic-messages", "openai-responses", "openai-chat"), strict=False):
        reader = provider.reader()
        for event in EventStream().feed((SAMPLES / f"{name}.sse").read_bytes()):
            if (data := event.json()) is not None:
                reader.event(data)
        found[provider.title] = reader.answer()
    assert {answer.text for answer in found.values()} == {"I will write the file."}
    assert all(len(answer.calls) == 1 and answer.calls[0].arguments for answer in found.values())
    assert all(answer.finished for answer in found.values())
