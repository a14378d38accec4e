"""Ids that providers and clients make up: where they stand in requests and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keystone_action.gateway.recordings.walking import check_depth

CONVERSATIONS = ("messages", "input", "contents")
"""Where requests have their conversation: Anthropic and OpenAI's chat, OpenAI's Responses, Gemini."""
_NAMES = {
    "id",
    "call_id",
    "item_id",
    "message_id",
    "previous_response_id",
    "response_id",
    "responseId",
    "tool_call_id",
    "tool_use_id",
}
_FREE = {
    "action",
    "args",
    "arguments",
    "input",
    "input_schema",
    "instructions",
    "metadata",
    "operation",
    "output",
    "parameters",
    "response",
    "result",
    "text",
    "tools",
    "usage",
}
"""What models, tools and people said stands under these names: an `id` in there is theirs."""


def ids_in(document: Any) -> list[str]:
    """The ids in an assembled answer of any API, each once, in the order in which they stand there."""
    return list(dict.fromkeys(_answer_ids(document)))


def _answer_ids(document: Any) -> Iterator[str]:
    for one in document if isinstance(document, list) else [document]:
        if isinstance(one, dict):
            yield from _ids(one)
            # The items of an answer of the Responses API; elsewhere `output` is what a tool gave back.
            yield from _ids(one.get("output"))


def ids_of_request(body: Mapping[str, Any]) -> list[str]:
    """The ids in a request's conversation, each once, in the order in which they stand there."""
    return list(dict.fromkeys(one for name in CONVERSATIONS for one in _ids(body.get(name))))


def with_ids(body: Mapping[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    """A request with other ids in its conversation."""
    return {name: _replaced(value, new) if name in CONVERSATIONS else value for name, value in body.items()}


def _ids(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict):
        check_depth(depth)
        for name, item in value.items():
            if name in _NAMES and isinstance(item, str):
                yield item
            elif name not in _FREE and isinstance(item, dict | list):
                yield from _ids(item, depth + 1)
    elif isinstance(value, list):
        check_depth(depth)
        yield from (one for item in _nested(value) for one in _ids(item, depth + 1))


def _replaced(value: Any, new: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, new) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: new.get(item, item)
        if name in _NAMES and isinstance(item, str)
        else item
        if name in _FREE
        else _replaced(item, new)
        for name, item in value.items()
    }


def _nested(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if isinstance(value, dict | list))
