"""OpenAI's Chat Completions API, which many other providers and routers have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.answers import rendering
from keystone_action.gateway.answers.openai_chat import ChatCalls, CompletionAssembler, completion_events
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
                ToolResult(text(message, "tool_call_id"), as_text(message.get("content")), name=_called(message))
                for message in messages
                if text(message, "role") in {"tool", "function"}
            ),
            conversation=len(messages),
        )

    def whole(self, body: Any) -> Answer:
        reader = _Reader(is_whole=True)
        if isinstance(body, dict):
            reader.event(body)
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


class _Reader(AnswerReader):
    """is_whole: of an answer in one piece nothing more comes, whether it says why it stopped or not."""

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._model = self._stop = self._problem = ""
        self._text, self._thought = Pieces(), Pieces()
        self._calls: dict[int, ChatCalls] = {}
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
            self._choice(choice, mapping(choice, "delta") or mapping(choice, "message"))

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        number = count(choice, "index") or 0
        cited = any(text(one, "type") == "url_citation" for one in objects(delta, "annotations"))
        self._searched = self._searched or cited
        self._stop = text(choice, "finish_reason") or self._stop
        if number == 0:
            self._text.add(_said(delta))
            self._thought.add(text(delta, "reasoning_content") or text(delta, "reasoning"))
        self._calls.setdefault(number, ChatCalls()).add(choice)

    def answer(self) -> Answer:
        finished = bool(self._stop) and not self._problem
        ended = finished or self._is_whole
        made = [call for calls in self._calls.values() for call in _made(calls, finished=ended)]
        # Nothing says that a call is complete, but that its arguments can be read or the answer has ended.
        whole = tuple(call for call, _ in made if ended or call.arguments is not None)
        lost = [written for call, written in made if not ended and call.arguments is None]
        return Answer(
            model=self._model,
            text=self._text.text,
            thought=self._thought.text,
            calls=whole,
            tokens=openai_tokens(self._usage, "prompt_tokens", "completion_tokens"),
            stop=self._stop,
            problem=self._problem,
            finished=finished,
            unread=sum(map(len, lost)),
            is_unsure=any(calls.is_unsure for calls in self._calls.values()),
            has_partial_call=bool(lost),
            extras=Extras(tier=self._tier, searches=int(self._searched)),
        )


def _made(calls: ChatCalls, *, finished: bool) -> Iterator[tuple[ModelCall, str]]:
    """The calls of a choice, each with what was written."""
    documents, legacy = calls.documents()
    for told in (*documents, *({"function": one} for one in legacy)):
        yield _call(told, finished=finished)
    for name, told in calls.other_readings():
        call, written = _call(told, finished=finished)
        yield replace(call, name=name), written


def _call(told: Mapping[str, Any], *, finished: bool) -> tuple[ModelCall, str]:
    custom = mapping(told, "custom")
    written = (custom or mapping(told, "function")).get("input" if custom else "arguments")
    shown = written if isinstance(written, str) else as_text(written)
    # Many servers write nothing where a tool takes no arguments.
    arguments = {"input": shown} if custom else as_arguments(written if shown or not finished else {})
    return ModelCall(text(told, "id"), text(custom or mapping(told, "function"), "name"), arguments), shown


def _called(message: Mapping[str, Any]) -> str:
    """The older form has no ids: a result belongs to a call by its tool's name."""
    return text(message, "name") if text(message, "role") == "function" else ""


def _said(delta: Mapping[str, Any]) -> str:
    """Some providers write parts, of text and of what was thought."""
    return text(delta, "content") or "".join(text(part, "text") for part in objects(delta, "content"))
