"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.answers import rendering
from keystone_action.gateway.answers.anthropic import CALLS, Blocks, MessageAssembler, message_events
from keystone_action.gateway.answers.joined import begins_again, json_objects
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


@dataclass(eq=False)
class _Block:
    kind: str
    id: str = ""
    name: str = ""
    arguments: Any = None
    pieces: Pieces = field(default_factory=Pieces)
    ended: bool = False
    begins_again: bool = False

    def add(self, piece: str) -> None:
        """The next piece of its text, or of the input of a call."""
        self.begins_again = self.begins_again or (self.pieces.size > 0 and begins_again(piece))
        self.pieces.add(piece)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments of this call have arrived."""
        if self.ended or not self.pieces.size:
            return self.ended
        return bool(json_objects(self.pieces.text))

    @property
    def is_unsure(self) -> bool:
        """Whether its input may begin again in the middle."""
        return self.begins_again and not json_objects(self.pieces.text)

    def calls(self) -> list[ModelCall]:
        """One for each time that its input begins."""
        said = self.pieces.text
        inputs = [self.arguments]
        if said:
            inputs = [as_arguments(one) for one in json_objects(said) or [said]]
            # Some clients take the input that a block begins with.
            inputs += [self.arguments] if self.arguments and self.arguments not in inputs else []
        name = f"mcp:{self.name}" if self.kind == "mcp_tool_use" else self.name
        by_provider = self.kind != "tool_use"
        return [ModelCall(self.id, name, one if isinstance(one, dict) else None, by_provider) for one in inputs]


class _Reader(AnswerReader):
    def __init__(self) -> None:
        self._blocks = Blocks[_Block]()
        self._is_unsure = False
        self._model = self._problem = self.stop = ""
        self._usage: dict[str, Any] = {}
        self.finished = False

    def event(self, data: Mapping[str, Any]) -> None:
        match data.get("type"):
            case "message_start":
                message = mapping(data, "message")
                self._model = text(message, "model")
                self._usage.update(mapping(message, "usage"))
                for told in objects(message, "content"):
                    self._add(told)
            case "content_block_start":
                self._start(data, mapping(data, "content_block"))
            case "content_block_delta" if block := self._blocks.of(data):
                delta = mapping(data, "delta")
                name = "partial_json" if block.kind in CALLS else "thinking" if block.kind == "thinking" else "text"
                block.add(text(delta, name))
            case "content_block_delta" if "partial_json" in mapping(data, "delta"):
                self._is_unsure = True  # the input of a call, but of which
            case "content_block_stop" if block := self._blocks.of(data):
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

    def _add(self, block: Mapping[str, Any]) -> None:
        """A block that came in one piece."""
        added = self._start(None, block)
        added.pieces = Pieces("" if added.kind in CALLS else text(block, added.kind))
        added.ended = True

    def _start(self, data: Mapping[str, Any] | None, told: Mapping[str, Any]) -> _Block:
        kind = text(told, "type")
        started = _Block(kind, text(told, "id"), text(told, "name"), told.get("input"))
        if kind not in CALLS:
            started.pieces.add(text(told, kind))
        before = self._blocks.start(data, started)
        if before is not None and before.kind in CALLS and not before.pieces.size:
            self._is_unsure = True  # whose input comes now? Anthropic's own library gives it to the first
        return started

    def answer(self) -> Answer:
        blocks = self._blocks.all
        calls = [block for block in blocks if block.kind in CALLS]
        lost = [block for block in calls if not (block.is_whole or self.finished)]
        return Answer(
            model=self._model,
            text="".join(block.pieces.text for block in blocks if block.kind == "text"),
            thought="".join(block.pieces.text for block in blocks if block.kind == "thinking"),
            calls=tuple(call for block in calls if block not in lost for call in block.calls()),
            tokens=Tokens(
                uncached=count(self._usage, "input_tokens"),
                cache_read=count(self._usage, "cache_read_input_tokens"),
                cache_write=count(self._usage, "cache_creation_input_tokens"),
                output=count(self._usage, "output_tokens"),
            ),
            stop=self.stop,
            problem=self._problem,
            finished=self.finished and not self._problem,
            unread=sum(block.pieces.size for block in lost),
            is_unsure=self._is_unsure or any(block.is_unsure for block in calls),
            has_partial_call=bool(lost),
            extras=Extras(
                speed=text(self._usage, "speed"),
                hour_writes=count(mapping(self._usage, "cache_creation"), "ephemeral_1h_input_tokens") or 0,
                searches=count(mapping(self._usage, "server_tool_use"), "web_search_requests") or 0,
            ),
        )


def _results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [block for block in objects(message, "content") if text(block, "type") == "tool_result"]


def _result(block: Mapping[str, Any]) -> ToolResult:
    failed = block.get("is_error") is True
    return ToolResult(text(block, "tool_use_id"), as_text(block.get("content")), "error" if failed else "ok")
