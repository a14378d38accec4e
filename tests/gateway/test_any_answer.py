"""Whatever an answer holds: it comes through a stream unchanged, in pieces of any size; and what makes no sense does
not raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_answers import ANSWERS, IDS, STREAMED, assembled, events_of, rendered_events, streamed
from support.api_streams import read

from keystone_action.gateway import api_values as rendering
from keystone_action.gateway.anthropic import Anthropic
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.gemini import Gemini
from keystone_action.gateway.openai_chat import OpenAiChat
from keystone_action.gateway.openai_responses import OpenAiResponses

ALL = (Anthropic(), OpenAiResponses(), OpenAiChat(), Gemini())
TITLES = [one.title for one in ALL]
TEXT = st.text(st.characters(), max_size=8)  # lone surrogates, too
SAID = TEXT.filter(bool)
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
COUNT = st.integers(0, 10_000)


def shape(needed: dict[str, Any], **may: Any) -> st.SearchStrategy[dict[str, Any]]:
    """An object with these fields; those of `may` can be missing, and so can fields that nobody knows."""
    more = st.dictionaries(st.sampled_from(["of_tomorrow", "x"]), JSON.filter(lambda value: value != ""), max_size=1)
    known = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in needed.items()}
    return st.tuples(st.fixed_dictionaries(known, optional=may), more).map(lambda both: {**both[1], **both[0]})


BLOCKS = st.one_of(
    shape({"type": "text", "text": TEXT}, citations=st.none() | st.lists(OBJECT, min_size=1, max_size=2)),
    shape({"type": "thinking", "thinking": TEXT}, signature=TEXT),
    shape({"type": "redacted_thinking", "data": TEXT}),
    shape({"type": st.sampled_from(["tool_use", "server_tool_use", "mcp_tool_use"]), "id": TEXT, "name": TEXT,
           "input": OBJECT}),
    shape({"type": "compaction", "content": st.none() | TEXT}),
    shape({"type": "of_tomorrow"}, text=TEXT, input=OBJECT),
)  # fmt: skip
MESSAGES = shape(
    {
        "type": "message",
        "role": "assistant",
        "content": st.lists(BLOCKS, max_size=5),
        "stop_reason": st.sampled_from(["end_turn", "tool_use", "max_tokens"]),
        "stop_sequence": st.none() | TEXT,
    },
    model=TEXT,
    usage=shape({"output_tokens": COUNT}, input_tokens=COUNT, cache_read_input_tokens=st.none() | COUNT),
    context_management=st.none() | OBJECT,
    container=st.none() | OBJECT,
)
TEXT_PARTS = st.one_of(
    shape({"type": "output_text", "text": TEXT}, annotations=st.lists(OBJECT, max_size=2), logprobs=st.just([])),
    shape({"type": "refusal", "refusal": TEXT}),
    shape({"type": "of_tomorrow"}, text=TEXT),
)
STATUS = st.sampled_from(["completed", "incomplete", "failed"])
ITEMS = st.one_of(
    shape({"type": "message", "content": st.lists(TEXT_PARTS, max_size=3)}, id=TEXT, status=STATUS),
    shape({"type": "reasoning"}, summary=st.lists(shape({"type": "summary_text", "text": TEXT}), max_size=2),
          content=st.lists(shape({"type": "reasoning_text", "text": TEXT}), max_size=2), encrypted_content=TEXT),
    shape({"type": "function_call", "call_id": TEXT, "name": TEXT, "arguments": TEXT}, status=STATUS),
    shape({"type": "custom_tool_call", "call_id": TEXT, "name": TEXT, "input": TEXT}),
    shape({"type": st.sampled_from(["mcp_call", "web_search_call", "code_interpreter_call"])}, action=OBJECT, code=TEXT,
          arguments=TEXT),
    shape({"type": "of_tomorrow"}),
)  # fmt: skip
RESPONSES = shape(
    {"status": st.sampled_from(["completed", "incomplete"]), "output": st.lists(ITEMS, max_size=5)},
    model=TEXT,
    usage=shape({"input_tokens": COUNT, "output_tokens": COUNT}),
    error=st.none(),
)
CALLS = st.one_of(
    shape({"id": SAID, "type": "function", "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})}),
    shape({"id": SAID, "type": "custom", "custom": st.fixed_dictionaries({"name": TEXT, "input": TEXT})}),
)
SPOKEN = shape(
    {"role": "assistant", "content": st.none() | TEXT},
    reasoning_content=TEXT,
    reasoning=TEXT,
    refusal=st.none() | TEXT,
    annotations=st.lists(OBJECT, max_size=2),
    tool_calls=st.lists(CALLS, min_size=1, max_size=3),
)
CHOICES = shape(
    {"message": SPOKEN, "finish_reason": st.sampled_from(["stop", "tool_calls"])},
    logprobs=st.none() | st.fixed_dictionaries({"content": st.lists(OBJECT, max_size=2)}),
)
COMPLETIONS = shape(
    {
        "object": "chat.completion",
        "choices": st.lists(CHOICES, min_size=1, max_size=2).map(
            lambda choices: [{"index": number, **choice} for number, choice in enumerate(choices)]
        ),
        "usage": shape({"prompt_tokens": COUNT, "completion_tokens": COUNT}),
    },
    model=SAID,
    citations=st.lists(TEXT, max_size=2),
)
PARTS = st.one_of(
    shape({"text": TEXT, "thoughtSignature": TEXT}, thought=st.booleans()),
    shape({"functionCall": shape({"name": TEXT, "args": OBJECT}, id=TEXT)}, thoughtSignature=TEXT),
    shape({"executableCode": shape({"language": "PYTHON", "code": TEXT})}),
    st.fixed_dictionaries({"text": TEXT}, optional={"thought": st.just(True)}),
)


def without_plain_neighbours(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two texts next to each other are one afterwards."""
    plain = [set(part) <= {"text", "thought"} for part in parts]
    return [part for number, part in enumerate(parts) if not (plain[number] and number and plain[number - 1])]


