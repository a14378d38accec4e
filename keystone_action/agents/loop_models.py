"""The models of the tool loop: one request with the conversation so far, one answer, and how a request can fail. The
Messages API of Anthropic is asked by its own SDK, chat completions of any server that speaks them by httpx. Both go to
the cell's gateway, with its worthless key.

A conversation is a list of messages in the form of the API. What a model said is sent back as it came, but for what
would be refused there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread

if TYPE_CHECKING:
    import httpx

    from keystone_action.gateway.upstreams import ModelAddress

Messages = list[dict[str, Any]]
AnswerEnd = Literal["", "cut", "refused", "paused", "full"]
"""Why an answer ended: by itself or for its calls (""), at its limit of tokens, by a refusal, in the middle of the
provider's own work, or because the conversation is longer than the model can read."""

MOST_TOKENS = 16_000
"""Of one answer by the Messages API, which wants a limit: thoughts count, too."""
RETRIES = 4
"""Of a request that failed for a while: by a limit of its rate, a provider that is overloaded or can't be reached."""
LONGEST_WAIT = 60.0
"""Seconds that a provider may ask us to wait before the next try; one that asks for more is asked again sooner."""
_MESSAGE_LIMIT = 1000
_CONNECT_SECONDS = 20.0
_EVERYWHERE = ("http://", "https://", "all://")
"""Of the proxies in our environment none is used."""
_FULL = re.compile(
    r"(?i)prompt is too long|context[ _](?:length|window)|maximum context"
    r"|(?:input|prompt|request).{0,40}too (?:long|large)"
)


@dataclass(frozen=True, slots=True)
class ToolForm:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call of a tool that a model asked for. Everything in it is the model's word."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None where they are not a JSON object."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """One answer of a model."""

    text: str
    calls: tuple[RequestedCall, ...]
    end: AnswerEnd
    message: dict[str, Any] | None
    """For the conversation; None where there is nothing to add."""


