"""Anthropic's Messages API: its requests, its answers, whole or as a stream, and streams made anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystone_action.evidence.trace_readers.builder import as_arguments, as_text, mapping, objects, text
from keystone_action.gateway.api import AnswerReader, ModelApi, Rendered
from keystone_action.gateway.api_values import (
    Fields,
    Items,
    Pieces,
    Text,
    begins_again,
    extend,
    join_fields,
    json_objects,
    kind,
    model_of,
    names_of,
    present,
    rendered_document,
    rendered_stream,
    replace,
    settled,
    split,
    typed_otherwise,
    whole_count,
    written,
)
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, Tokens, ToolResult
from keystone_action.gateway.request_body import reaches_out
from keystone_action.pricing import Extras

_EMPTY: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
CALLS = {"tool_use", "server_tool_use", "mcp_tool_use"}
"""Blocks that are calls of tools. The provider runs all but the first kind."""
_AT_THE_END = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Of a message; the `delta` of the last event but one has them."""
_USED_AT_THE_END = {
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
    "iterations",
}
_OF_CLIENTS = ("custom", "bash_", "text_editor_", "computer_", "memory_", "tool_search_tool_")
"""How the types of tools begin that the client runs. (A search among the request's own tools goes nowhere.)"""
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 426: "upgrade_required"}


class Anthropic(ModelApi):
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
            is_error = text(body, "type") == "error"
            reader.event(body if is_error else {"type": "message_start", "message": body})
            reader.stop, reader.finished = text(body, "stop_reason"), text(body, "type") == "message"
        return reader.answer()

    def reader(self) -> AnswerReader:
        return _Reader()

    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:  # noqa: ARG002 - the body says it
        if body.get("stream") is True:
            return rendered_stream(message_events(document), named=True)
        return rendered_document(document)

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": sentence}}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}

    def one_model(self, name: str) -> dict[str, Any]:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    def models(self, names: Sequence[str]) -> dict[str, Any]:
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return {"data": [self.one_model(name) for name in names], "has_more": False, **ends}


def _results(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [block for block in objects(message, "content") if text(block, "type") == "tool_result"]


def _result(block: Mapping[str, Any]) -> ToolResult:
    failed = block.get("is_error") is True
    return ToolResult(text(block, "tool_use_id"), as_text(block.get("content")), "error" if failed else "ok")


class _Reader(AnswerReader):
    """The `input` of a call that is not JSON, as one that was cut, stays a text in the document."""

    def __init__(self) -> None:
        self._blocks = _Blocks()
        self._message, self._usage = Fields(), Fields()
        self._is_unsure = False
        self._model = self._problem = self.stop = ""
        self.finished = False

    def event(self, data: Mapping[str, Any]) -> None:
        match data.get("type"):
            case "message_start":
                self._begin(mapping(data, "message"))
            case "content_block_start":
                before = self._blocks.start(data, _Block(data.get("content_block")))
                if before is not None and before.kind in CALLS and not before.pieces.size:
                    self._is_unsure = True  # whose input comes now? Anthropic's own library gives it to the first
            case "content_block_delta" if block := self._blocks.of(data):
                block.add(mapping(data, "delta"), keeps=self.keeps_document)
            case "content_block_delta" if "partial_json" in mapping(data, "delta"):
                self._is_unsure = True  # the input of a call, but of which
            case "content_block_stop" if block := self._blocks.of(data):
                block.ended = True
            case "message_delta":
                self._end(data)
            case "message_stop":
                self.finished = True
            case "error":
                self._problem = text(mapping(data, "error"), "message") or "an error without a message"
                if self.keeps_document:
                    self._message.update(data)

    def _begin(self, message: Mapping[str, Any]) -> None:
        self._model = text(message, "model")
        self._usage.update(mapping(message, "usage"))
        if self.keeps_document:
            self._message.update({name: value for name, value in message.items() if name != "content"})
        content = message.get("content")
        for told in content if isinstance(content, list) else ():
            self._blocks.start(None, _Block(told, ended=True))

    def _end(self, data: Mapping[str, Any]) -> None:
        delta = mapping(data, "delta")
        self.stop = text(delta, "stop_reason") or self.stop
        # It repeats what it knows; a null is not a new count.
        self._usage.update({name: value for name, value in mapping(data, "usage").items() if value is not None})
        if self.keeps_document:
            replace(self._message, delta)
            replace(self._message, {k: v for k, v in data.items() if k not in {"type", "delta", "usage"}})

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
                uncached=whole_count(self._usage, "input_tokens"),
                cache_read=whole_count(self._usage, "cache_read_input_tokens"),
                cache_write=whole_count(self._usage, "cache_creation_input_tokens"),
                output=whole_count(self._usage, "output_tokens"),
            ),
            stop=self.stop,
            problem=self._problem,
            finished=self.finished and not self._problem,
            unread=sum(block.pieces.size for block in lost),
            is_unsure=self._is_unsure or any(block.is_unsure for block in calls),
            has_partial_call=bool(lost),
            extras=Extras(
                speed=text(self._usage, "speed"),
                hour_writes=whole_count(mapping(self._usage, "cache_creation"), "ephemeral_1h_input_tokens") or 0,
                searches=whole_count(mapping(self._usage, "server_tool_use"), "web_search_requests") or 0,
            ),
        )

    def document(self) -> dict[str, Any]:
        content = Items(one for block in self._blocks.all for one in block.documents())
        blocks = {"content": content} if content else {}
        used = {"usage": {**self._usage}} if self._usage else {}
        found: dict[str, Any] = settled(Fields({**_EMPTY, **self._message, **blocks, **used}))
        return found


