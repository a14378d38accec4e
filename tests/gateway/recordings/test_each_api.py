"""Answers of each API, with all there is in them, recorded in one form and replayed in the other."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_answers import COMPLETION, GENERATION, MESSAGE, RESPONSE, assembled, events_of, streamed
from support.odd_calls import ODD
from support.recorded_world import recorded, replayed
from support.scripted_provider import Says, document, stream

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

ASKED = {"content": "x", "role": "user"}
EACH: dict[str, tuple[ModelApi, dict[str, Any], str, dict[str, Any]]] = {
    "anthropic": (Anthropic(), MESSAGE, "/anthropic/v1/messages", {"model": "m", "messages": [ASKED]}),
    "responses": (OpenAiResponses(), RESPONSE, "/openai/v1/responses", {"model": "m", "input": [ASKED]}),
    "chat": (OpenAiChat(), COMPLETION, "/openai/v1/chat/completions", {"model": "m", "messages": [ASKED]}),
    "gemini": (
        Gemini(),
        GENERATION,
        "/gemini/v1beta/models/m:",
        {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
    ),
}


def asked(api: str, *, streams: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a request."""
    _, _, path, body = EACH[api]
    if api == "gemini":
        return path + ("streamGenerateContent?alt=sse" if streams else "generateContent"), body
    more = {"stream_options": {"include_usage": True}} if api == "chat" else {}
    return path, {**body, "stream": True, **more} if streams else body


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("api", list(EACH))
def test_it_is_replayed_as_it_is_asked_for(api: str, streams: bool) -> None:
    provider, answer, *_ = EACH[api]
    as_stream = streamed(provider, answer)
    told = Says(pieces=as_stream.pieces, headers=[("content-type", as_stream.content_type)])
    with recorded(told if streams else document(answer)) as one:
        path, body = asked(api, streams=streams)
        one.world.ask(path, body)
        (exchange,) = one.world.settled()
        recording = one.recording()
    with replayed(recording) as one:
        path, body = asked(api, streams=False)
        assert one.world.ask(path, body).json() == answer
    with replayed(recording) as one:
        path, body = asked(api, streams=True)
        found = one.world.ask(path, body)
        assert found.headers["content-type"].startswith("text/event-stream")
        assert assembled(provider, events_of(found.content)) == answer
        (again,) = one.world.settled()
    assert again.answer == exchange.answer == provider.whole(answer)


APIS = {"Messages": "anthropic", "Responses": "responses", "Completions": "chat", "Gemini": "gemini"}


@pytest.mark.parametrize(("told", "calls"), [(one[1], one[2]) for one in ODD.values()], ids=ODD)
def test_calls_that_are_told_in_odd_ways_are_replayed_as_they_counted(
    request: pytest.FixtureRequest, told: list[Any], calls: list[tuple[str, Any]]
) -> None:
    api = APIS[request.node.callspec.id.partition(":")[0]]
    path, body = asked(api, streams=True)
    with recorded(stream(*told)) as one:
        one.world.ask(path, body)
        (exchange,) = one.world.settled()
        recording = one.recording()
    assert [(call.name, call.arguments) for call in exchange.answer.calls] == calls
    for streams in (True, False):
        path, body = asked(api, streams=streams)
        with replayed(recording) as one:
            one.world.ask(path, body)
            (again,) = one.world.settled()
        assert again.answer.calls == exchange.answer.calls
