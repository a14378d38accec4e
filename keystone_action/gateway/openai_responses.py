"""OpenAI's Responses API: its requests, its answers, whole or as a stream, and streams made anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.api import AnswerReader, OpenAiApi, Rendered
from keystone_action.gateway.api_values import (
    Pieces,
    kind,
    model_of,
    names_of,
    openai_tokens,
    present,
    rendered_document,
    rendered_stream,
    split,
    typed_otherwise,
)
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, ToolResult
from keystone_action.gateway.request_body import reaches_out
from keystone_action.gateway.stream_calls import WRITTEN_ITEMS, ResponseItems
from keystone_action.pricing import Extras

_ENDS = ("response.completed", "response.incomplete", "response.failed")
_RESPONSES = {"response.created", "response.queued", "response.in_progress", *_ENDS}
"""Events that have the response as it is then."""
_PARTS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
"""Parts of an item that are texts, and under which name."""

Event = dict[str, Any]
_OF_CLIENTS = ("function", "custom", "namespace", "local_shell", "apply_patch", "computer", "tool_search")
"""How the types of tools begin that the client runs. `shell` is run where its environment says."""
_TOLD = ("query", "queries", "code", "revised_prompt")
"""What an item tells of a call that the provider ran, besides its `action`."""
_BILLED = {"file_search_call", "code_interpreter_call", "image_generation_call"}
"""Calls that cost something besides tokens, and no price of ours is for them."""


class OpenAiResponses(OpenAiApi):
    """`POST /v1/responses`, as a stream or in one piece."""

    title = "OpenAI Responses"
    conversation_field = "input"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:  # noqa: ARG002 - its model stands in the body
        items = objects(body, "input")
        tools = list(
            _all_tools([*objects(body, "tools"), *(tool for item in items for tool in objects(item, "tools"))])
        )
        elsewhere = [tool for tool in tools if not _is_local_shell(tool)]
        return Asked(
            model=model_of(body),
            streams=body.get("stream") is True,
            background=body.get("background") not in (None, False),
            tools=names_of(tools),
            run_by_provider=(
                *typed_otherwise(elsewhere, _OF_CLIENTS),
                *present(body),
                *(["stored prompt"] if body.get("prompt") is not None else []),
                *reaches_out(body, model_of(body), "input"),
            ),
            results=tuple(
                ToolResult(text(item, "call_id"), as_text(item.get("output")))
                for item in items
                if text(item, "type").endswith("_call_output")
            ),
            conversation=len(items) if items else 1,
        )

    def whole(self, body: Any) -> Answer:
        reader = _Reader()
        if isinstance(body, dict):
            is_error = "output" not in body and ("error" in body or text(body, "type") == "error")
            if is_error or "output" in body:
                reader.event({"type": "error", **body} if is_error else {"type": _ended(body), "response": body})
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is True:
            return rendered_stream(response_events(document), named=True)
        return rendered_document(document)


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._items = ResponseItems()
        self._deltas = Pieces()
        self._response: Mapping[str, Any] = {}
        self._error: Mapping[str, Any] = {}
        self._problem = ""
        self._finished = False

    def event(self, data: Mapping[str, Any]) -> None:
        self._items.event(data)
        kind = text(data, "type")
        if kind == "response.output_item.done":
            self._deltas.clear()
        elif kind == "response.output_text.delta":
            self._deltas.add(text(data, "delta"))
        elif kind in _RESPONSES:
            self._response = mapping(data, "response") or self._response
            self._finished = self._finished if kind not in _ENDS else kind != "response.failed"
            if kind == "response.failed":
                self._problem = _message(self._response.get("error"))
        elif kind == "error":
            self._error = data
            self._problem = text(data, "message") or _message(data.get("error"))

    def answer(self) -> Answer:
        usage, told = mapping(self._response, "usage"), self._items.all()
        items = [item for item, is_whole in told if isinstance(item, dict) and (is_whole or self._finished)]
        lost = [item for item, is_whole in told if not is_whole and not self._finished]
        spoken = [_spoken(item, "content", "text") for item in items if text(item, "type") == "message"]
        spoken += [] if self._finished else [self._deltas.text]
        thoughts = [_spoken(item, "summary", "text") for item in items if text(item, "type") == "reasoning"]
        reason = text(mapping(self._response, "incomplete_details"), "reason")
        return Answer(
            model=text(self._response, "model"),
            text="".join(spoken),
            thought="\n".join(filter(None, thoughts)),
            calls=tuple(call for item in items if (call := _call(item)) is not None),
            tokens=openai_tokens(usage, "input_tokens", "output_tokens"),
            stop=reason or (text(self._response, "status") if self._finished else ""),
            problem=self._problem,
            finished=self._finished and not self._problem,
            unread=sum(len(text(item, "arguments") or text(item, "input")) for item in lost),
            is_unsure=self._items.is_unsure,
            has_partial_call=bool(lost),
            extras=Extras(
                tier=text(self._response, "service_tier"),
                searches=sum(text(item, "type") == "web_search_call" for item in items),
                has_others=any(text(item, "type") in _BILLED for item in items),
            ),
        )

    def document(self) -> dict[str, Any]:
        if self._error and not self._response:
            return dict(self._error)
        failed = {"status": "failed", "error": mapping(self._error, "error") or dict(self._error)}
        items = [item for item, _ in self._items.all()]
        return {**self._response, "output": items, **(failed if self._error else {})}


def _is_local_shell(tool: Mapping[str, Any]) -> bool:
    return text(tool, "type") == "shell" and text(mapping(tool, "environment"), "type") == "local"


def _all_tools(tools: list[Mapping[str, Any]], depth: int = 8) -> list[Mapping[str, Any]]:
    """Tools, and those in namespaces of tools."""
    inner = [tool for outer in tools for tool in objects(outer, "tools")] if depth else []
    return [*(tool for tool in tools if not objects(tool, "tools")), *(_all_tools(inner, depth - 1) if inner else [])]


def _call(item: Mapping[str, Any]) -> ModelCall | None:
    match text(item, "type"):
        case "function_call":
            # Many servers write nothing where a tool takes no arguments.
            return ModelCall(text(item, "call_id"), _name(item), as_arguments(item.get("arguments") or {}))
        case "custom_tool_call":
            return ModelCall(text(item, "call_id"), _name(item), {"input": text(item, "input")})
        case "local_shell_call" | "shell_call" | "apply_patch_call" | "computer_call" as kind:
            action = mapping(item, "action") or mapping(item, "operation")
            return ModelCall(text(item, "call_id"), kind.removesuffix("_call"), dict(action))
        case "tool_search_call":
            return None  # it looks among the request's own tools
        case "mcp_call":
            name = f"mcp:{text(item, 'name')}"
            return ModelCall(text(item, "id"), name, as_arguments(item.get("arguments")), by_provider=True)
        case kind if kind.endswith("_call"):
            told = {name: item[name] for name in _TOLD if item.get(name)}
            arguments = {**mapping(item, "action"), **told}
            return ModelCall(text(item, "id"), kind.removesuffix("_call"), arguments, by_provider=True)
        case _:
            return None


def _name(item: Mapping[str, Any]) -> str:
    """Of the tool, with the namespace that it is in: an MCP server may call a tool as the client calls one of its
    own."""
    namespace, name = text(item, "namespace"), text(item, "name")
    return f"{namespace}__{name}" if namespace else name


def _spoken(item: Mapping[str, Any], parts: str, name: str) -> str:
    return "".join(text(part, name) or text(part, "refusal") for part in objects(item, parts))


def _ended(body: Mapping[str, Any]) -> str:
    status = text(body, "status")
    return f"response.{status}" if f"response.{status}" in _ENDS else "response.incomplete"


def _message(error: Any) -> str:
    told = text(error, "message") if isinstance(error, dict) else ""
    return told or "an error without a message"


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
    name, events = WRITTEN_ITEMS.get(kind(item), ("", ""))
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
