"""Logical decoding: which rows were written, by the server's own log.

Each cell has a replication slot, which keeps the server's log from where it was made, and a publication of all tables
of its database; the output plugin `pgoutput`, which every PostgreSQL has, prints the log (PostgreSQL, "Logical
Replication Message Formats", version 1 of the protocol).

To make a slot, PostgreSQL waits until every transaction of the whole server has ended that was under way: an agent that
holds one open would keep other cells from starting. So one slot is made when the server starts, and a cell's is a copy
of it.
"""

from __future__ import annotations

import secrets
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.audit import shown_time

if TYPE_CHECKING:
    import psycopg

    from keystone_action.errors import ServiceError

SERVER_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    # A cell has one slot, for as long as its database is there.
    "max_replication_slots": "256",
    "max_wal_senders": "16",
}
"""What a server must be started with. It keeps its log for a slot however long that gets (`max_slot_wal_keep_size` is
without a limit): by what all its cells write while the one goes on."""
_PLUGIN = "pgoutput"
_SINCE_COPIES = 120000


def missing_setting(session: psycopg.Connection[Any]) -> str:
    """A sentence when the server was started without what decoding needs; else empty. Raises psycopg.Error."""
    row = session.execute("SHOW wal_level").fetchone()
    level = row[0] if row is not None else "unknown"
    return "" if level == "logical" else f"its wal_level is {level}, not logical"


class ReplicationSlots:
    """The slots of a server that has just started."""

    def __init__(
        self,
        admin: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
        failure: Callable[[str], ServiceError],
    ) -> None:
        """admin: a connection of the server's superuser. failure: makes the service's error of a problem. Raises
        psycopg.Error; ServiceError where the server can't decode."""
        self._admin = admin
        self._first = _new_name()
        self._lock = threading.Lock()
        with admin() as session:
            if missing := missing_setting(session):
                raise failure(
                    f"can't be watched for what is written into it: {missing}; let `command` of the service start it"
                    " with `-c wal_level=logical`, or leave `command` out"
                )
            _make_slot(session, self._first)

    def make(self, session: psycopg.Connection[Any]) -> str:
        """A slot for the database of this session, from now on; its name. What was committed by sessions that did not
        wait for the disk may still come. Raises psycopg.Error."""
        name = _new_name()
        with self._lock:
            if session.info.server_version < _SINCE_COPIES:
                _make_slot(session, name)
                return name
            with self._admin() as admin:
                admin.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (self._first,))
            session.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (self._first, name))
        return name


def drop_slot(session: psycopg.Connection[Any], slot: str) -> None:
    """The server need not keep its log for it any more. Raises psycopg.Error."""
    session.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )


def _make_slot(session: psycopg.Connection[Any], name: str) -> None:
    session.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (name, _PLUGIN))


def _new_name() -> str:
    return f"keystone_{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row of a table, or the whole of it."""

    schema: str
    table: str
    operation: str
    """`insert`, `update`, `delete` or `truncate`."""
    values: tuple[str, ...] = ()
    """Those that were written, where they are wanted."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of the transaction of the changes before it."""

    at: str
    """In UTC as ISO 8601."""


def read_changes(
    session: psycopg.Connection[Any], slot: str, until: str, publication: str, *, values_of: str | None
) -> Iterator[RowChange | Commit]:
    """What the log has for a slot, up to a position (`16/B374D848`); the slot stays where it is. values_of: the one
    schema whose values are wanted; None = those of all. Raises psycopg.Error, and ValueError for what the plugin does
    not print."""
    from psycopg import sql

    options = ["proto_version", "1", "publication_names", publication]
    query = sql.SQL(
        "COPY (SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}, NULL, VARIADIC ARRAY[{}]))"
        " TO STDOUT (FORMAT binary)"
    ).format(sql.Literal(slot), sql.Literal(until), sql.SQL(", ").join(map(sql.Literal, options)))
    reader = PgOutputReader(values_of)
    session.execute("SET statement_timeout = 0")
    with session.cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types(["bytea"])
        for (message,) in copy.rows():
            yield from reader.read(message)


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_ROWS = {b"I": "insert", b"U": "update", b"D": "delete"}
_SKIPPED = b"BOY"
"""Beginnings of transactions, their origins, types."""


class PgOutputReader:
    """Reads what `pgoutput` prints of a log, message by message, in order."""

    def __init__(self, values_of: str | None) -> None:
        """values_of: see `read_changes`."""
        self._values_of = values_of
        self._tables: dict[int, tuple[str, str]] = {}
        self._known: dict[bytes, tuple[RowChange]] = {}
        """Changes without values, by how their messages begin: with the operation and the table."""

    def read(self, message: bytes) -> Sequence[RowChange | Commit]:
        """Raises ValueError for what the plugin does not print."""
        try:
            return self._known.get(message[:5]) or self._read(message)
        except (struct.error, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"pgoutput printed {message[:40]!r}: {error!r}") from None

    def _read(self, message: bytes) -> Sequence[RowChange | Commit]:
        kind = message[:1]
        if kind in _ROWS:
            schema, table = self._tables[_number(message, 1)]
            if self._values_of in (None, schema):
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
