"""Answers that are put together from their events, and made into events or JSON again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.api_answers import ANSWERS, COMPLETION, GENERATION, IDS, assembled, events_of, rendered_events, streamed
from support.api_streams import STREAMS, read

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

SAMPLES = Path(__file__).parents[1] / "data" / "gateway"
ALL = (Anthropic(), OpenAiResponses(), OpenAiChat(), Gemini())
TITLES = [one.title for one in ALL]
RECORDED: list[tuple[ModelApi, list[dict[str, Any]]]] = [
    *((one[0], one[1]) for one in STREAMS),
    *(
        (provider, events_of((SAMPLES / f"{name}.sse").read_bytes()))
        for provider, name in zip(ALL, ("anthropic-messages", "openai-responses", "openai-chat"), strict=False)
    ),
]


@pytest.mark.parametrize(("provider", "events"), RECORDED)
def test_a_stream_that_was_put_together_says_what_the_stream_says(provider, events):
    answer, document = read(provider, events), assembled(provider, events)
    assert answer.finished
    assert provider.whole(json.loads(json.dumps(document))) == answer
    told = rendered_events(provider, document)
    assert read(provider, told) == answer
    assert assembled(provider, told) == document


@pytest.mark.parametrize(("provider", "document"), ANSWERS, ids=IDS)
def test_an_answer_with_all_there_is_comes_through_a_stream_unchanged(provider, document):
    events = rendered_events(provider, document)
    assert assembled(provider, events) == document
    assert read(provider, events) == provider.whole(document)
    assert provider.whole(document).finished


@pytest.mark.parametrize(("provider", "document"), ANSWERS, ids=IDS)
def test_json_is_the_document(provider, document):
    found = provider.rendered(document, body={}, path="/v1beta/models/gem:generateContent", query="")
    assert found.content_type == "application/json"
    assert [json.loads(piece) for piece in found.pieces] == [document]
    assert b"".join(found.pieces).isascii()


def test_what_a_request_asks_for_is_what_it_gets():
    asks = {
        Anthropic: {"stream": True},
        OpenAiResponses: {"stream": True},
        OpenAiChat: {"stream": True},
    }
    for provider, document in ANSWERS:
        if body := asks.get(type(provider)):
            assert provider.rendered(document, body=body, path="", query="").content_type.startswith(
                "text/event-stream"
            )
            for other in ({}, {"stream": False}, {"stream": "true"}, {"stream": None}):
                assert provider.rendered(document, body=other, path="", query="").content_type == "application/json"


@pytest.mark.parametrize("query", ["", "alt=json", "key=k"])
def test_gemini_without_alt_sse_streams_an_array(query):
    path = "/v1beta/models/gem:streamGenerateContent"
    (piece,) = Gemini().rendered(GENERATION, body={}, path=path, query=query).pieces
    events = json.loads(piece)
    assert len(events) > 10
    assert Gemini().whole(events) == Gemini().whole(GENERATION)
    assert assembled(Gemini(), events) == GENERATION


def test_the_chunk_about_usage_is_there_only_if_it_was_asked_for():
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        content = b"".join(streamed(OpenAiChat(), COMPLETION, {"stream": True, **options}).pieces)
        assert b'"usage"' not in content
        assert content.endswith(b"\n\ndata: [DONE]\n\n")
    *chunks, last = rendered_events(OpenAiChat(), COMPLETION)
    assert (last["choices"], last["usage"]) == ([], COMPLETION["usage"])
    assert {chunk["usage"] for chunk in chunks} == {None}