class ModelFailed(Exception):  # noqa: N818 - an outcome of a request
    """A request got no answer; the message says why. is_full: because the conversation is longer than the model can
    read."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class LoopModel(ABC):
    """A model, asked through the gateway of a cell. Closed after the agent."""

    @abstractmethod
    async def ask(self, messages: Messages) -> ModelAnswer:
        """The answer to a conversation. Raises ModelFailed, after `RETRIES` where trying again may help."""

    @abstractmethod
    def results(self, results: Sequence[tuple[str, CallOutcome]]) -> Messages:
        """The messages with the results of calls, by their ids, in the order of the calls."""

    async def close(self) -> None:  # noqa: B027 - nothing to close by itself
        """Close the connections."""


def _refused(status: int, said: str) -> ModelFailed:
    message = f"the model's provider refused the request ({status})" + (f": {said[:_MESSAGE_LIMIT]}" if said else "")
    return ModelFailed(message, is_full=status in (400, 413) and (status == 413 or bool(_FULL.search(said))))


def _said(document: Any) -> str:
    """What a document of an error says, as both APIs have it."""
    error = document.get("error") if isinstance(document, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return said if isinstance(said, str) else ""


class MessagesModel(LoopModel):
    """By the Messages API."""

    _ENDS: Mapping[str, AnswerEnd] = {
        "max_tokens": "cut",
        "refusal": "refused",
        "pause_turn": "paused",
        "model_context_window_exceeded": "full",
    }

    def __init__(self, address: ModelAddress, model: str, system: str, tools: Sequence[ToolForm]) -> None:
        import anthropic

        # Nothing is looked for in os.environ, proxies included: the gateway is on this machine. A provider that stalls
        # is the gateway's to judge, and the agent's time limit holds.
        http = anthropic.DefaultAsyncHttpxClient(trust_env=False, mounts=dict.fromkeys(_EVERYWHERE))
        self._client = anthropic.AsyncAnthropic(
            api_key=address.key, base_url=address.url, max_retries=RETRIES, timeout=None, http_client=http
        )
        self._fixed: dict[str, Any] = {"model": model, "max_tokens": MOST_TOKENS, "system": system}
        if tools:
            self._fixed["tools"] = [
                {"name": one.name, "description": one.description, "input_schema": one.schema} for one in tools
            ]

    async def ask(self, messages: Messages) -> ModelAnswer:
        """See `LoopModel.ask`."""
        import anthropic

        marked: Any = _with_cache_mark(messages)
        try:
            answer = await self._client.messages.with_raw_response.create(**self._fixed, messages=marked)
            body = answer.http_response.content
        except anthropic.APIStatusError as error:
            raise _refused(error.status_code, _said(error.body)) from None
        except (anthropic.AnthropicError, ValueError) as error:
            raise ModelFailed(f"the model's answer did not come: {str(error)[:_MESSAGE_LIMIT]}") from None
        document = _object(body)
        content = document.get("content")
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
            raise ModelFailed("the model answered JSON that is not a message")
        return self._read(content, str(document.get("stop_reason")))

    def _read(self, content: list[dict[str, Any]], reason: str) -> ModelAnswer:
        texts = [one["text"] for one in content if one.get("type") == "text" and isinstance(one.get("text"), str)]
        calls = [
            RequestedCall(str(one.get("id", "")), str(one.get("name", "")), _mapping(one.get("input")))
            for one in content
            if one.get("type") == "tool_use"
        ]
        # An empty text is refused in a request, and so is a message without content.
        kept = [one for one in content if one.get("type") != "text" or one.get("text")]
        message = {"role": "assistant", "content": kept} if kept else None
        return ModelAnswer("".join(texts), tuple(calls), self._ENDS.get(reason, ""), message)

    def results(self, results: Sequence[tuple[str, CallOutcome]]) -> Messages:
        """See `LoopModel.results`."""
        content = [
            {
                "type": "tool_result",
                "tool_use_id": call,
                "content": one.text,
                **({"is_error": True} if one.is_error else {}),
            }
            for call, one in results
        ]
        return [{"role": "user", "content": content}]

    async def close(self) -> None:
        """See `LoopModel.close`."""
        await self._client.close()


def _with_cache_mark(messages: Messages) -> Messages:
    """The conversation, all of it in blocks, with the mark that lets a provider keep what it has read so far: the next
    request costs a tenth."""
    sent = [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if isinstance(one["content"], str) else one
        for one in messages
    ]
    last = sent[-1]
    if last["role"] == "user":
        *blocks, block = last["content"]
        sent[-1] = {**last, "content": [*blocks, {**block, "cache_control": {"type": "ephemeral"}}]}
    return sent


class ChatModel(LoopModel):
    """By chat completions. No limit of tokens is sent: its name differs between servers, and the wrong one is an
    error."""

    _ENDS: Mapping[str, AnswerEnd] = {"length": "cut", "content_filter": "refused"}
    _SENT_BACK = ("reasoning_content", "reasoning_details")
    """Of a message beside its text and calls. All else is refused by one server or another."""

    def __init__(self, address: ModelAddress, model: str, system: str, tools: Sequence[ToolForm]) -> None:
        import httpx

        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            trust_env=False,
            headers={"authorization": f"Bearer {address.key}"},
        )
        self._url = f"{address.url}/chat/completions"
        self._system = {"role": "system", "content": system}
        self._fixed: dict[str, Any] = {"model": model}
        if tools:
            self._fixed["tools"] = [
                {
                    "type": "function",
                    "function": {"name": one.name, "description": one.description, "parameters": one.schema},
                }
                for one in tools
            ]

    async def ask(self, messages: Messages) -> ModelAnswer:
        """See `LoopModel.ask`."""
        body = {**self._fixed, "messages": [self._system, *messages]}
        response = await self._post(body)
        document = _object(response.content)
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ModelFailed("the model answered JSON that is not a chat completion")
        return self._read(message, str(choice.get("finish_reason")))

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        """Raises ModelFailed."""
        import httpx

        for number in range(RETRIES + 1):
            is_last = number == RETRIES
            try:
                response = await self._client.post(self._url, json=body)
            except (httpx.HTTPError, ValueError) as error:
                if is_last or not isinstance(error, httpx.TransportError):
                    raise ModelFailed(f"the model's answer did not come: {type(error).__name__}") from None
                await asyncio.sleep(_wait(number))
                continue
            if response.status_code < 400:
                return response
            if is_last or not (response.status_code in (408, 409, 429) or response.status_code >= 500):
                said = ""
                with contextlib.suppress(ValueError, RecursionError):
                    said = _said(json.loads(response.content))
                raise _refused(response.status_code, said)
            await asyncio.sleep(_wait(number, response.headers.get("retry-after", "")))
        raise AssertionError

    def _read(self, said: Mapping[str, Any], reason: str) -> ModelAnswer:
        content, refusal, asked = said.get("content"), said.get("refusal"), said.get("tool_calls")
        text = content if isinstance(content, str) else ""
        refused = isinstance(refusal, str) and bool(refusal)
        requested = [one for one in asked if isinstance(one, dict)] if isinstance(asked, list) else []
        calls = [_function_call(one) for one in requested]
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        message |= {name: said[name] for name in self._SENT_BACK if said.get(name)}
        if calls:
            message["tool_calls"] = [
                # Arguments that are not JSON would be refused, or break the server.
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": _json(one.arguments)}}
                for one in calls
            ]
        end: AnswerEnd = "refused" if refused else self._ENDS.get(reason, "")
        told = text or (str(refusal) if refused else "")
        return ModelAnswer(told, tuple(calls), end, message if text or len(message) > 2 else None)

    def results(self, results: Sequence[tuple[str, CallOutcome]]) -> Messages:
        """See `LoopModel.results`."""
        return [{"role": "tool", "tool_call_id": call, "content": one.text} for call, one in results]

    async def close(self) -> None:
        """See `LoopModel.close`."""
        await self._client.aclose()


def _wait(number: int, asked: str = "") -> float:
    """Seconds before the next try. asked: for how long the provider wants us to wait; dates are not read."""
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(asked)) <= LONGEST_WAIT:
            return seconds
    return min(0.5 * 2.0**number, 8.0)


def _function_call(value: Mapping[str, Any]) -> RequestedCall:
    function = value.get("function")
    given = function if isinstance(function, dict) else {}
    arguments = given.get("arguments")
    parsed: Any = arguments
    if isinstance(arguments, str):
        parsed = {} if not arguments.strip() else None
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(arguments) if arguments.strip() else {}
    return RequestedCall(str(value.get("id", "")), str(given.get("name", "")), _mapping(parsed))


def _json(arguments: Mapping[str, Any] | None) -> str:
    return json.dumps(arguments or {})


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _object(body: bytes) -> dict[str, Any]:
    """Raises ModelFailed."""
    document: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(body)
        if b"\\ud" in body.lower():
            # Half a character is legal in JSON, and can't be sent back.
            document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    if not isinstance(document, dict):
        raise ModelFailed("the model's answer is not a JSON object")
    return document


async def open_model(
    api: Literal["anthropic", "openai"], address: ModelAddress, model: str, system: str, tools: Sequence[ToolForm]
) -> LoopModel:
    """A model of this API."""
    made = MessagesModel if api == "anthropic" else ChatModel
    # In a thread: the SDK takes more than a second to be imported, and other cells go on meanwhile.
    return await anyio.to_thread.run_sync(made, address, model, system, tools)
