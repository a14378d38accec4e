"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.trace_readers.values import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.answers import rendering
from keystone_action.gateway.answers.anthropic import MessageAssembler, message_events
from keystone_action.gateway.exchange import (
    Answer,
    AnswerReader,
    Asked,
    Assembler,
    ModelCall,
    Provider,
    Rendered,
    Tokens,
    ToolResult,
)
from keystone_action.gateway.providers.fetched import reaches_out
from keystone_action.gateway.providers.values import Pieces, count, model_of, names_of, present, typed_otherwise
from keystone_action.pricing import Extras

_OF_CLIENTS = ("custom", "bash_", "text_editor_", "computer_", "memory_", "tool_search_tool_")
"""How the types of tools begin that the client runs. (A search among the request's own tools goes nowhere.)"""
_CALLS = {"tool_use", "server_tool_use", "mcp_tool_use"}
"""Blocks that are calls of tools. The provider runs all but the first kind."""
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 426: "upgrade_required"}


class Anthropic(Provider):
    """`POST /v1/messages`, as a stream or in one piece."""

    name = "anthropic"
    title = "Anthropic Messages"
    conversation_field = "messages"

    def asked(self, body: Mapping[str, Any], path: str) -> Asked:  # noqa: ARG002 - its model stands in the body
        tools = objects(body, "tools")
        messages = objects(body, "messages")
        return Asked(
            model=model_of(body),
            streams=body.get("stream") is True,
            tools=names_of(tools),
            run_by_provider=(
                *typed_otherwise(tools, _OF_CLIENTS),
                *present(body, "mcp_servers"),
                *reaches_out(body, model_of(body), "system", "messages"),
            ),
            results=tuple(_result(block) for message in messages for block in _results(message)),
            conversation=len(messages),
        )

    def whole(self, body: Any) -> Answer:
        reader = _Reader()
        if isinstance(body, dict):
            reader.event({"type": "error", **body} if text(body, "type") == "error" else {**_START, "message": body})
            for block in objects(body, "content"):
                reader.add(block)
            reader.stop, reader.finished = text(body, "stop_reason"), text(body, "type") == "message"
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def assembler(self) -> Assembler:
        return MessageAssembler()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is True:
            return rendering.stream(message_events(document), named=True)
        return rendering.document(document)

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": sentence}}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}

    def one_model(self, name: str) -> dict[str, Any]:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    def models(self, names: Sequence[str]) -> dict[str, Any]:
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return {"data": [self.one_model(name) for name in names], "has_more": False, **ends}


_START = {"type": "message_start"}


@dataclass
class _Block:
    kind: str
    id: str = ""
    name: str = ""
    arguments: Any = None
    pieces: Pieces = field(default_factory=Pieces)
    ended: bool = False

    def call(self) -> ModelCall:
        arguments = as_arguments(self.pieces.text) if self.pieces.size else self.arguments
        name = f"mcp:{self.name}" if self.kind == "mcp_tool_use" else self.name
        by_provider = self.kind != "tool_use"
        return ModelCall(self.id, name, arguments if isinstance(arguments, dict) else None, by_provider)


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._blocks: dict[Any, _Block] = {}
        self._model = self._problem = self.stop = ""
        self._usage: dict[str, Any] = {}
        self.finished = False

    def event(self, data: Mapping[str, Any]) -> None:
        match data.get("type"):
            case "message_start":
                message = mapping(data, "message")
                self._model = text(message, "model")
                self._usage.update(mapping(message, "usage"))
            case "content_block_start":
                self._start(data.get("index"), mapping(data, "content_block"))
            case "content_block_delta" if block := self._blocks.get(_key(data.get("index"))):
                delta = mapping(data, "delta")
                name = "partial_json" if block.kind in _CALLS else "thinking" if block.kind == "thinking" else "text"
                block.pieces.add(text(delta, name))
            case "content_block_stop" if block := self._blocks.get(_key(data.get("index"))):
                block.ended = True
            case "message_delta":
                self.stop = text(mapping(data, "delta"), "stop_reason") or self.stop
                told = mapping(data, "usage")
                # It repeats what it knows; a null is no new count.
                self._usage.update({name: value for name, value in told.items() if value is not None})
            case "message_stop":
                self.finished = True
            case "error":
                self._problem = text(mapping(data, "error"), "message") or "an error without a message"

    def add(self, block: Mapping[str, Any]) -> None:
        """A block that came in one piece."""
        added = self._start(len(self._blocks), block)
        added.pieces = Pieces("" if added.kind in _CALLS else text(block, added.kind))
        added.ended = True

    def _start(self, index: Any, block: Mapping[str, Any]) -> _Block:
        kind = text(block, "type")
        started = _Block(kind, text(block, "id"), text(block, "name"), block.get("input"))
        if kind not in _CALLS:
            started.pieces.add(text(block, kind))
        self._blocks[_key(index)] = started
        return started

    def answer(self) -> Answer:
        blocks = [*self._blocks.values()]
        calls = [block for block in blocks if block.kind in _CALLS]
        return Answer(
            model=self._model,
            text="".join(block.pieces.text for block in blocks if block.kind == "text"),
            thought="".join(block.pieces.text for block in blocks if block.kind == "thinking"),
            calls=tuple(block.call() for block in calls if block.ended),
            tokens=Tokens(
                uncached=count(self._usage, "input_tokens"),
                cache_read=count(self._usage, "cache_read_input_tokens"),
                cache_write=count(self._usage, "cache_creation_input_tokens"),
                output=count(self._usage, "output_tokens"),
            ),
            stop=self.stop,
            problem=self._problem,
            finished=self.finished and not self._problem,
            unread=sum(block.pieces.size for block in calls if not block.ended),
            extras=Extras(
                speed=text(self._usage, "speed"),
                hour_writes=count(mapping(self._usage, "cache_creation"), "ephemeral_1h_input_tokens") or 0,
                searches=count(mapping(self._usage, "server_tool_use"), "web_search_requests") or 0,
            ),
        )


def _key(index: Any) -> Any:
    return index if isinstance(index, int | str) else None


def _results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [block for block in objects(message, "content") if text(block, "type") == "tool_result"]


def _result(block: Mapping[str, Any]) -> ToolResult:
    failed = block.get("is_error") is True
    return ToolResult(text(block, "tool_use_id"), as_text(block.get("content")), "error" if failed else "ok")
