"""What output plugins print, read: names, values and whatever else stands between them."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.services.postgres.writes.changes import Commit, PluginReader, RowChange, Wanted
from keystone_action.services.postgres.writes.pgoutput import PgOutput
from keystone_action.services.postgres.writes.test_decoding import TestDecoding

ALL = Wanted(everything=True, schema="")
NONE = Wanted(everything=False, schema="ours")
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)
VALUES = st.text(
    st.sampled_from("'\"[]:, \\\n") | st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30
)


def quoted(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name.islower()
    return name if plain else '"' + name.replace('"', '""') + '"'


@given(NAMES, NAMES, NAMES, VALUES, st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
def test_test_decoding_tells_names_and_values_apart_whatever_stands_in_them(
    schema: str, table: str, column: str, value: str, operation: str
) -> None:
    literal = value.replace("'", "''")
    line = f"table {quoted(schema)}.{quoted(table)}: {operation}: {quoted(column)}[text]:'{literal}'"
    [change] = TestDecoding(ALL).read(line.encode())
    assert isinstance(change, RowChange)
    assert (change.schema, change.table, change.operation) == (schema, table, operation.lower())
    assert value in change.values[0] if operation != "DELETE" else change.values == ()
    assert TestDecoding(NONE).read(line.encode()) == (RowChange(schema, table, operation.lower()),)


@given(VALUES, VALUES)
def test_what_a_key_was_is_left_out_and_never_what_it_is(old: str, new: str) -> None:
    old, new = (one.replace("'", "''") for one in (old, new))
    line = f"table a.b: UPDATE: old-key: id[text]:'was {old}' new-tuple: id[text]:'is {new}'"
    [change] = TestDecoding(ALL).read(line.encode())
    assert isinstance(change, RowChange)
    assert change.values[0].endswith(f"'is {new}'".replace("''", "'"))
    assert "was " not in change.values[0] or " new-tuple: " in old or "was " in new


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4))
def test_test_decoding_names_each_table_that_is_emptied_at_once(tables: list[tuple[str, str]]) -> None:
    names = ", ".join(f"{quoted(schema)}.{quoted(table)}" for schema, table in tables)
    found = TestDecoding(NONE).read(f"table {names}: TRUNCATE: restart_seqs cascade".encode())
    assert list(found) == [RowChange(schema, table, "truncate") for schema, table in tables]


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (b"COMMIT (at 2026-11-23 13:00:00.12+00)", "2026-11-23T13:00:00.120000Z"),
        (b"COMMIT (at 2026-11-23 13:00:00+05:30)", "2026-11-23T07:30:00.000000Z"),
    ],
)
def test_test_decoding_tells_when(line: bytes, at: str) -> None:
    assert TestDecoding(NONE).read(line) == (Commit(at),)
    assert TestDecoding(NONE).read(b"BEGIN") == ()
    assert TestDecoding(NONE).read(b"message: transactional: 1 prefix: table a.b: INSERT: , sz: 0 content:") == ()


@pytest.mark.parametrize("line", [b"", b"COMMIT", b"table : INSERT: ", b"table a: INSERT: x", b"nonsense"])
def test_what_test_decoding_does_not_print_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match="test_decoding printed"):
        TestDecoding(ALL).read(line)


def relation(number: int, schema: str, table: str) -> bytes:
    return b"R" + struct.pack(">I", number) + schema.encode() + b"\0" + table.encode() + b"\0f" + struct.pack(">h", 0)


def row(values: list[str | None]) -> bytes:
    cells = (b"n" if one is None else b"t" + struct.pack(">I", len(one.encode())) + one.encode() for one in values)
    return struct.pack(">h", len(values)) + b"".join(cells)


def feed(reader: PluginReader, *messages: bytes) -> list[RowChange | Commit]:
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
    assert feed(PgOutput(ALL), *messages) == [RowChange(schema, table, *one) for one in operations]
    assert feed(PgOutput(NONE), *messages) == [RowChange(schema, table, name) for name, _ in operations]


def test_pgoutput_follows_a_table_that_gets_another_name() -> None:
    insert = b"I" + struct.pack(">I", 7) + b"N" + row(["x"])
    found = feed(PgOutput(NONE), relation(7, "a", "b"), insert, insert, relation(7, "a", "c"), insert)
    assert [one.table for one in found if isinstance(one, RowChange)] == ["b", "b", "c"]


def test_pgoutput_tells_when() -> None:
    since = struct.pack(">BQQq", 0, 1, 2, 817_131_600_000_000)
    assert PgOutput(NONE).read(b"C" + since) == (Commit("2025-11-22T13:00:00.000000Z"),)
    assert PgOutput(NONE).read(b"B" + struct.pack(">QqI", 1, 2, 3)) == ()


@given(st.binary(max_size=60))
def test_anything_else_in_the_place_of_pgoutput_is_a_value_error(message: bytes) -> None:
    for wanted in (ALL, NONE):
        reader = PgOutput(wanted)
        reader.read(relation(0, "a", "b"))
        with suppress(ValueError):
            reader.read(message)


def test_a_message_that_is_cut_is_no_shorter_row() -> None:
    reader = PgOutput(ALL)
    reader.read(relation(7, "a", "b"))
    whole = b"U" + struct.pack(">I", 7) + b"O" + row(["old", None]) + b"N" + row(["new", "x" * 40])
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match="pgoutput printed"):
            reader.read(whole[:cut])
