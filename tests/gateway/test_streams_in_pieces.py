"""However a stream is split on its way, the same is read, passed on and masked."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_streams import STREAMS

from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import Answer
from keystone_action.gateway.relay import SecretBytes, shapes_of

KEY = "sk-é-real/key-0001"


def content_of(events: list[dict[str, Any]], end: str) -> bytes:
    lines = [f": {KEY}", "", *(line for event in events for line in (f"data: {json.dumps(event)}", "")), "data: [DONE]"]
    return "".join(line + end for line in [*lines, ""]).encode()


def passed(provider: ModelApi, pieces: list[bytes], *, without_usage: bool) -> tuple[bytes, Answer]:
    copy, masked = AnswerCopy(provider, without_usage=without_usage), SecretBytes(shapes_of([KEY], "[key]"))
    copy.start(200, "text/event-stream")
    found = b"".join(copy.feed(masked.feed(piece)) for piece in pieces) + copy.feed(masked.end()) + copy.end()
    return found, copy.answer()


@pytest.mark.parametrize(("provider", "events"), [one[:2] for one in STREAMS], ids=[one[0].title for one in STREAMS])
@given(
    cuts=st.lists(st.integers(0, 5_000), max_size=40),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    without_usage=st.booleans(),
    key_in=st.integers(0, 20),
)
def test_it_makes_no_difference(provider, events, cuts, end, without_usage, key_in):
    told = [{**event, "echo": KEY} if number == key_in else event for number, event in enumerate(events)]
    content = content_of(told, end)
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    found, answer = passed(provider, [content[a:b] for a, b in itertools.pairwise(places)], without_usage=without_usage)
    whole, expected = passed(provider, [content], without_usage=without_usage)
    assert (found, answer) == (whole, expected)
    assert answer.finished
    assert KEY.encode() not in found
    assert json.dumps(KEY)[1:-1].encode() not in found
    if not without_usage:
        assert found == SecretBytes(shapes_of([KEY], "[key]")).replace(content)


@pytest.mark.parametrize(("provider", "events"), [one[:2] for one in STREAMS], ids=[one[0].title for one in STREAMS])
@given(cut=st.integers(0, 5_000))
def test_what_came_of_a_cut_stream_is_the_beginning_of_the_whole(provider, events, cut):
    content = content_of(events, "\n")
    _, whole = passed(provider, [content], without_usage=False)
    found, answer = passed(provider, [content[: cut % (len(content) + 1)]], without_usage=False)
    assert whole.text.startswith(answer.text)
    assert answer.calls in ((), whole.calls)
    assert KEY.encode() not in found


def test_the_event_with_usage_is_kept_from_who_did_not_ask_for_it():
    provider, events, *_ = STREAMS[2]
    found, answer = passed(provider, [content_of(events, "\n")], without_usage=True)
    assert b'"usage"' not in found
    assert b"[DONE]" in found
    assert answer.tokens.output == 60
