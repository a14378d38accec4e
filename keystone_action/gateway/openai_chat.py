"""OpenAI's Chat Completions API, which many other providers and routers have: its requests, its answers, whole or as a
stream, and streams made anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.api import AnswerReader, OpenAiApi, Rendered
from keystone_action.gateway.api_values import (
    Fields,
    Items,
    Pieces,
    Text,
    join_fields,
    model_of,
    names_of,
    openai_tokens,
    present,
    rendered_document,
    rendered_stream,
    replace,
    settled,
    split,
    typed_otherwise,
)
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, ToolResult
from keystone_action.gateway.request_body import reaches_out
from keystone_action.gateway.stream_calls import WRITTEN_IN_CHAT, ChatCalls
from keystone_action.pricing import Extras

_TEXTS = ("reasoning", "reasoning_content", "content", "refusal")
"""What a message says, in the order in which it is streamed."""
_NOT_KEPT = {"choices", "obfuscation"}
"""Of a chunk: what is put together elsewhere, and noise that hides the lengths of texts from who listens."""
_IN_EACH_CHUNK = ("id", "created", "model", "service_tier", "system_fingerprint")
_OF_CLIENTS = ("function", "custom")
"""The types of tools that the client runs."""
_SEARCHES = ("web_search_options", "search_parameters", "plugins")
"""How OpenAI, xAI and OpenRouter are told to search the web."""


class OpenAiChat(OpenAiApi):
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

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is not True:
            return rendered_document(document)
        with_usage = mapping(body, "stream_options").get("include_usage") is True
        return rendered_stream(completion_events(document, with_usage=with_usage), end=b"data: [DONE]\n\n")


class _Reader(AnswerReader):
    """is_whole: of an answer in one piece nothing more comes, whether it says why it stopped or not."""

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._model = self._stop = self._problem = ""
        self._text, self._thought = Pieces(), Pieces()
        self._completion = Fields()
        self._choices: dict[int, _Choice] = {}
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
        if self.keeps_document:
            replace(self._completion, {name: value for name, value in data.items() if name not in _NOT_KEPT})
        for choice in objects(data, "choices"):
            self._choice(choice, mapping(choice, "delta") or mapping(choice, "message"))

    def _choice(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        number = _number(choice, 0)
        cited = any(text(one, "type") == "url_citation" for one in objects(delta, "annotations"))
        self._searched = self._searched or cited
        self._stop = text(choice, "finish_reason") or self._stop
        if number == 0:
            self._text.add(_said(delta))
            self._thought.add(text(delta, "reasoning_content") or text(delta, "reasoning"))
        known = self._choices.setdefault(number, _Choice(number))
        known.calls.add(choice)
        if self.keeps_document:
            known.keep(choice, delta)

    def answer(self) -> Answer:
        finished = bool(self._stop) and not self._problem
        ended = finished or self._is_whole
        calls = [choice.calls for choice in self._choices.values()]
        made = [call for one in calls for call in _calls_made(one, finished=ended)]
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
            is_unsure=any(one.is_unsure for one in calls),
            has_partial_call=bool(lost),
            extras=Extras(tier=self._tier, searches=int(self._searched)),
        )

    def document(self) -> dict[str, Any]:
        choices = [choice.document() for choice in self._choices.values()]
        return {**self._completion, "object": "chat.completion", "choices": choices}


class _Choice:
    """A choice: its calls, and what else a document has of it."""

    def __init__(self, number: int) -> None:
        self._fields = Fields(index=number)
        self._message = Fields()
        self.calls = ChatCalls()

    def keep(self, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        """The next piece, all but its calls. Some servers tell a choice of a stream as if it came in one piece."""
        replace(self._fields, {k: v for k, v in choice.items() if k not in {"index", "delta", "message", "logprobs"}})
        join_fields(self._fields, {"logprobs": choice["logprobs"]} if "logprobs" in choice else {})
        calls = {"tool_calls", *(["function_call"] if delta.get("function_call") else [])}
        join_fields(self._message, {name: value for name, value in delta.items() if name not in {"content", *calls}})
        self._say(delta.get("content"))

    def _say(self, content: Any) -> None:
        """Some providers write parts first, of what was thought, then plain text."""
        known = self._message.get("content")
        if isinstance(content, list) and isinstance(known, str | Text) and known:
            known = self._message["content"] = Items([{"type": "text", "text": settled(known)}])
        if isinstance(content, list) or not isinstance(known, Items):
            join_fields(self._message, {"content": content})
        elif isinstance(content, str) and content:
            known.append({"type": "text", "text": content})

    def document(self) -> dict[str, Any]:
        message = Fields({"role": "assistant", "content": None, **self._message})
        calls, legacy = self.calls.documents()
        if calls:
            message["tool_calls"] = calls
        if legacy:
            message["function_call"] = legacy[0] if len(legacy) == 1 else legacy
        found: dict[str, Any] = settled(Fields({**self._fields, "message": message}))
        return found


def _calls_made(calls: ChatCalls, *, finished: bool) -> Iterator[tuple[ModelCall, str]]:
    """The calls of a choice, each with what was written."""
    documents, legacy = calls.documents()
    for told in (*documents, *({"function": one} for one in legacy)):
        yield _call(told, finished=finished)
    for name, told in calls.other_readings():
        call, written = _call(told, finished=finished)
        yield dataclasses.replace(call, name=name), written


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


def completion_events(document: Mapping[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The completion as its stream tells it; the first chunk has all fields that nobody knows. with_usage: whether the
    request asked for the chunk about usage."""
    usage = document.get("usage") if with_usage else None
    chunk = {"object": "chat.completion.chunk", **({} if usage is None else {"usage": None})}
    head = {name: document[name] for name in _IN_EACH_CHUNK if name in document} | chunk
    first = {name: value for name, value in document.items() if name != "usage"} | chunk
    choices = [one for number, choice in enumerate(objects(document, "choices")) for one in _pieces(number, choice)]
    yield {"choices": [], **first, **({"choices": choices[:1]} if choices else {})}
    yield from ({**head, "choices": [choice]} for choice in choices[1:])
    if usage is not None:
        yield {**head, "choices": [], "usage": usage}


