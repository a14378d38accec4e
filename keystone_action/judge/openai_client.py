"""OpenAI-compatible chat completions, for any server that speaks them."""

from __future__ import annotations

import json
from typing import Any

from keystone_action.judge.client import (
    ANSWER_SCHEMA,
    CallFailed,
    JudgeReply,
    Question,
    Stop,
    connection_failure,
    status_failure,
    tokens,
)

DEFAULT_BASE_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"
PACKAGE = "httpx"


class OpenAIClient:
    """No limit of output tokens is sent: its name differs between servers (`max_tokens`, `max_completion_tokens`)
    and the wrong one is an error."""

    def __init__(self, *, key: str, base_url: str) -> None:
        import httpx

        self._client = httpx.AsyncClient(timeout=600.0, headers={"authorization": f"Bearer {key}"})
        self._url = httpx.URL(base_url.rstrip("/") + "/chat/completions")

    async def ask(self, question: Question) -> JudgeReply:
        """Raises CallFailed."""
        import httpx

        host = self._url.host
        try:
            response = await self._client.post(self._url, json=_body(question))
        except httpx.TimeoutException:
            raise CallFailed(f"{host} did not answer in time", transient=True) from None
        except (httpx.HTTPError, ValueError) as error:
            raise connection_failure(host, error) from None
        try:
            document: Any = json.loads(response.content)
        except (ValueError, RecursionError):
            document = None
        if response.status_code >= 400:
            message = _error_message(document)
            headers = dict(response.headers)
            raise status_failure(response.status_code, message, headers, sent=question, key=KEY_VARIABLE, host=host)
        if document is None:
            kind = response.headers.get("content-type", "something")
            raise CallFailed(f"{host} answered {kind} that is no JSON ({response.status_code})", transient=True)
        return _read(document, host)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _body(question: Question) -> dict[str, Any]:
    messages = [{"role": "system", "content": question.system}]
    messages += [{"role": role, "content": text} for role, text in question.turns]
    body: dict[str, Any] = {"model": question.model, "messages": messages}
    if question.temperature is not None and "temperature" not in question.without:
        body["temperature"] = question.temperature
    if "json_schema" not in question.without:
        schema = {"name": "grade", "strict": True, "schema": dict(ANSWER_SCHEMA)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif "json_object" not in question.without:
        body["response_format"] = {"type": "json_object"}
    return body


def _error_message(document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return error[:500] if isinstance(error, str) else ""


def _read(document: Any, host: str) -> JudgeReply:
    choices = document.get("choices") if isinstance(document, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise CallFailed(f"{host} answered JSON that is no chat completion", transient=True)
    finish = first.get("finish_reason")
    stop: Stop = "truncated" if finish == "length" else "end"
    if finish == "content_filter" or message.get("refusal"):
        stop = "refused"
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = tokens(details.get("cached_tokens")) if isinstance(details, dict) else 0
    content = message.get("content")
    return JudgeReply(
        text=content if isinstance(content, str) else "",
        stop=stop,
        input_tokens=max(tokens(usage.get("prompt_tokens")) - cached, 0),
        output_tokens=tokens(usage.get("completion_tokens")),
        cache_read_tokens=cached,
    )
