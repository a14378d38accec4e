"""Answers in one piece, with all kinds of things that an API may say, and how they come through a stream."""

from __future__ import annotations

from typing import Any

from keystone_action.gateway.answer_copy import EventStream
from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi, Rendered
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

LONG = "Zeile – 行\n\u2028\\n\"'" * 700
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-8",
    "content": [
        {"type": "thinking", "thinking": LONG, "signature": "c2lnbmVk"},
        {"type": "thinking", "thinking": "", "signature": "b25seQ=="},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "text", "text": LONG},
        {
            "type": "text",
            "text": "cited",
            "citations": [
                {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None,
                 "start_char_index": 0, "end_char_index": 1, "file_id": None},
                {"type": "web_search_result_location", "cited_text": "b", "encrypted_index": "eA==", "title": "t",
                 "url": "https://example.com"},
            ],
        },
        {"type": "text", "text": "not cited", "citations": None},
        {"type": "text", "text": ""},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a cat"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "t", "url": "https://example.com", "page_age": None,
                         "encrypted_content": "eA=="}],
        },
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "read", "server_name": "files", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False,
         "content": [{"type": "text", "text": "hi"}]},
        {"type": "compaction", "content": "what was said", "encrypted_content": None},
        {"type": "block_of_tomorrow", "text": "kept", "inner": [{"a": 1}]},
        {"type": "tool_use", "id": "toolu_1", "name": "Write", "caller": {"type": "direct"},
         "input": {"file_path": "/w/é.txt", "content": LONG, "n": 1.5, "deep": [{"a": [None, True]}]}},
        {"type": "tool_use", "id": "toolu_2", "name": "Now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "stop_details": None,
    "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"},
    "context_management": {"applied_edits": []},
    "usage": {
        "input_tokens": 7,
        "cache_creation_input_tokens": 5,
        "cache_read_input_tokens": 3,
        "cache_creation": {"ephemeral_1h_input_tokens": 5, "ephemeral_5m_input_tokens": 0},
        "output_tokens": 60,
        "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
        "service_tier": "standard",
        "inference_geo": None,
        "speed": "fast",
    },
    "field_of_tomorrow": {"a": 1},
}  # fmt: skip

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1795307363,
    "completed_at": 1795307370,
    "status": "completed",
    "model": "gpt-5",
    "service_tier": "priority",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1.0,
    "top_p": 1.0,
    "output": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": LONG}, {"type": "summary_text", "text": "second"}],
            "encrypted_content": "gAAAAA",
        },
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": None,
         "content": [{"type": "reasoning_text", "text": "open thought"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {
                    "type": "output_text",
                    "text": LONG,
                    "logprobs": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}],
                    "annotations": [{"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t",
                                     "url": "https://example.com"}],
                },
                {"type": "refusal", "refusal": "I can't."},
                {"type": "part_of_tomorrow", "value": [1]},
            ],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed",
         "action": {"type": "search", "query": "a cat"}},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a"], "results": None},
        {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1 + 1", "container_id": "c",
         "outputs": None},
        {"type": "mcp_call", "id": "mcp_1", "name": "read", "server_label": "files", "arguments": '{"path": "a"}',
         "output": "hi", "error": None, "status": "completed"},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "files", "tools": []},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "call_3", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "item_of_tomorrow", "id": "x_1", "value": {"a": 1}},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "status": "completed",
         "arguments": '{"cmd": "ls"}'},
        {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "now", "status": "completed",
         "arguments": ""},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_4", "name": "apply_patch", "status": "completed",
         "input": LONG},
    ],
    "usage": {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 60,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 70,
    },
    "field_of_tomorrow": [1],
}  # fmt: skip

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1795307363,
    "model": "gpt-5",
    "service_tier": "flex",
    "system_fingerprint": "fp_1",
    "citations": ["https://example.com"],
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": LONG,
                "refusal": None,
                "reasoning_content": LONG,
                "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}],
                "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.com", "title": "t",
                                                                          "start_index": 0, "end_index": 1}}],
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                     "extra_content": {"google": {"thought_signature": "c2ln"}}},
                    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}},
                    {"id": "call_3", "type": "custom", "custom": {"name": "apply_patch", "input": LONG}},
                ],
                "field_of_tomorrow": {"a": "b"},
            },
            "logprobs": {"content": [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}] * 2,
                         "refusal": None},
            "finish_reason": "tool_calls",
            "native_finish_reason": "tool_use",
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": None, "refusal": "I can't."},
            "logprobs": None,
            "finish_reason": "tool_calls",
        },
    ],
    "usage": {
        "prompt_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens": 60,
        "completion_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 70,
    },
}  # fmt: skip

