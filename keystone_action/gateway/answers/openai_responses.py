"""Answers of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.values import mapping, objects, text
from keystone_action.gateway.answers.joined import kind
from keystone_action.gateway.answers.rendering import split
from keystone_action.gateway.exchange import Assembler

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_RESPONSES = {"response.created", "response.queued", "response.in_progress", *_ENDS}
"""Events that have the response as it is then."""
_WRITTEN = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""Items that a model writes as a text: under which name, and what the events about it are called."""
_PARTS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
"""Parts of an item that are texts, and under which name."""

Event = dict[str, Any]


class ResponseAssembler(Assembler):
    """Puts a `response` together. Its last event has all items again, and then it alone decides."""

    def __init__(self) -> None:
        self._response: Mapping[str, Any] = {}
        self._items: list[Any] = []
        self._error: Mapping[str, Any] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        name = text(data, "type")
        if name == "response.output_item.done":
            self._items.append(data.get("item"))
        elif name in _RESPONSES:
            self._response = mapping(data, "response") or self._response
        elif name == "error":
            self._error = data

    def document(self) -> dict[str, Any]:
        if self._error and not self._response:
            return dict(self._error)
        items = objects(self._response, "output") and self._response["output"]
        failed = {"status": "failed", "error": mapping(self._error, "error") or dict(self._error)}
        return {**self._response, "output": items or self._items, **(failed if self._error else {})}


def response_events(document: Mapping[str, Any]) -> Iterator[Event]:
    """The response as its stream tells it."""
    for number, event in enumerate(_events(document)):
        yield {"type": event.pop("type"), "sequence_number": number, **event}


def _events(document: Mapping[str, Any]) -> Iterator[Event]:
    if "output" not in document and ("error" in document or kind(document) == "error"):
        yield {**document, "type": "error"}
        return
    later = {name: None for name in ("usage", "error", "incomplete_details", "completed_at") if name in document}
    began = {**document, **later, "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": began}
    yield {"type": "response.in_progress", "response": began}
    items = document.get("output")
    for index, item in enumerate(items if isinstance(items, list) else []):
        place = {"output_index": index}
        started, told = _item(item) if isinstance(item, dict) else (item, [])
        yield {"type": "response.output_item.added", **place, "item": started}
        for event in told:
            yield {"type": event.pop("type"), "item_id": text(item, "id"), **place, **event}
        yield {"type": "response.output_item.done", **place, "item": item}
    ended = f"response.{text(document, 'status')}"
    yield {"type": ended if ended in _ENDS else "response.incomplete", "response": dict(document)}


def _item(item: dict[str, Any]) -> tuple[Event, list[Event]]:
    """An item as it is added, and the events until it is done."""
    started = {**item, "status": "in_progress"} if "status" in item else dict(item)
    if kind(item) == "message":
        return {**started, "content": []}, list(_parts(item))
    if kind(item) == "reasoning":
        empty: Event = {name: [] for name in ("summary", "content") if isinstance(item.get(name), list)}
        return {**started, **empty}, [*_summaries(item), *_parts(item)]
    name, events = _WRITTEN.get(kind(item), ("", ""))
    if not (name and isinstance(item.get(name), str)):
        return started, []
    named = {"name": item["name"]} if kind(item) == "function_call" and "name" in item else {}
    deltas: list[Event] = [{"type": f"response.{events}.delta", "delta": piece} for piece in split(item[name])]
    return {**started, name: ""}, [*deltas, {"type": f"response.{events}.done", name: item[name], **named}]


def _summaries(item: Mapping[str, Any]) -> Iterator[Event]:
    for index, part in enumerate(objects(item, "summary")):
        place, said = {"summary_index": index}, text(part, "text")
        yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
        for piece in split(said):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": said}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _parts(item: Mapping[str, Any]) -> Iterator[Event]:
    for index, part in enumerate(objects(item, "content")):
        place, name = {"content_index": index}, _PARTS.get(kind(part), "")
        if not (name and isinstance(part.get(name), str)):
            yield {"type": "response.content_part.added", **place, "part": part}
        else:
            noted = objects(part, "annotations")
            yield {"type": "response.content_part.added", **place, "part": _empty(part, name)}
            yield from ({**event, **place} for event in _said(kind(part), name, part))
            for number, one in enumerate(noted):
                told = {"annotation_index": number, "annotation": one}
                yield {"type": "response.output_text.annotation.added", **place, **told}
        yield {"type": "response.content_part.done", **place, "part": part}


def _empty(part: Mapping[str, Any], name: str) -> Event:
    lists: Event = {one: [] for one in ("annotations", "logprobs") if isinstance(part.get(one), list)}
    return {**part, name: "", **lists}


def _said(events: str, name: str, part: Mapping[str, Any]) -> Iterator[Event]:
    likely = events == "output_text"
    for piece in split(part[name]):
        yield {"type": f"response.{events}.delta", "delta": piece, **({"logprobs": []} if likely else {})}
    chances = {"logprobs": part.get("logprobs") or []} if likely else {}
    yield {"type": f"response.{events}.done", name: part[name], **chances}
