"""The clients of judges: one question, one reply, and how a call can fail. The Messages API of Anthropic is asked by
its own SDK, chat completions of any server that speaks them by httpx."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from anthropic import APIStatusError

Stop = Literal["end", "truncated", "refused"]
Turn = tuple[Literal["user", "assistant"], str]
Feature = Literal["temperature", "json_schema", "json_object"]

ANSWER_SCHEMA: Mapping[str, Any] = {
    # No minimum and maximum: providers' schema modes refuse them; `answer.parse_answer` checks the range.
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "Why, in at most three sentences, with the evidence."},
        "score": {"type": "number", "description": "From 0.0 (fails the criteria) to 1.0 (meets them fully)."},
        "passed": {"type": "boolean", "description": "Whether the criteria are met."},
    },
    "required": ["reason", "score", "passed"],
    "additionalProperties": False,
}
"""`reason` comes first: a model that writes its reasons before the number grades better."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request to a model."""

    model: str
    system: str
    turns: tuple[Turn, ...]
    """(role, text) each, the last one a user's."""
    temperature: float | None
    without: frozenset[Feature] = frozenset()
    """Features that this model was found to refuse. The temperature is then left out, and structured output is asked
    for in the next weaker form."""


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What came back from a provider."""

    text: str
    """As the model wrote it."""
    stop: Stop
    """Why it ended."""
    input_tokens: int
    """Neither read from a cache nor written to one."""
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class CallFailed(Exception):  # noqa: N818 - an outcome of a call
    """A call gave no reply. transient: worth trying again. retry_after: seconds the server asked us to wait.
    refuses: the feature that the model doesn't take, when that is why."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        retry_after: float | None = None,
        refuses: Feature | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after
        self.refuses = refuses


class JudgeClient(Protocol):
    """A provider's API. Made for one judgement and closed after it."""

    async def ask(self, question: Question) -> JudgeReply:
        """Raises CallFailed. Never retries: the judge does, within its time."""

    async def close(self) -> None:
        """Close the connections."""


def status_failure(
    status: int, message: str, headers: Mapping[str, str], *, sent: Question, key: str, host: str
) -> CallFailed:
    """What an HTTP status of 400 and above means, as a sentence for people. key: the variable that the key is from."""
    said = f": {message}" if message else ""
    if status in (401, 403):
        return CallFailed(f"{host} refused {key} ({status}){said}; check the key")
    if status == 404:
        return CallFailed(f"{host} has no model {sent.model} (404){said}")
    if status == 413:
        return CallFailed(f"{host} found the prompt too large (413){said}")
    if status in (408, 409, 429) or status >= 500:
        what = {429: "is limiting our rate", 529: "is overloaded"}.get(status, "could not answer")
        return CallFailed(f"{host} {what} ({status}){said}", transient=True, retry_after=_retry_after(headers))
    refuses = _refused_feature(message, sent) if status in (400, 422) else None
    return CallFailed(f"{host} refused the request ({status}){said}", refuses=refuses)


def connection_failure(host: str, error: BaseException) -> CallFailed:
    """No answer came. A certificate that is not trusted, and a proxy that refuses, are the same in every try."""
    cause: BaseException | None = error
    for _ in range(10):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", "") or "it could not be verified"
            return CallFailed(
                f"the certificate of {host} is not trusted: {why} "
                "(SSL_CERT_FILE names a file with the certificates of a company's own authority)"
            )
        if type(cause).__name__ == "ProxyError":
            return CallFailed(f"the proxy on the way to {host} refused: {str(cause)[:300] or 'no reason given'}")
        cause = None if cause is None else cause.__cause__ or cause.__context__
    reason = error if error.__cause__ is None or not type(error).__name__.startswith("API") else error.__cause__
    return CallFailed(f"{host} can't be reached ({type(reason).__name__})", transient=True)


def _refused_feature(message: str, sent: Question) -> Feature | None:
    text = message.lower()
    if "temperature" in text and sent.temperature is not None and "temperature" not in sent.without:
        return "temperature"
    names = ("output_config", "output_format", "output format", "structured output", "json_schema", "response_format")
    if any(name in text for name in names):
        weaker: tuple[Feature, ...] = ("json_schema", "json_object")
        return next((feature for feature in weaker if feature not in sent.without), None)
    return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `retry-after-ms` or `retry-after` (a number or a date); None when absent or unreadable."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) / divisor
        except ValueError:
            continue
        return seconds if 0 <= seconds < 1e9 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def tokens(value: Any) -> int:
    """A token count as a provider reports it; 0 for anything that is not a count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


MAX_TOKENS = 16_000
"""For thinking and answer together: some models always think, and their thoughts count."""

_STOP_REASONS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "refusal": "refused",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
}


class AnthropicClient:
    """Structured output by `output_config.format`: a forced tool call, the older way, is answered with 400 by the
    models that always think."""

    default_base_url: ClassVar = "https://api.anthropic.com"
    key_variable: ClassVar = "ANTHROPIC_API_KEY"
    base_url_variable: ClassVar = "ANTHROPIC_BASE_URL"
    package: ClassVar = "anthropic"

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
        return _read_message(body, content_type, self._host)

    def _failure(self, error: APIStatusError, question: Question) -> CallFailed:
        message = ""
        if isinstance(error.body, dict) and isinstance(error.body.get("error"), dict):
            message = str(error.body["error"].get("message", ""))[:500]
        headers = dict(error.response.headers)
        return status_failure(
            error.status_code, message, headers, sent=question, key=self.key_variable, host=self._host
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _read_message(body: bytes, content_type: str, host: str) -> JudgeReply:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise CallFailed(f"{host} answered {content_type or 'something'} that is not JSON", transient=True) from None
    if not isinstance(document, dict) or not isinstance(document.get("content"), list):
        raise CallFailed(f"{host} answered JSON that is not a message", transient=True)
    blocks = [block for block in document["content"] if isinstance(block, dict) and block.get("type") == "text"]
    usage = document.get("usage") if isinstance(document.get("usage"), dict) else {}
    assert isinstance(usage, dict)
    return JudgeReply(
        text="".join(block["text"] for block in blocks if isinstance(block.get("text"), str)),
        stop=_STOP_REASONS.get(str(document.get("stop_reason")), "end"),
        input_tokens=tokens(usage.get("input_tokens")),
        output_tokens=tokens(usage.get("output_tokens")),
        # We set no cache breakpoints: these are zero unless a proxy does.
        cache_read_tokens=tokens(usage.get("cache_read_input_tokens")),
        cache_write_tokens=tokens(usage.get("cache_creation_input_tokens")),
    )


class OpenAIClient:
    """No limit of output tokens is sent: its name differs between servers (`max_tokens`, `max_completion_tokens`)
    and the wrong one is an error."""

    default_base_url: ClassVar = "https://api.openai.com/v1"
    key_variable: ClassVar = "OPENAI_API_KEY"
    base_url_variable: ClassVar = "OPENAI_BASE_URL"
    package: ClassVar = "httpx"

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
            raise status_failure(
                response.status_code, message, headers, sent=question, key=self.key_variable, host=host
            )
        if document is None:
            kind = response.headers.get("content-type", "something")
            raise CallFailed(f"{host} answered {kind} that is not JSON ({response.status_code})", transient=True)
        return _read_completion(document, host)

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


def _read_completion(document: Any, host: str) -> JudgeReply:
    choices = document.get("choices") if isinstance(document, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise CallFailed(f"{host} answered JSON that is not a chat completion", transient=True)
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