GENERATION: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": LONG, "thought": True},
                    {"text": LONG},
                    {"text": "signed", "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "call_1", "name": "write_file", "args": {"path": "é", "content": LONG}},
                     "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "now", "args": {}}},
                    {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
                    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
                    {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                    {"partOfTomorrow": {"a": 1}},
                    {"text": "after"},
                    {"text": "", "thoughtSignature": "bGFzdA=="},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
            "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "NEGLIGIBLE"}],
            "avgLogprobs": -0.25,
            "logprobsResult": {"chosenCandidates": [{"token": "a", "tokenId": 1, "logProbability": -0.5}] * 2},
            "groundingMetadata": {
                "webSearchQueries": ["a cat"],
                "groundingChunks": [{"web": {"uri": "https://example.com", "title": "t"}}],
                "groundingSupports": [{"segment": {"endIndex": 1, "text": "a"}, "groundingChunkIndices": [0]}],
                "searchEntryPoint": {"renderedContent": "<div>"},
            },
            "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://example.com",
                                                    "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}]},
            "citationMetadata": {"citationSources": [{"startIndex": 0, "endIndex": 1}]},
        }
    ],
    "usageMetadata": {"promptTokenCount": 10, "cachedContentTokenCount": 3, "candidatesTokenCount": 50,
                      "thoughtsTokenCount": 10, "totalTokenCount": 70, "serviceTier": "PRIORITY"},
    "modelVersion": "gemini-3-pro",
    "responseId": "r1",
    "createTime": "2026-01-01T00:00:00Z",
}  # fmt: skip

ANSWERS: list[tuple[ModelApi, dict[str, Any]]] = [
    (Anthropic(), MESSAGE),
    (Anthropic(), {**MESSAGE, "content": [], "stop_reason": "refusal"}),
    (OpenAiResponses(), RESPONSE),
    (
        OpenAiResponses(),
        {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []},
    ),
    (OpenAiChat(), COMPLETION),
    (OpenAiChat(), {**COMPLETION, "choices": [{**COMPLETION["choices"][1], "index": 0}]}),
    (Gemini(), GENERATION),
    (Gemini(), {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 1}}),
    (Gemini(), {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}], "modelVersion": "gem"}),
]
IDS = [f"{provider.title} {number}" for number, (provider, _) in enumerate(ANSWERS)]


def events_of(content: bytes) -> list[Any]:
    """What a stream has, as its readers take it."""
    return [data for event in EventStream().feed(content) if (data := event.json()) is not None]


def streamed(provider: ModelApi, document: Any, body: Any = None) -> Rendered:
    """An answer as a stream."""
    path = "/v1beta/models/gem:streamGenerateContent"
    return provider.rendered(document, body=STREAMED if body is None else body, path=path, query="alt=sse")


def rendered_events(provider: ModelApi, document: Any) -> list[Any]:
    """An answer's events."""
    return events_of(b"".join(streamed(provider, document).pieces))


def assembled(provider: ModelApi, events: list[Any]) -> dict[str, Any]:
    """What these events are in one piece."""
    reader = provider.reader()
    reader.keeps_document = True
    for event in events:
        reader.event(event)
    return reader.document()
