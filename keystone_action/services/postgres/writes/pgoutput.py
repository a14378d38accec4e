"""Reading what the output plugin `pgoutput` prints, which every PostgreSQL has (PostgreSQL, "Logical Replication
Message Formats", version 1 of the protocol)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from keystone_action.evidence.audit import shown_time
from keystone_action.services.postgres.writes.changes import Commit, RowChange, Wanted

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_ROWS = {b"I": "insert", b"U": "update", b"D": "delete"}
_SKIPPED = b"BOY"
"""Beginnings of transactions, their origins, types."""


class PgOutput:
    """See `PluginReader`."""

    plugin: ClassVar[str] = "pgoutput"
    options: ClassVar[Mapping[str, str]] = {"proto_version": "1"}

    def __init__(self, wanted_values: Wanted) -> None:
        self._wanted = wanted_values
        self._tables: dict[int, tuple[str, str]] = {}
        self._known: dict[bytes, tuple[RowChange]] = {}
        """Changes without values, by how their messages begin: with the operation and the table."""

    def read(self, message: bytes) -> Sequence[RowChange | Commit]:
        """See `PluginReader`."""
        try:
            return self._known.get(message[:5]) or self._read(message)
        except (struct.error, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"pgoutput printed {message[:40]!r}: {error!r}") from None

    def _read(self, message: bytes) -> Sequence[RowChange | Commit]:
        kind = message[:1]
        if kind in _ROWS:
            schema, table = self._tables[_number(message, 1)]
            if schema in self._wanted:
                # What a row was before stands in front of what it is, and was not written now.
                return (RowChange(schema, table, _ROWS[kind], tuple(_new_values(message, 5))),)
            return self._known.setdefault(message[:5], (RowChange(schema, table, _ROWS[kind]),))
        if kind == b"R":
            schema, at = _name(message, 5)
            table, _ = _name(message, at)
            self._tables[_number(message, 1)] = (schema or "pg_catalog", table)
            self._known.clear()
            return ()
        if kind == b"T":
            numbers = (_number(message, 6 + 4 * place) for place in range(_number(message, 1)))
            return [RowChange(*self._tables[number], "truncate") for number in numbers]
        if kind == b"C":
            (since,) = struct.unpack_from(">q", message, 18)
            return (Commit(shown_time(_EPOCH + timedelta(microseconds=since))),)
        if not kind or kind not in _SKIPPED:
            raise ValueError(f"pgoutput printed {message[:40]!r}")
        return ()


def _new_values(message: bytes, at: int) -> Iterator[str]:
    """Of `N` and a row; a row that is gone has none."""
    kind = message[at : at + 1]
    if kind in (b"K", b"O"):
        *_, at = _row(message, at + 1)
        if message[:1] == b"D":
            return
        kind = message[at : at + 1]
    if kind != b"N":
        raise ValueError(f"pgoutput printed {message[:40]!r}")
    values, _ = _row(message, at + 1)
    yield from values


def _row(message: bytes, at: int) -> tuple[list[str], int]:
    """Its values but those that are null or were left as they are, and where it ends."""
    (columns,) = struct.unpack_from(">h", message, at)
    at += 2
    values = []
    for _ in range(columns):
        kind = message[at : at + 1]
        at += 1
        if kind == b"t":
            length = _number(message, at)
            values.append(message[at + 4 : at + 4 + length].decode("utf-8", "replace"))
            at += 4 + length
            if at > len(message):
                raise IndexError("a value ends after its message")
        elif kind not in (b"n", b"u"):
            raise IndexError(f"a value of kind {kind!r}")
    return values, at


def _name(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode("utf-8", "replace"), end + 1


def _number(message: bytes, at: int) -> int:
    number: int = struct.unpack_from(">I", message, at)[0]
    return number