def _pieces(number: int, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A choice as chunks have it."""
    place = {"index": choice.get("index", number)}
    yield from ({**place, "delta": delta, "finish_reason": None} for delta in _deltas(choice.get("message")))
    yield {**place, "delta": {}, **{name: value for name, value in choice.items() if name not in {"index", "message"}}}


def _deltas(message: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(message, dict):
        return
    said = {name: value for name in _TEXTS if isinstance(value := message.get(name), str)}
    calls = message.get("tool_calls")
    later = {"tool_calls"} if isinstance(calls, list) else set()
    yield {**{name: value for name, value in message.items() if name not in later}, **dict.fromkeys(said, "")}
    if said.get("reasoning") and said.get("reasoning_content"):  # one thought under two names
        first, *rest = split(said.pop("reasoning_content"))
        yield {"reasoning_content": first, "reasoning": said.pop("reasoning")}
        yield from ({"reasoning_content": piece} for piece in rest)
    for name, value in said.items():
        yield from ({name: piece} for piece in split(value) if piece)
    for number, call in enumerate(objects(message, "tool_calls")):
        place = {"index": _number(call, number)}
        name = next((name for name in WRITTEN_IN_CHAT if mapping(call, name)), "function")
        made, field = mapping(call, name), WRITTEN_IN_CHAT[name]
        written = text(made, field)
        yield {"tool_calls": [{**call, **place, **({name: {**made, field: ""}} if written else {})}]}
        yield from ({"tool_calls": [{**place, name: {field: piece}}]} for piece in split(written) if piece)


def _number(source: Mapping[str, Any], otherwise: int) -> int:
    found = source.get("index")
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else otherwise