class _Blocks:
    """The blocks of a message as they come. A start is always a further block, whatever its index says; what is told of
    an index is told of the last block that began there."""

    def __init__(self) -> None:
        self.all: list[_Block] = []
        self._latest: dict[Any, _Block] = {}

    def start(self, data: Mapping[str, Any] | None, block: _Block) -> _Block | None:
        """A block has come: begun by this event, or None where it came whole. The one before at the same index."""
        self.all.append(block)
        before = None
        if data is not None:
            before = self._latest.get(_place(data))
            self._latest[_place(data)] = block
        return before

    def of(self, data: Mapping[str, Any]) -> _Block | None:
        """The block that this event is about: where none began under its index, the one at that place of the message,
        as clients find it that only count blocks."""
        place = _place(data)
        if place in self._latest or not self.all:
            return self._latest.get(place)
        if isinstance(place, int):
            return self.all[place] if 0 <= place < len(self.all) else None
        return self.all[-1] if place is None else None


def _place(data: Mapping[str, Any]) -> Any:
    index = data.get("index")
    return index if isinstance(index, int | str) else None


class _Block:
    """One block of a message as it comes. ended: nothing more of it comes."""

    def __init__(self, told: Any, *, ended: bool = False) -> None:
        fields = told if isinstance(told, dict) else {}
        self.kind, self.id, self.name = (text(fields, name) for name in ("type", "id", "name"))
        self.arguments = fields.get("input")
        self.pieces = Pieces("" if self.kind in CALLS else text(fields, self.kind))
        """Of its text, or of the input of a call."""
        self.ended, self.begins_again = ended, False
        self._kept = Fields(told) if isinstance(told, dict) else told
        self._input = Text()

    def add(self, delta: Mapping[str, Any], *, keeps: bool) -> None:
        """Its next piece. keeps: for the document, too."""
        piece = text(delta, "partial_json" if self.kind in CALLS else "thinking" if self.kind == "thinking" else "text")
        self.begins_again = self.begins_again or (self.pieces.size > 0 and begins_again(piece))
        self.pieces.add(piece)
        if not keeps or not isinstance(self._kept, Fields):
            return
        match text(delta, "type"):
            case "input_json_delta":
                self._input.append(text(delta, "partial_json"))
            case "citations_delta":
                extend(self._kept, "citations", [delta.get("citation")])
            case _:
                join_fields(self._kept, {name: value for name, value in delta.items() if name != "type"})

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

    def documents(self) -> list[Any]:
        """It, as a document has it, and as many further ones as its input begins again."""
        said = "".join(self._input)
        if not said:
            return [self._kept]
        inputs = [json.loads(one) for one in json_objects(said)]
        return [Fields({**self._kept, "input": one}) for one in inputs or [_input(said)]]


def _input(said: str) -> Any:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return said
    return said if isinstance(found, str) else found


def message_events(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The message as its stream tells it."""
    if kind(document) == "error":
        yield dict(document)
        return
    content, usage = document.get("content"), mapping(document, "usage")
    blocks = content if isinstance(content, list) else []
    began: dict[str, Any] = {name: None for name in (*_AT_THE_END, "context_management") if name in document}
    began |= {"content": []} if blocks else {}
    began |= {"usage": {**usage, "output_tokens": min(1, usage["output_tokens"])}} if _counts(usage) else {}
    yield {"type": "message_start", "message": {**document, **began}}
    for index, block in enumerate(blocks):
        yield from _block_events(index, block)
    ended = {name: document[name] for name in _AT_THE_END if name in document}
    used = {name: value for name, value in usage.items() if name in _USED_AT_THE_END}
    managed = {"context_management": document["context_management"]} if "context_management" in document else {}
    yield {"type": "message_delta", "delta": ended, "usage": used, **managed}
    yield {"type": "message_stop"}


def _counts(usage: Mapping[str, Any]) -> bool:
    return isinstance(usage.get("output_tokens"), int)


def _block_events(index: int, block: Any) -> Iterator[dict[str, Any]]:
    began, deltas = _parts(block) if isinstance(block, dict) else (block, [])
    yield {"type": "content_block_start", "index": index, "content_block": began}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _parts(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it then. Blocks of other kinds come whole."""
    match kind(block):
        case "text" if isinstance(block.get("text"), str):
            cited = block.get("citations")
            citations = cited if isinstance(cited, list) else []
            began = {**block, "text": "", **({"citations": []} if citations else {})}
            deltas = [{"type": "citations_delta", "citation": citation} for citation in citations]
            return began, [*deltas, *_texts("text", block["text"])]
        case "thinking" if isinstance(block.get("thinking"), str):
            signed = text(block, "signature")
            began = {**block, "thinking": "", **({"signature": ""} if signed else {})}
            signature = [{"type": "signature_delta", "signature": signed}] if signed else []
            return began, [*_texts("thinking", block["thinking"]), *signature]
        case "compaction":
            told: dict[str, Any] = {name: block[name] for name in ("content", "encrypted_content") if name in block}
            return {**block, **dict.fromkeys(told)}, [{"type": "compaction_delta", **told}]
        case name if name in CALLS and "input" in block:
            said = block["input"] if isinstance(block["input"], str) else written(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in split(said)]
            return {**block, "input": {}}, deltas
        case _:
            return block, []


def _texts(name: str, value: str) -> list[dict[str, Any]]:
    return [{"type": f"{name}_delta", name: piece} for piece in split(value)]
