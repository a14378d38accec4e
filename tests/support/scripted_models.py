"""A model that follows a script, in the forms of all four APIs, streamed or whole, as real clients take them; and a log
of what it said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.scripted_provider import Asked, Says, document

Events = list[tuple[str, dict[str, Any]]]
STREAM = (("content-type", "text/event-stream"),)


@dataclass(frozen=True)
class Turn:
    """One answer: calls of tools, else a text. read, written: tokens; of read, `cached` came from a cache."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    read: int = 1000
    cached: int = 0
    written: int = 20


SIDE = Turn(text='{"title": "A title"}', read=30, written=5)
"""For what a client asks besides: a request without tools."""


@dataclass
class ScriptedModel:
    """turns: answers to requests with tools, the last one again and again. offers_tools: whether the client does;
    requests without tools are beside the point then. said: all that was answered; asked, models: what and who was asked
    each time."""

    turns: Sequence[Turn]
    offers_tools: bool = True
    said: list[Turn] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    models: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, Mapping[str, Any]]]:
        """All that it asked for."""
        return [call for turn in self.said for call in turn.calls]

    def answer(self, asked: Asked) -> Says:
        """For `support.scripted_provider`."""
        path = asked.target.partition("?")[0]
        if asked.method != "POST":
            return document({})
        body = asked.document
        if path.endswith(("count_tokens", ":countTokens")):
            return document({"input_tokens": 10, "totalTokens": 10})
        number = sum(turn is not SIDE for turn in self.said)
        turn = self.turns[min(number, len(self.turns) - 1)] if _has_tools(body) or not self.offers_tools else SIDE
        self.said.append(turn)
        model = body.get("model", path.partition("/models/")[2].partition(":")[0])
        self.models.append(model)
        self.asked.append(asked)
        for ending, say in _APIS.items():
            if path.endswith(ending):
                return say(turn, str(len(self.said)), model, stream="stream" in path or bool(body.get("stream")))
        return document({"error": {"message": f"nothing at {path}"}}, 404)


def _has_tools(body: Mapping[str, Any]) -> bool:
    """Codex may have them in an item of its input."""
    items = body.get("input")
    return bool(body.get("tools")) or (isinstance(items, list) and any(item.get("tools") for item in items))


def _sent(events: Events, *, named: bool, done: bytes = b"") -> Says:
    def line(name: str, data: dict[str, Any]) -> bytes:
        head = f"event: {name}\n" if named else ""
        return f"{head}data: {json.dumps(data)}\n\n".encode()

    return Says(pieces=[*(line(*event) for event in events), *([done] if done else [])], headers=STREAM)


def _calls(turn: Turn, turn_id: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for number, (name, arguments) in enumerate(turn.calls):
        yield f"call_{turn_id}_{number}", name, json.dumps(arguments), arguments


def _messages(turn: Turn, turn_id: str, model: str, *, stream: bool) -> Says:
    usage = {
        "input_tokens": turn.read - turn.cached,
        "cache_read_input_tokens": turn.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": turn.written,
    }
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    blocks += [{"type": "tool_use", "id": f"toolu_{one}", "name": name, "input": arguments}
               for one, name, _, arguments in _calls(turn, turn_id)]  # fmt: skip
    stop = "tool_use" if turn.calls else "end_turn"
    message = {"id": f"msg_{turn_id}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
    if not stream:
        return document({**message, "content": blocks, "stop_reason": stop, "usage": usage})
    began = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": began}]
    for index, block in enumerate(blocks):
        empty, delta = (
            ({"text": ""}, {"type": "text_delta", "text": block["text"]})
            if block["type"] == "text"
            else ({"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
        )
        events += [
            {"type": "content_block_start", "index": index, "content_block": {**block, **empty}},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"stop_reason": stop, "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": turn.written}},
        {"type": "message_stop"},
    ]
    return _sent([(event["type"], event) for event in events], named=True)


def _responses(turn: Turn, turn_id: str, model: str, *, stream: bool) -> Says:
    output: list[dict[str, Any]] = []
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        output.append({"type": "message", "id": f"msg_{turn_id}", "role": "assistant", "content": content})
    for one, name, arguments, _ in _calls(turn, turn_id):
        namespace, _, tool = name.rpartition("/")  # where the client has put it into one
        inside = {"namespace": namespace} if namespace else {}
        output.append(
            {"type": "function_call", "id": f"fc_{one}", "call_id": one, "name": tool, **inside, "arguments": arguments}
        )
    usage = {
        "input_tokens": turn.read,
        "input_tokens_details": {"cached_tokens": turn.cached},
        "output_tokens": turn.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.read + turn.written,
    }
    response = {"id": f"resp_{turn_id}", "object": "response", "created_at": 1795307363, "model": model, "error": None}
    whole = {**response, "status": "completed", "output": output, "usage": usage}
    if not stream:
        return document(whole)
    began = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": began}]
    for index, item in enumerate(output):
        started = {**item, "arguments": ""} if "arguments" in item else {**item, "content": []}
        events.append({"type": "response.output_item.added", "output_index": index, "item": started})
        delta = {"item_id": item["id"], "output_index": index, "content_index": 0}
        if item["type"] == "message":
            events.append({"type": "response.output_text.delta", "delta": turn.text, **delta})
        else:
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **delta})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return _sent([(event["type"], {**event, "sequence_number": n}) for n, event in enumerate(events)], named=True)


def _chat(turn: Turn, turn_id: str, model: str, *, stream: bool) -> Says:
    calls = [
        {"index": number, "id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (one, name, arguments, _) in enumerate(_calls(turn, turn_id))
    ]
    usage = {
        "prompt_tokens": turn.read,
        "completion_tokens": turn.written,
        "total_tokens": turn.read + turn.written,
        "prompt_tokens_details": {"cached_tokens": turn.cached},
    }
    stop = "tool_calls" if calls else "stop"
    said = {"role": "assistant", "content": turn.text or None, **({"tool_calls": calls} if calls else {})}
    head = {"id": f"chatcmpl-{turn_id}", "created": 1795307363, "model": model}
    if not stream:
        choice = {"index": 0, "message": said, "finish_reason": stop}
        return document({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**head, "object": "chat.completion.chunk"}
    events: Events = [
        ("", {**chunk, "choices": [{"index": 0, "delta": said, "finish_reason": None}]}),
        ("", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]}),
        ("", {**chunk, "choices": [], "usage": usage}),
    ]
    return _sent(events, named=False, done=b"data: [DONE]\n\n")


def _generate(turn: Turn, turn_id: str, model: str, *, stream: bool) -> Says:
    parts: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
    parts += [{"functionCall": {"id": one, "name": name, "args": arguments}}
              for one, name, _, arguments in _calls(turn, turn_id)]  # fmt: skip
    answer = {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": turn.read,
            "cachedContentTokenCount": turn.cached,
            "candidatesTokenCount": turn.written,
            "totalTokenCount": turn.read + turn.written,
        },
        "modelVersion": model,
        "responseId": f"r{turn_id}",
    }
    return _sent([("", answer)], named=False) if stream else document(answer)


_APIS: Mapping[str, Callable[..., Says]] = {
    "/messages": _messages,
    "/responses": _responses,
    "/chat/completions": _chat,
    "enerateContent": _generate,
}
