"""Run by the Python of an environment with the libraries of the model providers: asks the provider at an address in one
piece and as a stream, and writes what the library made of both answers.

    python model_libraries.py API http://127.0.0.1:…
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

KEY = "no-key"


def anthropic(url: str) -> dict[str, Any]:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key=KEY, max_retries=0)
    asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with client.beta.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    return {
        "whole": client.beta.messages.create(**asked).to_dict(mode="json"),
        "streamed": streamed.to_dict(mode="json"),
        "counted": client.messages.count_tokens(model="m", messages=asked["messages"]).input_tokens,
        "models": [model.id for model in client.models.list()],
        "model": client.models.retrieve("m").id,
    }


def responses(url: str) -> dict[str, Any]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    with client.responses.stream(model="m", input="x") as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        streamed = stream.get_final_response()
    return {
        "whole": client.responses.create(model="m", input="x").to_dict(mode="json"),
        "streamed": streamed.to_dict(mode="json"),
        "texts": texts[-1:],
        "models": [model.id for model in client.models.list()],
        "model": client.models.retrieve("m").id,
    }


def chat(url: str) -> dict[str, Any]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    asked: dict[str, Any] = {"model": "m", "messages": []}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    return {
        "whole": client.chat.completions.create(**asked).to_dict(mode="json"),
        "streamed": streamed.to_dict(mode="json"),
    }


def gemini(url: str) -> dict[str, Any]:
    from google import genai

    client = genai.Client(api_key=KEY, http_options={"base_url": url})

    def dumped(answer: Any) -> dict[str, Any]:
        found: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        added = {"sdkHttpResponse", "automaticFunctionCallingHistory"}
        return {name: value for name, value in found.items() if name not in added}

    return {
        "whole": dumped(client.models.generate_content(model="m", contents="x")),
        "chunks": [dumped(chunk) for chunk in client.models.generate_content_stream(model="m", contents="x")],
        "counted": client.models.count_tokens(model="m", contents="x").total_tokens,
        "models": [model.name for model in client.models.list()],
        "model": client.models.get(model="m").name,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # about kinds of items that the library doesn't know
    _, api, url = sys.argv
    print(json.dumps({"anthropic": anthropic, "responses": responses, "chat": chat, "gemini": gemini}[api](url)))
