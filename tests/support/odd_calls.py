"""Streams that tell of calls in odd ways, each with the calls that the most lenient client makes of it; and streams
that only look odd."""

from __future__ import annotations

from typing import Any

from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

Calls = list[tuple[str, Any]]
A, B = '{"command": "ls"}', '{"path": "a"}'
BASH, READ = ("bash", {"command": "ls"}), ("read", {"path": "a"})


def chat(*told: dict[str, Any], legacy: dict[str, Any] | None = None) -> dict[str, Any]:
    """A chunk with pieces of calls."""
    delta: dict[str, Any] = {"tool_calls": list(told)} if told else {"function_call": legacy}
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def end_of_chat() -> dict[str, Any]:
    """The chunk that ends a choice."""
    return {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def piece(arguments: Any, name: str | None = None, **more: Any) -> dict[str, Any]:
    """A piece of a call."""
    return {**more, "function": {**({} if name is None else {"name": name}), "arguments": arguments}}


def _streamed(*told: dict[str, Any]) -> list[Any]:
    return [*map(chat, told), end_of_chat()]


CHAT: dict[str, tuple[list[Any], Calls]] = {
    "in their own places": (
        _streamed(
            piece("", "bash", index=0, id="t1"),
            piece(A, index=0),
            piece("", "read", index=1, id="t2"),
            piece(B, index=1),
        ),
        [BASH, READ],
    ),
    "under one index": (
        _streamed(piece(A[:5], "bash", index=0, id="t1"), piece(A[5:], index=0), piece(B, "read", index=0, id="t2")),
        [BASH, READ],
    ),
    "under one index, without arguments": (
        _streamed(piece("", "now", index=0, id="t1"), piece("", "now", index=0, id="t2")),
        [("now", {}), ("now", {})],
    ),
    "under one index, without ids": (
        _streamed(piece(A, "bash", index=0), piece(B, "read", index=0)),
        [BASH, READ],
    ),
    "without an index": (_streamed(piece(A, "bash", id="t1"), piece(B, "read", id="t2")), [BASH, READ]),
    "without an index, in turns": (
        _streamed(
            piece(A[:5], "bash", id="t1"), piece(B[:5], "read", id="t2"), piece(A[5:], id="t1"), piece(B[5:], id="t2")
        ),
        [BASH, READ],
    ),
    "without an index or ids": (_streamed(piece(A, "bash"), piece(B, "read")), [BASH, READ]),
    "with the name in each piece": (
        _streamed(piece(A[:5], "bash", index=0, id="t1"), piece(A[5:], "bash", index=0, id="t1")),
        [BASH],
    ),
    "with the name in each piece, and without ids": (
        _streamed(piece(A[:5], "bash", index=0), piece(A[5:], "bash", index=0)),
        [BASH],
    ),
    "with the name in each piece, the first ones without arguments": (
        _streamed(piece("", "bash", index=0), piece("", "bash", index=0), piece(A, "bash", index=0)),
        [BASH],
    ),
    "with name and id in each piece, without arguments": (
        _streamed(piece("", "now", index=0, id="t"), piece("", "now", index=0, id="t")),
        [("now", {})],
    ),
    "with another id in each piece": (
        _streamed(piece("", "bash", index=0, id="r1"), piece(A[:5], index=0, id="r2"), piece(A[5:], index=0, id="r3")),
        [BASH],
    ),
    "with another index in each piece": (
        _streamed(piece("", "bash", index=0, id="t"), piece(A[:5], index=1, id="t"), piece(A[5:], index=2, id="t")),
        [BASH],
    ),
    "whose arguments begin again": (
        _streamed(piece(A, "bash", index=0, id="t1"), piece(B, "bash", index=0, id="t1")),
        [BASH, ("bash", READ[1])],
    ),
    "whose arguments have objects in them": (
        _streamed(piece('{"a": ', "bash", index=0, id="t1"), piece('{"b": 1}', index=0), piece("}", index=0)),
        [("bash", {"a": {"b": 1}})],
    ),
    "with one id": (_streamed(piece(A, "bash", index=0, id="t"), piece(B, "read", index=1, id="t")), [BASH, READ]),
    "with an object as arguments": (_streamed(piece({"command": "ls"}, "bash", index=0, id="t")), [BASH]),
    "without an object of their own": (_streamed({"index": 0, "id": "t", "name": "bash", "arguments": A}), [BASH]),
    "in a list without arguments": (
        [chat(piece("", "now", index=0), piece("", "now", index=0)), end_of_chat()],
        [("now", {}), ("now", {})],
    ),
    "in the older form": (
        [chat(legacy={"name": "bash", "arguments": A[:5]}), chat(legacy={"arguments": A[5:]}), end_of_chat()],
        [BASH],
    ),
    "in the older form, twice": (
        [chat(legacy={"name": "bash", "arguments": A}), chat(legacy={"name": "read", "arguments": B}), end_of_chat()],
        [BASH, READ],
    ),
    "as a message in a chunk": (
        [{"choices": [{"index": 0, "message": {"tool_calls": [piece(A, "bash", id="t")]}, "finish_reason": "stop"}]}],
        [BASH],
    ),
}


def _start(name: str, index: int | None = 0, given: Any = None, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": name, "name": name, "input": given or {}, **more}
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(said: str, index: int | None = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": said}}


def _stop(index: int | None = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def _message(*events: dict[str, Any], content: Any = ()) -> list[Any]:
    start = {"type": "message_start", "message": {"type": "message", "model": "m", "content": list(content)}}
    end = [{"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    return [start, *events, *end]


ANTHROPIC: dict[str, tuple[list[Any], Calls]] = {
    "in their own places": (
        _message(_start("bash"), _delta(A), _stop(), _start("read", 1), _delta(B, 1), _stop(1)),
        [BASH, READ],
    ),
    "under one index": (
        _message(_start("bash"), _delta(A[:5]), _delta(A[5:]), _stop(), _start("read"), _delta(B), _stop()),
        [BASH, READ],
    ),
    "under one index, without ends": (_message(_start("bash"), _delta(A), _start("read"), _delta(B)), [BASH, READ]),
    "without an index": (
        _message(_start("bash", None), _delta(A, None), _stop(None), _start("read", None), _delta(B, None)),
        [BASH, READ],
    ),
    "whose input begins again": (_message(_start("bash"), _delta(A), _delta(B), _stop()), [BASH, ("bash", READ[1])]),
    "at the start of the message": (
        _message(content=[{"type": "tool_use", "id": "t", "name": "bash", "input": BASH[1]}]),
        [BASH],
    ),
    "whose input stands in the start": (_message(_start("bash", given=BASH[1]), _stop()), [BASH]),
}


def _item(written: str, name: str = "bash", number: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name,
            "arguments": written, **more}  # fmt: skip


def _added(name: str = "bash", number: int = 1, place: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": place, "item": _item("", name, number)}


def _written(said: str, number: int = 1, place: int = 0) -> dict[str, Any]:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "item_id": f"fc_{number}", "output_index": place, "delta": said}


def _done(item: dict[str, Any], place: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def _completed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"model": "m", "status": "completed", "output": list(items)}}


RESPONSES: dict[str, tuple[list[Any], Calls]] = {
    "as they should be": (
        [_added(), _written(A[:5]), _written(A[5:]), _done(_item(A)), _completed(_item(A))],
        [BASH],
    ),
    "that are never done": ([_added(), _written(A[:5]), _written(A[5:]), _completed()], [BASH]),
    "that are never added": ([_written(A[:5]), _written(A[5:]), _done(_item(A)), _completed()], [BASH]),
    "only at the end": ([_completed(_item(A), _item(B, "read", 2))], [BASH, READ]),
    "that the end leaves out": (
        [_done(_item(A)), _done(_item(B, "read", 2), 1), _completed(_item(B, "read", 2))],
        [READ, BASH],
    ),
    "with other ids each time": (
        [_added(), _written(A), _done(_item(A, number=2)), _completed(_item(A, number=3))],
        [BASH],
    ),
    "in one place": ([_added(), _written(A), _added("read", 2), _written(B, 2), _completed()], [BASH, READ]),
    "with one id": ([_added(), _written(A), _added("read"), _written(B), _completed()], [BASH, READ]),
    "that are done twice": ([_done(_item(A)), _done(_item(A)), _completed()], [BASH, BASH]),
    "whose arguments begin again": ([_done(_item(A + B)), _completed()], [BASH, ("bash", READ[1])]),
    "whose arguments come only when they are done": ([_added(), _done(_item(A)), _completed(_item(A))], [BASH]),
    "without arguments": ([_done(_item("", "now")), _completed(_item("", "now"))], [("now", {})]),
    "without arguments, one of which is never done": (
        [_added("now", 1, 0), _added("now", 2, 1), _done(_item("{}", "now", 2), 1), _completed(_item("{}", "now", 2))],
        [("now", {}), ("now", {})],
    ),
    "without arguments, in two places": (
        [_added("now", 1, 0), _done(_item("", "now", 2), 1), _completed(_item("", "now", 2))],
        [("now", {}), ("now", {})],
    ),
    "without ids or arguments": (
        [
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "name": "now"}},
            _done({"type": "function_call", "name": "now", "arguments": "{}"}),
            _completed(),
        ],
        [("now", {})],
    ),
}


def _generation(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}]}


_END = _generation(finishReason="STOP")
GEMINI: dict[str, tuple[list[Any], Calls]] = {
    "in a thought": (
        [_generation({"functionCall": {"name": "bash", "args": BASH[1]}, "thought": True, "text": "hm"}), _END],
        [BASH],
    ),
    "under both spellings": (
        [
            _generation(
                {
                    "functionCall": {"name": "bash", "args": BASH[1]},
                    "function_call": {"name": "read", "args": READ[1]},
                }
            ),
            _END,
        ],
        [BASH, READ],
    ),
    "with arguments as text": ([_generation({"functionCall": {"name": "bash", "args": A}}), _END], [BASH]),
    "without arguments": ([_generation({"functionCall": {"name": "now", "args": None}}), _END], [("now", {})]),
    "of a second candidate": (
        [{"candidates": [_END["candidates"][0], {"index": 1, "finishReason": "STOP", "content": {
            "parts": [{"function_call": {"name": "bash", "args": BASH[1]}}]}}]}],
        [BASH],
    ),
    "arguments in pieces": (
        [
            _generation({"functionCall": {"id": "1", "name": "bash", "willContinue": True}}),
            *(
                _generation({"functionCall": {"willContinue": True, "partialArgs": [
                    {"jsonPath": "$.command", "stringValue": said, "willContinue": True}]}})
                for said in "ls"
            ),
            _generation({"functionCall": {}}, finishReason="STOP"),
        ],
        [BASH],
    ),
}  # fmt: skip
ODD: dict[str, tuple[ModelApi, list[Any], Calls]] = {
    f"{provider.title.split()[-1]}: {name}": (provider, events, calls)
    for provider, known in (
        (OpenAiChat(), CHAT),
        (Anthropic(), ANTHROPIC),
        (OpenAiResponses(), RESPONSES),
        (Gemini(), GEMINI),
    )
    for name, (events, calls) in known.items()
}