GENERATIONS = shape(
    {
        "candidates": st.tuples(
            shape(
                {
                    "content": st.fixed_dictionaries(
                        {"role": st.just("model"), "parts": st.lists(PARTS, max_size=5).map(without_plain_neighbours)}
                    ),
                    "finishReason": st.sampled_from(["STOP", "MAX_TOKENS"]),
                },
                groundingMetadata=shape({"webSearchQueries": st.lists(TEXT, max_size=3)}, searchEntryPoint=OBJECT),
                index=st.just(0),
            )
        ).map(list)
    },
    usageMetadata=shape({"promptTokenCount": COUNT, "candidatesTokenCount": COUNT}),
    modelVersion=SAID,
)
DOCUMENTS = [MESSAGES, RESPONSES, COMPLETIONS, GENERATIONS]


def in_pieces_of(size: int, make: Callable[[], Any]) -> Any:
    with patch.object(rendering, "_PIECE", size):
        return make()


@pytest.mark.parametrize(("provider", "documents"), [*zip(ALL, DOCUMENTS, strict=True)], ids=TITLES)
@given(data=st.data(), size=st.sampled_from([1, 2, 3, 2_000]))
def test_any_answer_comes_through_a_stream_unchanged(provider, documents, data, size):
    document = data.draw(documents)
    events = in_pieces_of(size, lambda: rendered_events(provider, document))
    assert assembled(provider, events) == document
    found, whole = read(provider, events), provider.whole(document)
    # In a stream two calls under one id may as well be one that goes on, and arguments that are not an object two.
    assert replace(found, is_unsure=whole.is_unsure) == whole
    assert found.is_unsure == whole.is_unsure or (found.is_unsure and not is_sound(document))


