"""The two ends of what comes in pieces of any size, and the file that gets more of it."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from keystone_action.files.kept_output import HeadAndTail

PIECES = st.lists(st.binary(max_size=40) | st.integers(60_000, 70_000).map(bytes), max_size=12)
SIZES = st.integers(0, 60) | st.integers(60_000, 200_000)


@given(PIECES, SIZES, SIZES, SIZES, st.data())
def test_ends_and_copy_are_those_of_the_whole(
    pieces: list[bytes], head: int, tail: int, limit: int, data: st.DataObject
) -> None:
    above = data.draw(st.integers(0, head + tail))
    copy = bytearray()
    kept = HeadAndTail(head, tail, copy=copy.extend, above=above, limit=limit)
    for piece in pieces:
        kept.add(piece)
    whole = b"".join(pieces)
    assert kept.parts() == (whole[:head], whole[head:][-tail:] if tail else b"")
    assert kept.total == len(whole)
    assert copy == (whole[:limit] if len(whole) > above else b"")


def test_many_small_pieces_take_no_more_room_than_their_bytes() -> None:
    kept = HeadAndTail(1 << 10, 1 << 16)
    tracemalloc.start()
    try:
        for _ in range(60_000):
            kept.add(b"ab")
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()
