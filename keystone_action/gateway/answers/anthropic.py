"""Answers of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from keystone_action.evidence.trace_readers.builder import mapping, text
from keystone_action.gateway.answers.joined import (
    Fields,
    Items,
    Text,
    extend,
    join,
    json_objects,
    kind,
    replace,
    settled,
)
from keystone_action.gateway.answers.rendering import split, written
from keystone_action.gateway.exchange import Assembler

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

Block = TypeVar("Block")


class Blocks(Generic[Block]):
    """The blocks of a message as they come. A start is always a further block, whatever its index says; what is told of
    an index is told of the last block that began there."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._latest: dict[Any, Block] = {}

    def start(self, data: Mapping[str, Any] | None, block: Block) -> Block | None:
        """A block has come: begun by this event, or None where it came whole. The one before at the same index."""
        self.all.append(block)
        before = None
        if data is not None:
            before = self._latest.get(_place(data))
            self._latest[_place(data)] = block
        return before

    def of(self, data: Mapping[str, Any]) -> Block | None:
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
    def __init__(self, told: Any) -> None:
        self._told = Fields(told) if isinstance(told, dict) else told
        self._input = Text()

    def add(self, delta: Mapping[str, Any]) -> None:
        """Its next piece."""
        if not isinstance(self._told, Fields):
            return
        match text(delta, "type"):
            case "input_json_delta":
                self._input.append(text(delta, "partial_json"))
            case "citations_delta":
                extend(self._told, "citations", [delta.get("citation")])
            case _:
                join(self._told, {name: value for name, value in delta.items() if name != "type"})

    def documents(self) -> list[Any]:
        """It, and as many further ones as its input begins again."""
        said = "".join(self._input)
        if not said:
            return [self._told]
        inputs = [json.loads(one) for one in json_objects(said)]
        return [Fields({**self._told, "input": one}) for one in inputs or [_input(said)]]


class MessageAssembler(Assembler):
    """Puts a `message` together. The input of a call that is not JSON, as one that was cut, stays the text that it
    was."""

    def __init__(self) -> None:
        self._message = Fields()
        self._usage = Fields()
        self._blocks = Blocks[_Block]()

    def event(self, data: Mapping[str, Any]) -> None:
        match data.get("type"):
            case "message_start":
                message = mapping(data, "message")
                self._message.update({name: value for name, value in message.items() if name != "content"})
                self._usage.update(mapping(message, "usage"))
                for block in message["content"] if isinstance(message.get("content"), list) else ():
                    self._blocks.start(None, _Block(block))
            case "content_block_start":
                self._blocks.start(data, _Block(data.get("content_block")))
            case "content_block_delta" if block := self._blocks.of(data):
                block.add(mapping(data, "delta"))
            case "message_delta":
                replace(self._message, mapping(data, "delta"))
                replace(self._message, {k: v for k, v in data.items() if k not in {"type", "delta", "usage"}})
                self._usage.update({k: v for k, v in mapping(data, "usage").items() if v is not None})
            case "error":
                self._message.update(data)

    def document(self) -> dict[str, Any]:
        content = Items(one for block in self._blocks.all for one in block.documents())
        blocks = {"content": content} if content else {}
        used = {"usage": {**self._usage}} if self._usage else {}
        found: dict[str, Any] = settled(Fields({**_EMPTY, **self._message, **blocks, **used}))
        return found


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