def is_sound(document: Any) -> bool:
    """Whether each call in an answer has an id of its own, and arguments that are an object."""
    ids: list[str] = []
    waiting = [document]
    while waiting:
        one = waiting.pop()
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
        if isinstance(one, dict) and {"id", "call_id"} & one.keys():
            ids.append(repr(one.get("call_id") or one.get("id")))
        if isinstance(one, dict) and isinstance(one.get("arguments"), str) and not is_object(one["arguments"]):
            return False
    return len(set(ids)) == len(ids)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(("provider", "document"), ANSWERS, ids=IDS)
def test_the_size_of_pieces_makes_no_difference(provider, document):
    for size in (7, 100_000):
        events = in_pieces_of(size, lambda: rendered_events(provider, document))
        assert assembled(provider, events) == document


NAMES = sorted(set(json.dumps([document for _, document in ANSWERS]).split('"')[1::2]))
KINDS = st.sampled_from(
    [
        *("message_start", "content_block_start", "content_block_delta", "message_delta", "error", "message"),
        *("input_json_delta", "citations_delta", "text_delta", "tool_use", "text", "thinking", "compaction"),
        *("response.output_item.done", "response.completed", "response.failed", "response.created", "reasoning"),
        *("function_call", "output_text", "summary_text", "completed"),
    ]
)
FIELDS = st.sampled_from(
    [name for name in NAMES if name.isidentifier() and len(name) < 30]
    + ["delta", "index", "content_block", "partial_json", "response", "item", "error", ""]
)
HOSTILE = st.recursive(
    JSON | KINDS | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=25,
)
ANYTHING = st.dictionaries(FIELDS, HOSTILE, max_size=5)


@pytest.mark.parametrize("provider", ALL, ids=TITLES)
@given(events=st.lists(ANYTHING, max_size=5), body=ANYTHING, text=st.text(max_size=20))
def test_nothing_raises(provider, events, body, text):
    document = assembled(provider, events)
    for one in (document, *events):
        for query in ("alt=sse", text):
            path = "/v1beta/models/gem:streamGenerateContent"
            provider.rendered(one, body=body | {"stream": True}, path=path, query=query)
            provider.rendered(one, body=body, path=text, query=query)
        assembled(provider, rendered_events(provider, one))


def changed(value: Any, at: list[int], put: Any) -> Any:
    """The value with something else at a place in it."""
    if not at or not isinstance(value, dict | list) or not value:
        return put
    number, *rest = at
    if isinstance(value, list):
        place = number % len(value)
        return [*value[:place], changed(value[place], rest, put), *value[place + 1 :]]
    name = sorted(value)[number % len(value)]
    return {**value, name: changed(value[name], rest, put)}


@pytest.mark.parametrize(("provider", "document"), ANSWERS, ids=IDS)
@given(at=st.lists(st.integers(0, 30), min_size=1, max_size=6), put=HOSTILE)
def test_a_recording_that_was_edited_goes_through_as_far_as_it_can(provider, document, at, put):
    edited = changed(document, at, put)
    content = b"".join(streamed(provider, edited).pieces)
    assert assembled(provider, events_of(content))
    whole = provider.rendered(edited, body={}, path="/m:generateContent", query="").pieces[0]
    assert whole == json.dumps(edited).encode()


def nested(levels: int) -> Any:
    value: Any = 1
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize("provider", ALL, ids=TITLES)
@pytest.mark.parametrize("levels", [200, 5_000])
def test_what_is_nested_too_deep_for_json_does_not_raise(provider: ModelApi, levels):
    deep = nested(levels)
    block = {"type": "tool_use", "input": deep, "function": deep, "functionCall": deep, "delta": deep}
    for name in ("content", "output", "choices", "candidates"):
        document = {
            name: [block, {"message": block, "content": {"parts": [block]}, "groundingMetadata": {"a": [deep]}}]
        }
        for body in (STREAMED, {}):
            assert streamed(provider, document, body).pieces
        assembled(provider, [document, {"type": "content_block_start", "content_block": deep}])
