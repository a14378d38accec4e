"""The same answer as a stream of each API: a thought, a text, a call of a tool, and what it cost."""

from __future__ import annotations

from typing import Any

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import Answer, ModelCall, Tokens
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

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


STREAMS: list[tuple[ModelApi, list[dict[str, Any]], Tokens, str, str]] = [
    (Anthropic(), anthropic_events(), Tokens(7, 3, 5, 60), "opus", "tool_use"),
    (OpenAiResponses(), responses_events(), Tokens(7, 3, None, 60), "gpt", "completed"),
    (OpenAiChat(), chat_events(), Tokens(7, 3, None, 60), "gpt", "tool_calls"),
    (Gemini(), gemini_events(), Tokens(7, 3, None, 60), "gem", "STOP"),
]


def read(provider: ModelApi, events: list[Any]) -> Answer:
    """What has come after these events."""
    reader = provider.reader()
    for event in events:
        reader.event(event)
    return reader.answer()
