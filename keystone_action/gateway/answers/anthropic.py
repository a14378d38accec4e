"""Answers of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from keystone_action.evidence.trace_readers.values import mapping, text
from keystone_action.gateway.answers.joined import Fields, Items, Text, extend, join, kind, replace, settled
from keystone_action.gateway.answers.rendering import split, written
from keystone_action.gateway.exchange import Assembler

_EMPTY: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
_CALLS = {"tool_use", "server_tool_use", "mcp_tool_use"}
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


class MessageAssembler(Assembler):
    """Puts a `message` together. The input of a call that is not JSON, as one that was cut, stays the text that it
    was."""

    def __init__(self) -> None:
        self._message = Fields()
        self._usage = Fields()
        self._blocks: dict[Any, Any] = {}
        self._inputs: dict[Any, Text] = {}

    def event(self, data: Mapping[str, Any]) -> None:
        index = data.get("index")
        place = index if isinstance(index, int | str) else None
        match data.get("type"):
            case "message_start":
                self._message.update(mapping(data, "message"))
                self._usage.update(mapping(mapping(data, "message"), "usage"))
            case "content_block_start":
                block = data.get("content_block")
                self._blocks[place] = Fields(block) if isinstance(block, dict) else block
                self._inputs.pop(place, None)
            case "content_block_delta" if isinstance(block := self._blocks.get(place), Fields):
                self._delta(place, block, mapping(data, "delta"))
            case "message_delta":
                replace(self._message, mapping(data, "delta"))
                replace(self._message, {k: v for k, v in data.items() if k not in {"type", "delta", "usage"}})
                self._usage.update({k: v for k, v in mapping(data, "usage").items() if v is not None})
            case "error":
                self._message.update(data)

    def _delta(self, place: Any, block: Fields, delta: Mapping[str, Any]) -> None:
        match text(delta, "type"):
            case "input_json_delta":
                self._inputs.setdefault(place, Text()).append(text(delta, "partial_json"))
            case "citations_delta":
                extend(block, "citations", [delta.get("citation")])
            case _:
                join(block, {name: value for name, value in delta.items() if name != "type"})

    def document(self) -> dict[str, Any]:
        for place, pieces in self._inputs.items():
            if said := "".join(pieces):
                self._blocks[place]["input"] = _input(said)
        blocks = {"content": Items(self._blocks.values())} if self._blocks else {}
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
        case name if name in _CALLS and "input" in block:
            said = block["input"] if isinstance(block["input"], str) else written(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in split(said)]
            return {**block, "input": {}}, deltas
        case _:
            return block, []


def _texts(name: str, value: str) -> list[dict[str, Any]]:
    return [{"type": f"{name}_delta", name: piece} for piece in split(value)]
