"""OpenAI's Chat Completions API, which many other providers and routers have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.trace_readers.values import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.exchange import Answer, AnswerReader, Asked, ModelCall, Provider, Tokens, ToolResult
from keystone_action.gateway.providers.openai_errors import refusal
from keystone_action.gateway.providers.values import count, names_of, without


class OpenAiChat(Provider):
    """`POST /v1/chat/completions`, as a stream or in one piece. Of several choices the first one is read as the text;
    calls of all count."""

    name = "openai"
    title = "OpenAI Chat Completions"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:  # noqa: ARG002 - its model stands in the body
        messages, tools = objects(body, "messages"), objects(body, "tools")
        functions = [mapping(tool, "function") or mapping(tool, "custom") or tool for tool in tools]
        return Asked(
            model=text(body, "model"),
            streams=body.get("stream") is True,
            tools=names_of([*functions, *objects(body, "functions")]),
            run_by_provider=("web_search_options",) if isinstance(body.get("web_search_options"), dict) else (),
            results=tuple(
                ToolResult(text(message, "tool_call_id"), as_text(message.get("content")))
                for message in messages
                if text(message, "role") == "tool"
            ),
            conversation=len(messages),
        )

    def whole(self, body: Any) -> Answer:
        reader = _Reader()
        if isinstance(body, dict):
            choices = [{**choice, "delta": mapping(choice, "message")} for choice in objects(body, "choices")]
            reader.event({**body, "choices": choices})
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        return refusal(status, sentence)


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    is_text: bool = False


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._model = self._stop = self._problem = ""
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: dict[tuple[Any, Any], _Call] = {}
        self._usage: Mapping[str, Any] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        self._model = text(data, "model") or self._model
        self._usage = mapping(data, "usage") or self._usage
        if error := data.get("error"):
            told = text(error, "message") if isinstance(error, dict) else error
            self._problem = told if isinstance(told, str) and told else "an error without a message"
        for choice in objects(data, "choices"):
            self._choice(choice, mapping(choice, "delta"))

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        number = count(choice, "index") or 0
        self._stop = text(choice, "finish_reason") or self._stop
        if number == 0:
            self._text.append(text(delta, "content"))
            self._thought.append(text(delta, "reasoning_content") or text(delta, "reasoning"))
        for place, told in enumerate(objects(delta, "tool_calls")):
            index = count(told, "index")
            call = self._calls.setdefault((number, place if index is None else index), _Call())
            call.is_text = call.is_text or bool(mapping(told, "custom"))
            function = mapping(told, "custom") or mapping(told, "function")
            call.id = text(told, "id") or call.id
            call.name += text(function, "name")
            call.pieces.append(text(function, "input") if call.is_text else text(function, "arguments"))

    def answer(self) -> Answer:
        cached = count(mapping(self._usage, "prompt_tokens_details"), "cached_tokens")
        return Answer(
            model=self._model,
            text="".join(self._text),
            thought="".join(self._thought),
            calls=tuple(_frozen(call) for call in self._calls.values()),
            tokens=Tokens(
                uncached=without(count(self._usage, "prompt_tokens"), cached),
                cache_read=cached,
                output=count(self._usage, "completion_tokens"),
            ),
            stop=self._stop,
            problem=self._problem,
            finished=bool(self._stop) and not self._problem,
        )


def _frozen(call: _Call) -> ModelCall:
    sent = "".join(call.pieces)
    return ModelCall(call.id, call.name, {"input": sent} if call.is_text else as_arguments(sent))
