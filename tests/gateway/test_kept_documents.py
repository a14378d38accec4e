"""The answer in one piece that a copy has, however it came; and none where it is not whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_answers import ANSWERS, COMPLETION, GENERATION, IDS, MESSAGE, streamed

from keystone_action.gateway import answer_copy
from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat

BY_ANSWER = pytest.mark.parametrize(("provider", "document"), ANSWERS, ids=IDS)
STREAM, JSON = "text/event-stream", "application/json"


def copied(
    provider: ModelApi, pieces: list[bytes], content_type: str = STREAM, status: int = 200, *, keeps: bool = True
) -> AnswerCopy:
    copy = AnswerCopy(provider, without_usage=False, keeps_document=keeps)
    copy.start(status, content_type)
    for piece in pieces:
        copy.feed(piece)
    copy.end()
    return copy


@BY_ANSWER
@pytest.mark.parametrize("content_type", [STREAM, JSON])
def test_it_is_the_same_however_it_came(provider, document, content_type):
    as_json = [json.dumps(document, indent=1).encode()]
    for pieces in (streamed(provider, document).pieces, as_json):
        assert copied(provider, list(pieces), content_type).document() == document


@BY_ANSWER
@given(size=st.integers(1, 3_000))
def test_the_pieces_that_it_came_in_make_no_difference(provider, document, size):
    content = b"".join(streamed(provider, document).pieces)
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert copied(provider, pieces).document() == document


def test_an_array_of_gemini_is_put_together():
    path = "/v1beta/models/gem:streamGenerateContent"
    pieces = Gemini().rendered(GENERATION, body={}, path=path, query="").pieces
    assert copied(Gemini(), list(pieces), JSON).document() == GENERATION


def test_there_is_none_if_nobody_asked_for_it():
    assert copied(Anthropic(), list(streamed(Anthropic(), MESSAGE).pieces), keeps=False).document() is None


@BY_ANSWER
@given(cut=st.floats(0, 1, exclude_max=True))
def test_there_is_none_of_a_cut_stream(provider, document, cut):
    pieces = streamed(provider, document).pieces
    content = b"".join(pieces)
    whole = len(content) - len(pieces[-1])  # without its last event
    copy = AnswerCopy(provider, without_usage=False, keeps_document=True)
    copy.start(200, STREAM)
    copy.feed(content[: int(len(content) * cut)])
    assert copy.document() is None  # nobody said that it came to its end
    if not isinstance(provider, OpenAiChat):
        assert copied(provider, [content[: int(whole * cut)]]).document() is None


def test_there_is_none_if_its_connection_was_lost():
    copy = copied(OpenAiChat(), list(streamed(OpenAiChat(), COMPLETION).pieces))
    copy.lost = "the connection was lost"
    assert copy.document() is None


@pytest.mark.parametrize("junk", [b"data: {\n\n", b"data: [1]\n\n", b"data: hello\n\n", b'data: {"choices": ['])
def test_there_is_none_if_anything_of_it_was_unreadable(junk):
    pieces = streamed(OpenAiChat(), COMPLETION).pieces
    assert copied(OpenAiChat(), [*pieces, b": alive\n\n"]).document() == COMPLETION
    assert copied(OpenAiChat(), [*pieces, junk]).document() is None
    assert copied(OpenAiChat(), [*pieces, junk], JSON).document() is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        (200, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        (200, {}),
        (200, []),
        (200, "hello"),
    ],
)
def test_there_is_none_of_an_error_or_of_nothing(status, body):
    assert copied(Anthropic(), [json.dumps(body).encode()], JSON, status).document() is None
    assert copied(Anthropic(), [f"data: {json.dumps(body)}\n\n".encode()], STREAM, status).document() is None
    assert copied(Anthropic(), [], JSON, status).document() is None


def test_there_is_none_of_a_stream_that_is_too_long(monkeypatch):
    pieces = list(streamed(Anthropic(), MESSAGE).pieces)
    monkeypatch.setattr(answer_copy, "READ_LIMIT", sum(map(len, pieces)))
    assert copied(Anthropic(), pieces).document() == MESSAGE
    monkeypatch.setattr(answer_copy, "READ_LIMIT", sum(map(len, pieces)) - 1)
    copy = copied(Anthropic(), pieces)
    assert copy.document() is None
    assert copy.answer() == Anthropic().whole(MESSAGE)  # each of its events could be read
