"""Streams that are put together though they go their own way, and how what was cut or failed is kept."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_answers import COMPLETION, GENERATION, MESSAGE, RESPONSE, assembled, rendered_events
from support.api_streams import read

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

ALL = (Anthropic(), OpenAiResponses(), OpenAiChat(), Gemini())


@pytest.mark.parametrize("said", ['{"path": "a', "[1]", '"a"', "1"])
def test_input_that_is_no_object_stays_what_it_was(said):
    block = {"type": "tool_use", "id": "t", "name": "write", "input": {}}
    document = {**MESSAGE, "content": [block], "stop_reason": "max_tokens"}
    events = rendered_events(Anthropic(), document)
    events[2:2] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
        for piece in said
    ]
    del events[2 + len(said)]  # the one that says {}
    kept = assembled(Anthropic(), events)
    assert Anthropic().whole(kept) == read(Anthropic(), events)
    assert Anthropic().whole(kept).calls[0].arguments is None
    told = rendered_events(Anthropic(), kept)
    sent = [event["delta"]["partial_json"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(sent) == said


def test_blocks_that_come_interleaved_stay_in_order():
    events = rendered_events(Anthropic(), MESSAGE)
    by_block = sorted(events, key=lambda event: ["message_start", "content_block_start", "content_block_delta",
                                                 "content_block_stop", "message_delta", "message_stop"]
                      .index(event["type"]))  # fmt: skip
    assert assembled(Anthropic(), by_block) == MESSAGE


def test_an_error_in_the_middle_of_a_message_is_its_end():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for events in ([error], [*rendered_events(Anthropic(), MESSAGE)[:-2], error]):
        kept = assembled(Anthropic(), events)
        assert Anthropic().whole(kept).problem == "Overloaded"
        assert read(Anthropic(), rendered_events(Anthropic(), kept)).problem == "Overloaded"


def test_a_response_whose_last_event_has_no_items_has_those_that_came():
    events = rendered_events(OpenAiResponses(), RESPONSE)
    for output in ({"output": []}, {"output": None}):
        last = {**events[-1], "response": {**RESPONSE, **output}}
        assert assembled(OpenAiResponses(), [*events[:-1], last]) == RESPONSE


def test_a_tool_of_an_mcp_server_is_not_taken_for_one_of_the_client_s_own() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": '{"path": "a"}'}
    for kind in ("function_call", "custom_tool_call"):
        items = [{**call, "type": kind, "input": "a"}, {**call, "type": kind, "input": "a", "namespace": "mcp__shop"}]
        names = [one.name for one in OpenAiResponses().whole({**RESPONSE, "output": items}).calls]
        assert names == ["view_image", "mcp__shop__view_image"]


@pytest.mark.parametrize("error", [{"message": "Overloaded", "code": "x"}, {"error": {"message": "Overloaded"}}])
def test_an_error_in_the_middle_of_a_response_is_its_end(error):
    event = {"type": "error", **error}
    for events in ([event], [*rendered_events(OpenAiResponses(), RESPONSE)[:-1], event]):
        kept = assembled(OpenAiResponses(), events)
        assert OpenAiResponses().whole(kept).problem == "Overloaded"
        assert read(OpenAiResponses(), rendered_events(OpenAiResponses(), kept)).problem == "Overloaded"


@pytest.mark.parametrize("status", ["failed", "cancelled", "of_tomorrow", None])
def test_a_response_of_any_status_has_an_end(status):
    document = {**RESPONSE, "status": status, "error": {"code": "server_error", "message": "Overloaded"}}
    events = rendered_events(OpenAiResponses(), document)
    assert events[-1]["response"] == document
    assert read(OpenAiResponses(), events) == OpenAiResponses().whole(document)


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **more}]}


def test_parts_and_then_plain_text_are_parts():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [thought]}),
        chunk({"content": "I "}),
        chunk({"content": "write"}, finish_reason="stop"),
    ]
    kept = assembled(OpenAiChat(), events)
    said = [{"type": "text", "text": "I "}, {"type": "text", "text": "write"}]
    assert kept["choices"][0]["message"]["content"] == [thought, *said]
    told = rendered_events(OpenAiChat(), kept)
    assert assembled(OpenAiChat(), told) == kept
    assert read(OpenAiChat(), told) == OpenAiChat().whole(kept) == read(OpenAiChat(), events)
    assert OpenAiChat().whole(kept).text == "I write"
    kept = assembled(OpenAiChat(), [*events[:1], *events[2:], events[1]])
    assert kept["choices"][0]["message"]["content"] == [{"type": "text", "text": "I write"}, thought]


def test_what_a_provider_says_in_each_chunk_is_said_once():
    call = {"index": 10**9, "id": "c", "type": "function", "function": {"name": "write", "arguments": '{"a"'}}
    events = [
        chunk({"role": "assistant", "content": "I", "tool_calls": [call]}, finish_reason=None),
        chunk({"role": "assistant", "content": " write", "tool_calls": [{**call, "id": "", "function": {
            "name": None, "arguments": ": 1}"}}]}, finish_reason=""),
        chunk({"role": "assistant", "content": None}, finish_reason="tool_calls"),
        chunk({"role": "assistant", "content": ""}, finish_reason=None),
    ]  # fmt: skip
    kept = assembled(OpenAiChat(), events)
    (choice,) = kept["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I write",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "write", "arguments": '{"a": 1}'}}],
    }
    assert OpenAiChat().whole(kept) == read(OpenAiChat(), events)


def test_noise_that_hides_lengths_is_left_out():
    noisy = [{**event, "obfuscation": "kfu8"} for event in rendered_events(OpenAiChat(), COMPLETION)]
    assert assembled(OpenAiChat(), noisy) == COMPLETION


def test_several_calls_may_come_at_once_or_in_turn():
    at_once = [
        {"index": n, "id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in (0, 1)
    ]
    kept = assembled(OpenAiChat(), [chunk({"tool_calls": at_once}, finish_reason="tool_calls")])
    in_turn = [chunk({"tool_calls": [call]}) for call in at_once]
    assert assembled(OpenAiChat(), [*in_turn, chunk({}, finish_reason="tool_calls")]) == kept
    assert [call["id"] for call in kept["choices"][0]["message"]["tool_calls"]] == ["c0", "c1"]


def test_a_thought_under_two_names_is_one_thought():
    message = {**COMPLETION["choices"][1]["message"], "reasoning": "hm", "reasoning_content": "hm"}
    document = {**COMPLETION, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    events = rendered_events(OpenAiChat(), document)
    assert assembled(OpenAiChat(), events) == document
    assert read(OpenAiChat(), events).thought == "hm"


def test_an_error_in_the_middle_of_a_completion_or_a_generation_is_kept():
    error = {"error": {"code": 503, "message": "Overloaded"}}
    for provider, document in ((OpenAiChat(), COMPLETION), (Gemini(), GENERATION)):
        for events in ([error], [*rendered_events(provider, document)[:-2], error]):
            kept = assembled(provider, events)
            assert provider.whole(kept).problem == "Overloaded"
            assert read(provider, rendered_events(provider, kept)).problem == "Overloaded"


def test_what_gemini_tells_again_is_kept_once_and_what_it_adds_is_added():
    (candidate,) = GENERATION["candidates"]
    grounds = candidate["groundingMetadata"]
    again = [{**GENERATION, "candidates": [{**candidate, "content": {"parts": []}}]}] * 2
    assert assembled(Gemini(), [GENERATION, {k: v for k, v in again[0].items() if k != "candidates"}]) == GENERATION
    kept = assembled(Gemini(), [GENERATION, *again])["candidates"][0]
    assert kept["groundingMetadata"] == grounds
    assert kept["urlContextMetadata"] == candidate["urlContextMetadata"]
    assert len(kept["logprobsResult"]["chosenCandidates"]) == 6  # each chunk tells of its own tokens
    more = {"groundingMetadata": {**grounds, "webSearchQueries": ["a dog"]}}
    kept = assembled(Gemini(), [GENERATION, {"candidates": [{**more, "finishReason": "STOP"}]}])["candidates"][0]
    assert kept["groundingMetadata"]["webSearchQueries"] == ["a cat", "a dog"]
    assert kept["content"] == candidate["content"]


@pytest.mark.parametrize("provider", ALL, ids=[one.title for one in ALL])
def test_the_names_of_models_and_counts_are_told_in_its_words(provider):
    assert 7 in provider.counted(7).values()
    assert "m" in str(provider.one_model("m"))
    (listed,) = (value for value in provider.models(["m", "n"]).values() if isinstance(value, list))
    assert listed == [provider.one_model("m"), provider.one_model("n")]
    assert [] in provider.models([]).values()


def test_each_api_says_where_its_conversation_stands():
    assert [one.conversation_field for one in ALL] == ["messages", "input", "messages", "contents"]
