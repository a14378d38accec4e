"""Answers that we give, read by the libraries that programs use: they make the same of the stream as of the JSON."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from support import model_libraries
from support.api_answers import COMPLETION, GENERATION, MESSAGE, RESPONSE, assembled
from support.released import released
from support.scripted_provider import Asked, Says, document, provider

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

pytestmark = pytest.mark.slow


def known(value: Any) -> Any:
    """Without what is null: the libraries add fields that were not there."""
    if isinstance(value, dict):
        return {name: known(item) for name, item in value.items() if item is not None}
    return [known(item) for item in value] if isinstance(value, list) else value


def read_by_library(api: str, speaks: ModelApi, answer: dict[str, Any]) -> dict[str, Any]:
    def says(asked: Asked) -> Says:
        path, _, query = asked.target.partition("?")
        if asked.method == "GET":
            return document(speaks.models(["m", "n"]) if path.endswith("models") else speaks.one_model("m"))
        if "count" in path:
            return document(speaks.counted(7))
        found = speaks.rendered(answer, body=asked.document, path=path, query=query)
        return Says(pieces=found.pieces, headers=[("content-type", found.content_type)])

    python = released("model-libraries") / "python"
    with provider(says) as scripted:
        words = [python, model_libraries.__file__, api, scripted.url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_anthropic():
    found = read_by_library("anthropic", Anthropic(), MESSAGE)
    assert known(found["streamed"]) == known(found["whole"]) == known(MESSAGE)
    assert (found["counted"], found["models"], found["model"]) == (7, ["m", "n"], "m")


def test_openai_responses():
    found = read_by_library("responses", OpenAiResponses(), RESPONSE)
    assert known(found["streamed"]) == known(found["whole"]) == known(RESPONSE)
    assert found["texts"] == [RESPONSE["output"][2]["content"][0]["text"]]
    assert (found["models"], found["model"]) == (["m", "n"], "m")


def test_openai_chat():
    (first, second) = COMPLETION["choices"]
    # The library can't put together a call with free text, nor fields of a choice that it doesn't know.
    message = {**first["message"], "tool_calls": first["message"]["tool_calls"][:2]}
    choice = {name: value for name, value in first.items() if name != "native_finish_reason"}
    answer = {**COMPLETION, "choices": [{**choice, "message": message}, second]}
    found = read_by_library("chat", OpenAiChat(), answer)
    assert known(found["whole"]) == known(answer)
    for call in found["streamed"]["choices"][0]["message"]["tool_calls"]:
        del call["index"]  # as the chunks have it
    assert known(found["streamed"]) == known(answer)


def test_gemini():
    found = read_by_library("gemini", Gemini(), GENERATION)
    assert len(found["chunks"]) > 10
    assert assembled(Gemini(), found["chunks"]) == found["whole"]
    assert (
        found["whole"]["candidates"][0]["content"]["parts"][:2] == GENERATION["candidates"][0]["content"]["parts"][:2]
    )
    assert (found["counted"], found["models"], found["model"]) == (7, ["models/m", "models/n"], "models/m")
