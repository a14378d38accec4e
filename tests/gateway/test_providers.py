"""What the APIs say, as streams, in one piece, cut off, and as nobody expects it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gateway.event_stream import EventStream
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, Provider, Tokens, ToolResult
from keystone_action.gateway.providers.anthropic import Anthropic
from keystone_action.gateway.providers.gemini import Gemini
from keystone_action.gateway.providers.openai_chat import OpenAiChat
from keystone_action.gateway.providers.openai_responses import OpenAiResponses

SAMPLES = Path(__file__).parents[1] / "data" / "gateway"
ALL = (Anthropic(), OpenAiResponses(), OpenAiChat(), Gemini())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
CALL = ModelCall("call_1", "write", {"path": "a.txt"})


def anthropic_events() -> list[dict[str, Any]]:
    usage = {"input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1}
    return [
        {"type": "message_start", "message": {"model": "opus", "usage": usage}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "write"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "call_1", "name": "write", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"path":'}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"a.txt"}'}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 60}},
        {"type": "message_stop"},
    ]


def responses_events() -> list[dict[str, Any]]:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "I write"}]},
        {"type": "function_call", "call_id": "call_1", "name": "write", "arguments": '{"path": "a.txt"}'},
    ]
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 60}
    return [
        {"type": "response.created", "response": {"model": "gpt", "status": "in_progress", "usage": None}},
        {"type": "response.output_item.done", "item": items[0]},
        {"type": "response.output_text.delta", "delta": "I write"},
        *({"type": "response.output_item.done", "item": item} for item in items[1:]),
        {
            "type": "response.completed",
            "response": {"model": "gpt", "status": "completed", "output": items, "usage": usage},
        },
    ]


def chat_events() -> list[dict[str, Any]]:
    def piece(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": "gpt", "choices": [{"index": 0, "delta": delta, **more}]}

    def call(arguments: str, **more: Any) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
        return piece({"tool_calls": [{"index": 0, "function": function, **more}]})

    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens": 60}
    return [
        piece({"role": "assistant", "content": "", "reasoning_content": "hm"}),
        piece({"content": "I "}),
        piece({"content": "write"}),
        call("", id="call_1", name="write"),
        call('{"path":'),
        call('"a.txt"}'),
        piece({}, finish_reason="tool_calls"),
        {"model": "gpt", "choices": [], "usage": usage},
    ]


def gemini_events() -> list[dict[str, Any]]:
    def piece(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        usage = {"promptTokenCount": 10, "cachedContentTokenCount": 3}
        return {
            "modelVersion": "gem",
            "candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}],
            "usageMetadata": usage,
        }

    last = piece({"functionCall": {"id": "call_1", "name": "write", "args": {"path": "a.txt"}}}, finishReason="STOP")
    last["usageMetadata"] |= {"candidatesTokenCount": 50, "thoughtsTokenCount": 10}
    return [piece({"text": "hm", "thought": True}), piece({"text": "I "}), piece({"text": "write"}), last]


STREAMS: list[tuple[Provider, list[dict[str, Any]], Tokens, str, str]] = [
    (Anthropic(), anthropic_events(), Tokens(7, 3, 5, 60), "opus", "tool_use"),
    (OpenAiResponses(), responses_events(), Tokens(7, 3, None, 60), "gpt", "completed"),
    (OpenAiChat(), chat_events(), Tokens(7, 3, None, 60), "gpt", "tool_calls"),
    (Gemini(), gemini_events(), Tokens(7, 3, None, 60), "gem", "STOP"),
]
BY_NAME = pytest.mark.parametrize(
    ("provider", "events", "tokens", "model", "stop"), STREAMS, ids=[one[0].title for one in STREAMS]
)


def read(provider: Provider, events: list[Any]) -> Answer:
    reader = provider.reader()
    for event in events:
        reader.event(event)
    return reader.answer()


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


def test_arguments_that_did_not_arrive_whole_are_none():
    calls = [read(Anthropic(), anthropic_events()[:end]).calls for end in (11, 12, 13)]
    assert [call.arguments for (call,) in calls] == [None, None, {"path": "a.txt"}]
    (call,) = read(OpenAiChat(), chat_events()[:5]).calls
    assert call == ModelCall("call_1", "write", None)


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
