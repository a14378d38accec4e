"""What the output plugin `pgoutput` prints, read: names, values and whatever else stands between them."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.services.postgres.logical_decoding import Commit, PgOutputReader, RowChange

ALL, NONE = None, "ours"
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)
VALUES = st.text(
    st.sampled_from("'\"[]:, \\\n") | st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30
)


def relation(number: int, schema: str, table: str) -> bytes:
    return b"R" + struct.pack(">I", number) + schema.encode() + b"\0" + table.encode() + b"\0f" + struct.pack(">h", 0)


def row(values: list[str | None]) -> bytes:
    cells = (b"n" if one is None else b"t" + struct.pack(">I", len(one.encode())) + one.encode() for one in values)
    return struct.pack(">h", len(values)) + b"".join(cells)


def feed(reader: PgOutputReader, *messages: bytes) -> list[RowChange | Commit]:
    return [change for message in messages for change in reader.read(message)]


@given(NAMES, NAMES, st.lists(st.none() | VALUES, max_size=4), st.lists(st.none() | VALUES, max_size=4))
def test_pgoutput_gives_what_a_row_is_and_not_what_it_was(
    schema: str, table: str, old: list[str | None], new: list[str | None]
) -> None:
    number = struct.pack(">I", 7)
    messages = [
        relation(7, schema, table),
        b"I" + number + b"N" + row(new),
        b"U" + number + b"O" + row(old) + b"N" + row(new),
        b"U" + number + b"N" + row(new),
        b"D" + number + b"O" + row(old),
        b"T" + struct.pack(">I", 1) + b"\0" + number,
    ]
    values = tuple(one for one in new if one is not None)
    operations = [("insert", values), ("update", values), ("update", values), ("delete", ()), ("truncate", ())]
    assert feed(PgOutputReader(ALL), *messages) == [RowChange(schema, table, *one) for one in operations]
    assert feed(PgOutputReader(NONE), *messages) == [RowChange(schema, table, name) for name, _ in operations]


def test_pgoutput_follows_a_table_that_gets_another_name() -> None:
    insert = b"I" + struct.pack(">I", 7) + b"N" + row(["x"])
    found = feed(PgOutputReader(NONE), relation(7, "a", "b"), insert, insert, relation(7, "a", "c"), insert)
    assert [one.table for one in found if isinstance(one, RowChange)] == ["b", "b", "c"]


def test_pgoutput_tells_when() -> None:
    since = struct.pack(">BQQq", 0, 1, 2, 817_131_600_000_000)
    assert PgOutputReader(NONE).read(b"C" + since) == (Commit("2025-11-22T13:00:00.000000Z"),)
    assert PgOutputReader(NONE).read(b"B" + struct.pack(">QqI", 1, 2, 3)) == ()


@given(st.binary(max_size=60))
def test_anything_else_in_the_place_of_pgoutput_is_a_value_error(message: bytes) -> None:
    for wanted in (ALL, NONE):
        reader = PgOutputReader(wanted)
        reader.read(relation(0, "a", "b"))
        with suppress(ValueError):
            reader.read(message)


def test_a_message_that_is_cut_is_no_shorter_row() -> None:
    reader = PgOutputReader(ALL)
    reader.read(relation(7, "a", "b"))
    whole = b"U" + struct.pack(">I", 7) + b"O" + row(["old", None]) + b"N" + row(["new", "x" * 40])
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match="pgoutput printed"):
            reader.read(whole[:cut])
