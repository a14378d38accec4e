"""Events of a stream, however its bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gateway.answer_copy import EventStream

LINES = st.lists(st.sampled_from(["data: {}", "data:1", "data", ": still there", "event: x", "id: 3", ""]), max_size=12)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def pieces_of(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    return [content[a:b] for a, b in itertools.pairwise(places)]


@given(LINES, ENDS, st.lists(st.integers(0, 500)))
def test_pieces_make_the_events_of_the_whole(lines, end, cuts):
    content = "".join(line + end for line in lines).encode()
    whole, cut = EventStream(), EventStream()
    expected = list(whole.feed(content))
    found = [event for piece in pieces_of(content, cuts) for event in cut.feed(piece)]
    assert (found, cut.rest) == (expected, whole.rest)
    assert b"".join(event.raw for event in found) + cut.rest == content


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_data_lines_are_joined(end):
    content = end.join(["event: a", "data: {", "data:}", "", "data: 2", "", ": nothing", "", ""])
    stream = EventStream()
    found = list(stream.feed(content.encode() + b"x"))  # more to come: a CR at the end could be the half of CRLF
    assert [event.data for event in found] == ["{\n}", "2", None]
    assert found[0].json() == {}
    assert found[1].json() is None
    assert stream.rest == b"x"


@pytest.mark.parametrize("data", ["", "[DONE]", "[]", '"text"', "{", "[" * 100_000])
def test_what_is_no_object_is_none(data):
    (event,) = EventStream().feed(f"data: {data}\n\n".encode())
    assert event.json() is None


def test_bytes_that_are_no_text_are_passed_on_as_they_are():
    (event,) = EventStream().feed(b"data: \xff\n\n")
    assert event.raw == b"data: \xff\n\n"
    assert event.data == "�"
