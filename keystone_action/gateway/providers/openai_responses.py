"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.answers import rendering
from keystone_action.gateway.answers.openai_responses import ResponseAssembler, ResponseItems, response_events
from keystone_action.gateway.exchange import Answer, AnswerReader, Asked, Assembler, ModelCall, Rendered, ToolResult
from keystone_action.gateway.providers.fetched import reaches_out
from keystone_action.gateway.providers.openai import OpenAi
from keystone_action.gateway.providers.values import Pieces, model_of, names_of, openai_tokens, present, typed_otherwise
from keystone_action.pricing import Extras

_OF_CLIENTS = ("function", "custom", "namespace", "local_shell", "apply_patch", "computer", "tool_search")
"""How the types of tools begin that the client runs. `shell` is run where its environment says."""
_TOLD = ("query", "queries", "code", "revised_prompt")
"""What an item tells of a call that the provider ran, besides its `action`."""
_BILLED = {"file_search_call", "code_interpreter_call", "image_generation_call"}
"""Calls that cost something besides tokens, and no price of ours is for them."""
_ENDS = {"response.completed", "response.incomplete", "response.failed"}


class OpenAiResponses(OpenAi):
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

    def assembler(self) -> Assembler:
        return ResponseAssembler()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is True:
            return rendering.stream(response_events(document), named=True)
        return rendering.document(document)


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._items = ResponseItems()
        self._deltas = Pieces()
        self._response: Mapping[str, Any] = {}
        self._problem = ""
        self._finished = False

    def event(self, data: Mapping[str, Any]) -> None:
        self._items.event(data)
        kind = text(data, "type")
        if kind == "response.output_item.done":
            self._deltas.clear()
        elif kind == "response.output_text.delta":
            self._deltas.add(text(data, "delta"))
        elif kind in {"response.created", "response.in_progress"}:
            self._response = mapping(data, "response")
        elif kind in _ENDS:
            self._response = mapping(data, "response")
            self._finished = kind != "response.failed"
            if kind == "response.failed":
                self._problem = _message(self._response.get("error"))
        elif kind == "error":
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


def _is_local_shell(tool: Mapping[str, Any]) -> bool:
    return text(tool, "type") == "shell" and text(mapping(tool, "environment"), "type") == "local"


def _all_tools(tools: list[Mapping[str, Any]], depth: int = 8) -> list[Mapping[str, Any]]:
    """Tools, and those in namespaces of tools."""
    inner = [tool for outer in tools for tool in objects(outer, "tools")] if depth else []
    return [
        *(tool for tool in tools if not objects(tool, "tools")),
        *(_all_tools(inner, depth - 1) if inner else []),
    ]


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
