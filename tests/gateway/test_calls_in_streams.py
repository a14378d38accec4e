"""Calls of tools in streams that go their own way: we never see fewer than the most lenient client would make of the
same bytes. The streams are those of public reports on servers, routers and converters between APIs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_answers import assembled, rendered_events
from support.api_streams import read
from support.odd_calls import ANTHROPIC, CHAT, GEMINI, ODD, RESPONSES, chat, end_of_chat

from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import Answer
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

LS, PATH = {"command": "ls"}, {"path": "a"}
BOTH = [("bash", LS), ("read", PATH)]


def made(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in answer.calls]


@pytest.mark.parametrize(("provider", "events", "calls"), ODD.values(), ids=ODD)
def test_each_call_counts_once(provider: ModelApi, events: list[Any], calls: list[tuple[str, Any]]) -> None:
    answer, document = read(provider, events), json.loads(json.dumps(assembled(provider, events)))
    assert made(answer) == calls
    assert not answer.is_unsure
    assert answer.finished
    assert made(provider.whole(document)) == calls, "as it is kept"
    assert made(read(provider, rendered_events(provider, document))) == calls, "as it is replayed"


def parts_of_chat(*names: str) -> list[Any]:
    first, *others = [{"index": 0, "function": {"name": name, "arguments": ""}} for name in names]
    return [*(chat(one) for one in (first, *others)), chat({"index": 0, "function": {"arguments": '{"a": 1}'}})]


def started(name: str) -> dict[str, Any]:
    return {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": name, "name": name, "input": {}},
    }


def wipe(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": "wipe", "arguments": arguments}


UNSURE: dict[str, tuple[ModelApi, list[Any], list[str]]] = {
    "a name in pieces, or two calls": (OpenAiChat(), [*parts_of_chat("ba", "sh"), end_of_chat()], ["ba", "bash", "sh"]),
    "a name that is repeated, or two calls without arguments": (
        OpenAiChat(),
        [*(chat({"index": 0, "function": {"name": "wipe", "arguments": ""}}) for _ in range(2)), end_of_chat()],
        ["wipe", "wipe"],
    ),
    "a name that is repeated after the arguments": (
        OpenAiChat(),
        [
            chat({"index": 0, "id": "a", "function": {"name": "bash", "arguments": "{}"}}),
            chat({"index": 0, "function": {"name": "bash", "arguments": ""}}),
            end_of_chat(),
        ],
        ["bash", "bash"],
    ),
    "a name that is repeated in the older form": (
        OpenAiChat(),
        [*(chat(legacy={"name": "wipe"}) for _ in range(3)), end_of_chat()],
        ["wipe", "wipe", "wipe"],
    ),
    "an id that comes with the name's second time": (
        OpenAiChat(),
        [
            chat({"index": 0, "function": {"name": "wipe"}}),
            chat({"index": 0, "id": "b", "function": {"name": "wipe"}}),
            end_of_chat(),
        ],
        ["wipe", "wipe"],
    ),
    "a call that is added and one that is done, with other ids in one place": (
        OpenAiResponses(),
        [
            {"type": "response.output_item.added", "output_index": 0, "item": wipe("A", "")},
            {"type": "response.output_item.done", "output_index": 0, "item": wipe("B", "{}")},
            {"type": "response.completed", "response": {"output": [wipe("B", "{}")]}},
        ],
        ["wipe", "wipe"],
    ),
    "arguments that may have begun again": (
        OpenAiChat(),
        [
            *(chat({"index": 0, "function": {"name": "bash", "arguments": said}}) for said in ('{"a', '{"a": 1', "}")),
            end_of_chat(),
        ],
        ["bash"],
    ),
    "a piece that belongs to either of two calls": (
        OpenAiChat(),
        [
            chat({"id": "t1", "function": {"name": "bash", "arguments": "{"}}),
            chat({"id": "t2", "function": {"name": "read", "arguments": "{"}}),
            chat({"function": {"arguments": "}"}}),
            end_of_chat(),
        ],
        ["bash", "read"],
    ),
    "an input of the second block, or of the first, which had none": (
        Anthropic(),
        [
            *ANTHROPIC["in their own places"][0][:1],
            started("bash"),
            {"type": "content_block_stop", "index": 0},
            started("read"),
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_stop"},
        ],
        ["bash", "read"],
    ),
    "an input of either of two blocks": (
        Anthropic(),
        [
            *ANTHROPIC["in their own places"][0][:1],
            started("bash"),
            started("read"),
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_stop"},
        ],
        ["bash", "read"],
    ),
}


@pytest.mark.parametrize(("provider", "events", "names"), UNSURE.values(), ids=UNSURE)
def test_where_two_readings_are_possible_both_count(provider: ModelApi, events: list[Any], names: list[str]) -> None:
    answer = read(provider, events)
    assert answer.is_unsure
    assert sorted(call.name for call in answer.calls) == names


@pytest.mark.parametrize(
    ("provider", "events"),
    [
        (OpenAiChat(), CHAT["under one index"][0][:1]),
        (Anthropic(), ANTHROPIC["under one index"][0][:3]),
        (OpenAiResponses(), RESPONSES["that are never done"][0][:2]),
    ],
    ids=["chat", "anthropic", "responses"],
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_that_just_ends_in_a_call_may_have_made_it(provider: ModelApi, events: list[Any], ends: bool) -> None:
    content = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    copy = AnswerCopy(provider, without_usage=False)
    copy.start(200, "text/event-stream")
    copy.feed(content)
    if ends:
        copy.end()
    else:
        copy.lost = "the connection was lost"
    answer = copy.answer()
    assert (answer.calls, answer.has_partial_call, answer.is_unsure) == ((), True, ends)


WHOLE: dict[str, tuple[ModelApi, dict[str, Any], list[tuple[str, Any]]]] = {
    "the older form": (
        OpenAiChat(),
        {"message": {"function_call": {"name": "bash", "arguments": '{"command": "ls"}'}}},
        BOTH[:1],
    ),
    "one call in both forms": (
        OpenAiChat(),
        {
            "message": {
                "function_call": {"name": "bash", "arguments": '{"command": "ls"}'},
                "tool_calls": [{"id": "t", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
            }
        },
        BOTH[:1],
    ),
    "two calls in either form": (
        OpenAiChat(),
        {
            "message": {
                "function_call": {"name": "read", "arguments": '{"path": "a"}'},
                "tool_calls": [{"id": "t", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
            }
        },
        BOTH,
    ),
    "one id and one index": (
        OpenAiChat(),
        {
            "message": {
                "tool_calls": [
                    {"index": 0, "id": "t", "function": {"name": name, "arguments": given}} for name, given in BOTH
                ]
            }
        },
        BOTH,
    ),
    "arguments that begin again": (
        OpenAiChat(),
        {"message": {"tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "ls"}\n{"path": "a"}'}}]}},
        [("bash", LS), ("bash", PATH)],
    ),
    "no arguments": (
        OpenAiChat(),
        {"message": {"tool_calls": [{"id": "t", "function": {"name": "now", "arguments": ""}}] * 2}},
        [("now", {}), ("now", {})],
    ),
}


@pytest.mark.parametrize(("provider", "choice", "calls"), WHOLE.values(), ids=WHOLE)
def test_an_answer_in_one_piece_is_read_alike(provider: ModelApi, choice: Any, calls: list[tuple[str, Any]]) -> None:
    answer = provider.whole({"choices": [{"index": 0, "finish_reason": "tool_calls", **choice}]})
    assert (made(answer), answer.is_unsure) == (calls, False)


def test_an_answer_in_one_piece_needs_no_reason_to_have_stopped() -> None:
    calls = [
        {"id": "a", "function": {"name": "now", "arguments": ""}},
        {"id": "b", "function": {"name": "f", "arguments": "{"}},
    ]
    answer = OpenAiChat().whole({"choices": [{"message": {"tool_calls": calls}}]})
    assert (made(answer), answer.has_partial_call) == ([("now", {}), ("f", None)], False)


def items(*, as_text: bool) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": "c", "name": name, "arguments": json.dumps(given) if as_text else given}
        for name, given in BOTH
    ]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_response_in_one_piece_is_read_alike(as_text: bool) -> None:
    body = {"status": "completed", "output": items(as_text=as_text)}
    assert made(OpenAiResponses().whole(body)) == BOTH


def test_results_of_the_older_form_belong_to_a_call_by_its_name() -> None:
    body = {"model": "m", "messages": [{"role": "function", "name": "bash", "content": "a.txt"}]}
    (result,) = OpenAiChat().asked(body, "").results
    assert (result.call, result.name, result.text) == ("", "bash", "a.txt")


NAMES, ARGUMENTS = ("bash", "read", "now"), ('{"command": "ls"}', '{"p": {"q": [1, {"z": 2}]}}', "{}", '{"a": "{\\"b"}')


@st.composite
def odd_streams(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Calls, and a stream that tells them as servers do that get indexes, ids or names wrong."""
    calls = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(ARGUMENTS)), min_size=1, max_size=3))
    index, ids = draw(st.sampled_from(["own", "one", "none"])), draw(st.sampled_from(["own", "one", "none", "always"]))
    always_named = draw(st.booleans())
    pieces = []
    for number, (name, written) in enumerate(calls):
        cuts = sorted(draw(st.sets(st.integers(1, len(written) - 1), max_size=3)))
        for place, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(written)], strict=True)):
            told: dict[str, Any] = {"function": {"arguments": written[start:end]}}
            told |= {} if index == "none" else {"index": number if index == "own" else 0}
            if place == 0 or always_named:
                told["function"]["name"] = name
                told |= {} if ids == "none" else {"id": "t" if ids == "one" else f"t{number}"}
            if ids == "always":
                told["id"] = f"t{number}"
            pieces.append(told)
    return [(name, json.loads(written)) for name, written in calls], [*map(chat, pieces), end_of_chat()]


