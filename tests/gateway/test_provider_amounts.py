"""What answers cost: tools that the provider ran, tokens of each kind, and what is paid besides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.api_streams import read

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import ModelCall, Tokens
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses
from keystone_action.pricing import Extras


def run_by_provider(call: str, name: str, arguments: dict[str, Any] | None) -> ModelCall:
    return ModelCall(call, name, arguments, by_provider=True)


SEARCH = {"type": "search", "query": "a cat"}
OF_PROVIDERS: list[tuple[ModelApi, dict[str, Any], list[ModelCall]]] = [
    (
        Anthropic(),
        {
            "type": "message",
            "content": [
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a cat"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                {"type": "mcp_tool_use", "id": "m1", "name": "read", "server_name": "files", "input": {"path": "a"}},
                {"type": "text", "text": "a cat"},
            ],
            "stop_reason": "end_turn",
        },
        [run_by_provider("s1", "web_search", {"query": "a cat"}), run_by_provider("m1", "mcp:read", {"path": "a"})],
    ),
    (
        OpenAiResponses(),
        {
            "status": "completed",
            "output": [
                {"type": "web_search_call", "id": "w1", "action": SEARCH},
                {"type": "file_search_call", "id": "f1", "queries": ["a cat"], "results": None},
                {"type": "code_interpreter_call", "id": "c1", "code": "1 + 1", "outputs": [{"logs": "2"}]},
                {"type": "image_generation_call", "id": "i1", "result": "aGk=", "revised_prompt": "a cat"},
                {"type": "mcp_call", "id": "m1", "name": "read", "arguments": '{"path": "a"}', "output": "hi"},
                {"type": "call_of_tomorrow_call", "id": "t1"},
                {"type": "mcp_list_tools", "id": "l1", "tools": []},
                {"type": "message", "content": [{"type": "output_text", "text": "a cat"}]},
            ],
        },
        [
            run_by_provider("w1", "web_search", SEARCH),
            run_by_provider("f1", "file_search", {"queries": ["a cat"]}),
            run_by_provider("c1", "code_interpreter", {"code": "1 + 1"}),
            run_by_provider("i1", "image_generation", {"revised_prompt": "a cat"}),
            run_by_provider("m1", "mcp:read", {"path": "a"}),
            run_by_provider("t1", "call_of_tomorrow", {}),
        ],
    ),
    (
        Gemini(),
        {
            "candidates": [
                {
                    "content": {"parts": [{"executableCode": {"language": "PYTHON", "code": "1"}}, {"text": "a cat"}]},
                    "groundingMetadata": {"webSearchQueries": ["a cat", "a cat", 1]},
                    "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://example.com"}, None]},
                    "finishReason": "STOP",
                }
            ]
        },
        [
            run_by_provider("", "web_search", {"query": "a cat"}),
            run_by_provider("", "web_fetch", {"url": "https://example.com"}),
            run_by_provider("", "code_execution", {"language": "PYTHON", "code": "1"}),
        ],
    ),
]


def streamed(provider: ModelApi, body: dict[str, Any]) -> list[dict[str, Any]]:
    """An answer in one piece, as its API streams it."""
    if isinstance(provider, Gemini):
        return [body, body]  # it tells its searches again
    if isinstance(provider, OpenAiResponses):
        return [{"type": "response.output_item.done", "item": item} for item in body["output"]]
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {}}]
    for index, block in enumerate(body["content"]):
        asked = {"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}
        events.append({"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}})
        events += [{"type": "content_block_delta", "index": index, "delta": asked}] * ("input" in block)
        events.append({"type": "content_block_stop", "index": index})
    return events


@pytest.mark.parametrize(("provider", "body", "calls"), OF_PROVIDERS, ids=[one[0].title for one in OF_PROVIDERS])
def test_tools_that_the_provider_ran_are_calls(provider, body, calls):
    assert list(provider.whole(body).calls) == calls
    assert provider.whole(body).text == "a cat"
    found = list(read(provider, streamed(provider, body)).calls)
    assert found == (calls if not isinstance(provider, Gemini) else [*calls, calls[-1]])


EXTRAS: list[tuple[ModelApi, dict[str, Any], Extras]] = [
    (
        Anthropic(),
        {
            "type": "message",
            "usage": {
                "cache_creation": {"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 1},
                "server_tool_use": {"web_search_requests": 3},
                "service_tier": "priority",  # paid for in advance
                "speed": "fast",
            },
        },
        Extras(speed="fast", hour_writes=7, searches=3),
    ),
    (Anthropic(), {"type": "message", "usage": {"cache_creation": 1, "server_tool_use": []}}, Extras()),
    (OpenAiResponses(), {"service_tier": "priority", "output": []}, Extras(tier="priority")),
    (OpenAiResponses(), {"output": [{"type": "web_search_call"}] * 2}, Extras(searches=2)),
    (OpenAiResponses(), {"output": [{"type": "code_interpreter_call"}]}, Extras(has_others=True)),
    (OpenAiChat(), {"service_tier": "flex", "choices": []}, Extras(tier="flex")),
    (OpenAiChat(), {"choices": [{"message": {"annotations": [{"type": "url_citation"}] * 2}}]}, Extras(searches=1)),
    (OpenAiChat(), {"choices": [{"message": {"annotations": [{"type": "file"}, 1]}}]}, Extras()),
    (Gemini(), {"candidates": [{"groundingMetadata": {"webSearchQueries": ["a", "b", "a"]}}]}, Extras(searches=2)),
]


@pytest.mark.parametrize(("provider", "body", "extras"), EXTRAS)
def test_what_costs_besides_tokens_is_told(provider, body, extras):
    assert provider.whole(body).extras == extras


USAGES: list[tuple[ModelApi, dict[str, Any], Tokens]] = [
    (
        OpenAiResponses(),
        {"usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4}}},
        Tokens(3, 3, 4, None),
    ),
    (
        OpenAiResponses(),
        {"usage": {"input_tokens": 10, "output_tokens": 6, "total_tokens": 16}},
        Tokens(10, None, None, 6),
    ),
    (
        OpenAiChat(),
        {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 20}, "completion_tokens": 1}},
        Tokens(0, 20, None, 1),
    ),
    (  # reasoning stands in the total alone
        OpenAiChat(),
        {"usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 61}},
        Tokens(10, None, None, 51),
    ),
    (
        Gemini(),
        {"usageMetadata": {"promptTokenCount": 10, "toolUsePromptTokenCount": 4, "thoughtsTokenCount": 7}},
        Tokens(14, None, None, 7),
    ),
    (Anthropic(), {"usage": {"input_tokens": -1, "output_tokens": True}}, Tokens()),
]


@pytest.mark.parametrize(("provider", "body", "tokens"), USAGES)
def test_counts_are_taken_apart(provider, body, tokens):
    body = body if isinstance(provider, Gemini) else {**body, "output": []}
    assert provider.whole(body).tokens == tokens
