"""OpenAI's Chat Completions API, which many other providers and routers have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.trace_readers.values import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.answers import rendering
from keystone_action.gateway.answers.openai_chat import CompletionAssembler, completion_events
from keystone_action.gateway.exchange import Answer, AnswerReader, Asked, Assembler, ModelCall, Rendered, ToolResult
from keystone_action.gateway.providers.fetched import reaches_out
from keystone_action.gateway.providers.openai import OpenAi
from keystone_action.gateway.providers.values import (
    Pieces,
    count,
    model_of,
    names_of,
    openai_tokens,
    present,
    typed_otherwise,
)
from keystone_action.pricing import Extras

_OF_CLIENTS = ("function", "custom")
"""The types of tools that the client runs."""
_SEARCHES = ("web_search_options", "search_parameters", "plugins")
"""How OpenAI, xAI and OpenRouter are told to search the web."""


class OpenAiChat(OpenAi):
    """`POST /v1/chat/completions`, as a stream or in one piece. Of several choices the first one is read as the text;
    calls of all count."""

    title = "OpenAI Chat Completions"
    conversation_field = "messages"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:  # noqa: ARG002 - its model stands in the body
        messages, tools = objects(body, "messages"), objects(body, "tools")
        functions = [mapping(tool, "function") or mapping(tool, "custom") or tool for tool in tools]
        return Asked(
            model=model_of(body),
            streams=body.get("stream") is True,
            tools=names_of([*functions, *objects(body, "functions")]),
            run_by_provider=(
                *typed_otherwise(tools, _OF_CLIENTS),
                *present(body, *_SEARCHES),
                *reaches_out(body, model_of(body), "messages"),
            ),
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

    def assembler(self) -> Assembler:
        return CompletionAssembler()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is not True:
            return rendering.document(document)
        with_usage = mapping(body, "stream_options").get("include_usage") is True
        return rendering.stream(completion_events(document, with_usage=with_usage), end=b"data: [DONE]\n\n")


@dataclass(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    pieces: Pieces = field(default_factory=Pieces)
    is_text: bool = False

    def made(self) -> ModelCall:
        sent = self.pieces.text
        return ModelCall(self.id, self.name, {"input": sent} if self.is_text else as_arguments(sent))


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._model = self._stop = self._problem = ""
        self._text, self._thought = Pieces(), Pieces()
        self._calls: dict[tuple[Any, Any], _Call] = {}
        self._usage: Mapping[str, Any] = {}
        self._tier = ""
        self._searched = False

    def event(self, data: Mapping[str, Any]) -> None:
        self._model = text(data, "model") or self._model
        self._usage = mapping(data, "usage") or self._usage
        self._tier = text(data, "service_tier") or self._tier
        if error := data.get("error"):
            told = text(error, "message") if isinstance(error, dict) else error
            self._problem = told if isinstance(told, str) and told else "an error without a message"
        for choice in objects(data, "choices"):
            self._choice(choice, mapping(choice, "delta"))

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        number = count(choice, "index") or 0
        cited = any(text(one, "type") == "url_citation" for one in objects(delta, "annotations"))
        self._searched = self._searched or cited
        self._stop = text(choice, "finish_reason") or self._stop
        if number == 0:
            self._text.add(_said(delta))
            self._thought.add(text(delta, "reasoning_content") or text(delta, "reasoning"))
        for place, told in enumerate(objects(delta, "tool_calls")):
            index = count(told, "index")
            call = self._calls.setdefault((number, place if index is None else index), _Call())
            call.is_text = call.is_text or bool(mapping(told, "custom"))
            function = mapping(told, "custom") or mapping(told, "function")
            call.id = text(told, "id") or call.id
            call.name += text(function, "name")
            call.pieces.add(text(function, "input") if call.is_text else text(function, "arguments"))

    def answer(self) -> Answer:
        finished = bool(self._stop) and not self._problem
        calls = [*self._calls.values()]
        # Nothing says that a call is complete, but that its arguments can be read or the answer has ended.
        whole = [call for call in calls if finished or call.made().arguments is not None]
        return Answer(
            model=self._model,
            text=self._text.text,
            thought=self._thought.text,
            calls=tuple(call.made() for call in whole),
            tokens=openai_tokens(self._usage, "prompt_tokens", "completion_tokens"),
            stop=self._stop,
            problem=self._problem,
            finished=finished,
            unread=sum(call.pieces.size for call in calls if call not in whole),
            extras=Extras(tier=self._tier, searches=int(self._searched)),
        )


def _said(delta: Mapping[str, Any]) -> str:
    """Some providers write parts, of text and of what was thought."""
    return text(delta, "content") or "".join(text(part, "text") for part in objects(delta, "content"))