def by_index(events: list[Any]) -> list[tuple[str, str]]:
    """As a client puts them together that believes the index: the name that came last, arguments one after another."""
    calls: dict[Any, list[str]] = {}
    for event in events:
        for told in event["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(told.get("index", 0), ["", ""])
            call[0] = told["function"].get("name") or call[0]
            call[1] += told["function"]["arguments"]
    return [(name, said) for name, said in calls.values()]


def by_first_whole(events: list[Any]) -> list[tuple[str, str]]:
    """As a client that makes a call as soon as its arguments are JSON."""
    calls: dict[Any, list[str]] = {}
    found = []
    for event in events:
        for told in event["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(told.get("index", 0), [told["function"].get("name", ""), ""])
            if not is_json(call[1]):
                call[1] += told["function"]["arguments"]
                found += [(call[0], call[1])] if is_json(call[1]) else []
    return found


def by_id(events: list[Any]) -> list[tuple[str, str]]:
    """As a client that believes ids alone."""
    calls: dict[str, list[str]] = {}
    latest = ""
    for event in events:
        for told in event["choices"][0]["delta"].get("tool_calls", []):
            latest = told.get("id", latest)
            call = calls.setdefault(latest, ["", ""])
            call[0] = told["function"].get("name") or call[0]
            call[1] += told["function"]["arguments"]
    return [(name, said) for name, said in calls.values()]


def is_json(written: str) -> bool:
    try:
        json.loads(written)
    except ValueError:
        return False
    return True


@given(told=odd_streams())
def test_no_client_makes_a_call_that_we_did_not_see(told: tuple[list[tuple[str, Any]], list[Any]]) -> None:
    calls, events = told
    answer = read(OpenAiChat(), events)
    seen = Counter(f"{name} {json.dumps(given)}" for name, given in made(answer))
    for client in (by_index, by_first_whole, by_id):
        theirs = Counter(f"{name} {json.dumps(json.loads(said))}" for name, said in client(events) if is_json(said))
        assert theirs <= seen, client.__name__
    assert seen == Counter(f"{name} {json.dumps(given)}" for name, given in calls)
    assert not answer.is_unsure
    assert made(OpenAiChat().whole(assembled(OpenAiChat(), events))) == made(answer)


def test_arguments_of_gemini_that_come_in_pieces_are_put_together_or_unread() -> None:
    (_, events, calls) = ODD["Gemini: arguments in pieces"]
    assert made(read(Gemini(), events)) == calls
    deep = {"name": "bash", "partialArgs": [{"jsonPath": "$.a[0].b", "stringValue": "rm"}]}
    told = [{"candidates": [{"content": {"parts": [{"functionCall": deep}]}, "finishReason": "STOP"}]}]
    assert made(read(Gemini(), told)) == [("bash", None)]
    assert GEMINI


def of_anthropic(*events: tuple[str, int, dict[str, Any]]) -> list[Any]:
    kinds = {"start": "content_block", "delta": "delta", "stop": "x"}
    return [
        {"type": "message_start", "message": {"model": "m", "content": [], "usage": {}}},
        *({"type": f"content_block_{kind}", "index": index, kinds[kind]: told} for kind, index, told in events),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}


def said(arguments: Any) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": json.dumps(arguments)}


@pytest.mark.parametrize(
    "events",
    [
        [("start", 0, call("bash")), ("delta", 0, said(LS)), ("start", 0, call("read")), ("delta", 1, said(PATH))],
        [("start", 1, call("bash")), ("delta", 0, said(LS)), ("start", 2, call("read")), ("delta", 2, said(PATH))],
    ],
)
def test_input_may_come_under_the_place_of_a_block(events: list[Any]) -> None:
    """As a client takes it that only counts the blocks; what belongs to none is not passed over in silence."""
    provider, stream = Anthropic(), of_anthropic(*events)
    assert (made(read(provider, stream)), read(provider, stream).is_unsure) == (BOTH, False)
    assert made(provider.whole(json.loads(json.dumps(assembled(provider, stream))))) == BOTH
    assert read(provider, of_anthropic(*events, ("delta", 7, said(LS)))).is_unsure


def test_whole_arguments_may_come_after_the_name() -> None:
    """Of a call of Gemini's that is still open; a second time they are those of a further call."""

    def part(**told: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"parts": [{"functionCall": told}]}}]}

    stream = [part(name="bash", willContinue=True), part(args=LS, willContinue=True), part(args=PATH)]
    assert made(read(Gemini(), stream[:2])) == [("bash", LS)]
    assert made(read(Gemini(), stream)) == [("bash", LS), ("bash", PATH)]


@pytest.mark.parametrize("done", ["ls", "rm -rf /"])
def test_a_custom_tool_told_in_two_ways_counts_in_both(done: str) -> None:
    """What is written and what is said to be done; once where both are the same."""
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "exec"}
    stream = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "input": ""}},
        {"type": "response.custom_tool_call_input.delta", "item_id": "ctc_1", "output_index": 0, "delta": "rm -rf /"},
        {"type": "response.custom_tool_call_input.done", "item_id": "ctc_1", "output_index": 0, "input": "rm -rf /"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "input": done}},
        {"type": "response.completed", "response": {"model": "m", "output": [{**item, "input": done}], "usage": {}}},
    ]
    found = [call.arguments for call in read(OpenAiResponses(), stream).calls]
    assert len(found) == len({done, "rm -rf /"})
    assert "rm -rf /" in json.dumps(found)
