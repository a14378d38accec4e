"""The Anthropic Messages API, by its own SDK."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from anthropic import APIStatusError

DEFAULT_BASE_URL = "https://api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
PACKAGE = "anthropic"
MAX_TOKENS = 16_000
"""For thinking and answer together: some models always think, and their thoughts count."""

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "refusal": "refused",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
}


class AnthropicClient:
    """Structured output by `output_config.format`: a forced tool call, the older way, is answered with 400 by the
    models that always think."""

    def __init__(self, *, key: str, base_url: str) -> None:
        from anthropic import AsyncAnthropic

        # Everything is given, so the SDK looks for nothing in os.environ or profiles on disk; retries are the judge's.
        self._client = AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=600.0)
        self._host = self._client.base_url.host

    async def ask(self, question: Question) -> JudgeReply:
        """Raises CallFailed."""
        import anthropic

        turns: Any = [{"role": role, "content": text} for role, text in question.turns]
        extra: dict[str, Any] = {}
        if question.temperature is not None and "temperature" not in question.without:
            extra["temperature"] = question.temperature  # newer SDKs have no argument for it; older models do
        if "json_schema" not in question.without:
            extra["output_config"] = {"format": {"type": "json_schema", "schema": dict(ANSWER_SCHEMA)}}
        try:
            response = await self._client.messages.with_raw_response.create(
                model=question.model,
                max_tokens=MAX_TOKENS,
                system=question.system,
                messages=turns,
                extra_body=extra,
            )
            content_type = response.headers.get("content-type", "")
            body = response.http_response.content
        except anthropic.APIStatusError as error:
            raise self._failure(error, question) from None
        except anthropic.APITimeoutError:
            raise CallFailed(f"{self._host} did not answer in time", transient=True) from None
        except anthropic.APIConnectionError as error:
            raise connection_failure(self._host, error) from None
        except (anthropic.AnthropicError, ValueError) as error:
            raise CallFailed(f"{self._host} gave an answer that can't be read: {error}", transient=True) from None
        return _read(body, content_type, self._host)

    def _failure(self, error: APIStatusError, question: Question) -> CallFailed:
        message = ""
        if isinstance(error.body, dict) and isinstance(error.body.get("error"), dict):
            message = str(error.body["error"].get("message", ""))[:500]
        headers = dict(error.response.headers)
        return status_failure(error.status_code, message, headers, sent=question, key=KEY_VARIABLE, host=self._host)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _read(body: bytes, content_type: str, host: str) -> JudgeReply:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise CallFailed(f"{host} answered {content_type or 'something'} that is no JSON", transient=True) from None
    if not isinstance(document, dict) or not isinstance(document.get("content"), list):
        raise CallFailed(f"{host} answered JSON that is no message", transient=True)
    blocks = [block for block in document["content"] if isinstance(block, dict) and block.get("type") == "text"]
    usage = document.get("usage") if isinstance(document.get("usage"), dict) else {}
    assert isinstance(usage, dict)
    return JudgeReply(
        text="".join(block["text"] for block in blocks if isinstance(block.get("text"), str)),
        stop=_STOPS.get(str(document.get("stop_reason")), "end"),
        input_tokens=tokens(usage.get("input_tokens")),
        output_tokens=tokens(usage.get("output_tokens")),
        # We set no cache breakpoints: these are zero unless a proxy does.
        cache_read_tokens=tokens(usage.get("cache_read_input_tokens")),
        cache_write_tokens=tokens(usage.get("cache_creation_input_tokens")),
    )
