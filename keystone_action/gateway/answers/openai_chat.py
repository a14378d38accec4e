"""Answers of OpenAI's Chat Completions API, and of those who have one like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.values import mapping, objects, text
from keystone_action.gateway.answers.joined import Fields, Items, Text, join, replace, settled
from keystone_action.gateway.answers.rendering import split
from keystone_action.gateway.exchange import Assembler

_TEXTS = ("reasoning", "reasoning_content", "content", "refusal")
"""What a message says, in the order in which it is streamed."""
_NOT_KEPT = {"choices", "obfuscation"}
"""Of a chunk: what is put together elsewhere, and noise that hides the lengths of texts from who listens."""
_IN_EACH_CHUNK = ("id", "created", "model", "service_tier", "system_fingerprint")
_WRITTEN = {"function": "arguments", "custom": "input"}
"""Kinds of calls, and under which name of theirs stands what the model wrote."""


class CompletionAssembler(Assembler):
    """Puts a `chat.completion` together."""

    def __init__(self) -> None:
        self._completion = Fields()
        self._choices: dict[int, _Choice] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        replace(self._completion, {name: value for name, value in data.items() if name not in _NOT_KEPT})
        for choice in objects(data, "choices"):
            number = _number(choice, 0)
            self._choices.setdefault(number, _Choice(number)).add(choice)

    def document(self) -> dict[str, Any]:
        choices = [choice.document() for choice in self._choices.values()]
        return {**self._completion, "object": "chat.completion", "choices": choices}


class _Choice:
    def __init__(self, number: int) -> None:
        self._fields = Fields(index=number)
        self._message = Fields()
        self._calls: dict[int, Fields] = {}

    def add(self, choice: Mapping[str, Any]) -> None:
        replace(self._fields, {k: v for k, v in choice.items() if k not in {"index", "delta", "message", "logprobs"}})
        join(self._fields, {"logprobs": choice["logprobs"]} if "logprobs" in choice else {})
        delta = mapping(choice, "delta")
        join(self._message, {name: value for name, value in delta.items() if name not in {"content", "tool_calls"}})
        self._say(delta.get("content"))
        for place, told in enumerate(objects(delta, "tool_calls")):
            call = self._calls.setdefault(_number(told, place), Fields())
            join(call, {name: value for name, value in told.items() if name != "index"})

    def _say(self, content: Any) -> None:
        """Some providers write parts first, of what was thought, then plain text."""
        known = self._message.get("content")
        if isinstance(content, list) and isinstance(known, str | Text) and known:
            known = self._message["content"] = Items([{"type": "text", "text": settled(known)}])
        if isinstance(content, list) or not isinstance(known, Items):
            join(self._message, {"content": content})
        elif isinstance(content, str) and content:
            known.append({"type": "text", "text": content})

    def document(self) -> dict[str, Any]:
        message = Fields({"role": "assistant", "content": None, **self._message})
        if self._calls:
            message["tool_calls"] = Items(self._calls.values())
        found: dict[str, Any] = settled(Fields({**self._fields, "message": message}))
        return found


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
        name = next((name for name in _WRITTEN if mapping(call, name)), "function")
        made, field = mapping(call, name), _WRITTEN[name]
        written = text(made, field)
        yield {"tool_calls": [{**call, **place, **({name: {**made, field: ""}} if written else {})}]}
        yield from ({"tool_calls": [{**place, name: {field: piece}}]} for piece in split(written) if piece)


def _number(source: Mapping[str, Any], otherwise: int) -> int:
    found = source.get("index")
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else otherwise
