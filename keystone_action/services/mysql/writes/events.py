"""The events of a binary log, as a server of MySQL 8 or later sends them to a replica, and what is read of each.

Written here, since libraries pass over events of tables that they do not know, connect anew in mid-log, and give up
types that are younger than they are: what is not understood must be said.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

QUERY, ROTATE, FORMAT, XID, TABLE_MAP, XA_PREPARE = 2, 4, 15, 16, 19, 38
GTIDS = frozenset({33, 34, 42})
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 30, 31, 32
ROWS = {WRITE_ROWS: "insert", UPDATE_ROWS: "update", DELETE_ROWS: "delete"}
IGNORED = frozenset({3, ROTATE, 5, 13, 14, FORMAT, 27, 29, 35, 41})
"""Ends and starts of files, variables of a statement, a statement as a comment, what was logged before."""
_DUMP, _NON_BLOCKING = 0x12, 1
_CHECKSUM = 4
_OFFSET_MASK = (1 << 32) - 1
"""A transaction is never divided between files, so one can be longer than its own offsets can say."""
_HEADER = struct.Struct("<IBIIIH")
_GTID_SECONDS_AT = {33: 42, 34: 42}
_STATUS_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1}
_MANY_DATABASES = 254


class LogError(RuntimeError):
    """The log can't be read, or holds what we do not understand."""


class Position(NamedTuple):
    """Of the next event. Files are numbered in the order of their names, whose lengths may differ."""

    number: int
    offset: int
    file: str

    @classmethod
    def of(cls, file: str, offset: int) -> Position:
        """Raises LogError."""
        number = file.rpartition(".")[2]
        if not number.isdecimal():
            raise LogError(f"its binary log has a file {file!r}, without a number")
        return cls(int(number), offset, file)


@dataclass(frozen=True, slots=True)
class Event:
    """kind: its number. start, end: where it stands. body: without header and checksum."""

    kind: int
    start: Position
    end: Position
    body: bytes


def read_log(connection: Mapping[str, Any], start: Position, end: Position) -> Iterator[Event]:
    """The events between two positions. connection: keywords of `pymysql.connect`. Raises LogError and pymysql's
    errors."""
    import pymysql

    session: Any = pymysql.connect(**connection)
    try:
        if start.offset > _OFFSET_MASK:
            raise LogError(f"{start.file} is too long to be read from {start.offset} on")
        with closing(session.cursor()) as cursor:
            cursor.execute("SET @master_binlog_checksum = 'NONE', @source_binlog_checksum = 'NONE'")
        replica = secrets.randbelow((1 << 31) - 2) + (1 << 31)  # an equal one would end the other's session
        order = struct.pack("<BIHI", _DUMP, start.offset, _NON_BLOCKING, replica) + start.file.encode()
        session._write_bytes(struct.pack("<I", len(order)) + order)
        session._next_seq_id = 1
        yield from _events(session, start, end)
    finally:
        session._force_close()


def _events(session: Any, start: Position, end: Position) -> Iterator[Event]:
    at, has_checksum = start, False
    while at < end:
        packet = session._read_packet()
        if packet.is_eof_packet():
            raise LogError(f"its binary log ended at {at.file}:{at.offset}, before {end.file}:{end.offset}")
        whole = packet.get_all_data()[1:]
        _, kind, _, size, next_offset, _ = _HEADER.unpack_from(whole)
        if size != len(whole):
            raise LogError(f"an event of its binary log has {len(whole)} bytes; it says {size}")
        if kind == FORMAT:
            # It ends in whether events have a checksum, and in its own.
            has_checksum = whole[-1 - _CHECKSUM] == 1
        if kind == ROTATE and not next_offset:
            (offset,) = struct.unpack_from("<Q", whole, _HEADER.size)
            name = whole[_HEADER.size + 8 : -_CHECKSUM if has_checksum else None]
            at = Position.of(name.decode("ascii", "replace"), offset)
        if not next_offset:
            continue  # made up for us, as the name of the file and heartbeats are
        if has_checksum and zlib.crc32(whole[:-_CHECKSUM]) != int.from_bytes(whole[-_CHECKSUM:], "little"):
            raise LogError(f"an event of its binary log, at {at.file}:{at.offset}, is damaged")
        after = at._replace(offset=at.offset + size)
        if after.offset & _OFFSET_MASK != next_offset:
            raise LogError(f"its binary log has a gap after {at.file}:{at.offset}")
        yield Event(kind, at, after, whole[_HEADER.size : -_CHECKSUM if has_checksum else None])
        at = after


class Query(NamedTuple):
    """A statement. schema: the session's database. databases: those that it changes, None where that is not said."""

    schema: str
    databases: tuple[str, ...] | None
    sql_mode: int
    charset: int
    statement: bytes


def read_query(body: bytes) -> Query:
    """Raises LogError."""
    try:
        _, _, schema_length, _, status_length = struct.unpack_from("<IIBHH", body)
        at = 13 + status_length
        found = _status(body[13:at])
        schema = body[at : at + schema_length].decode("utf-8", "surrogateescape")
        return Query(schema, *found, body[at + schema_length + 1 :])
    except (struct.error, IndexError) as error:
        raise LogError(f"a statement of its binary log can't be read: {error}") from None


def _status(variables: bytes) -> tuple[tuple[str, ...] | None, int, int]:
    databases: tuple[str, ...] | None = None
    sql_mode = charset = at = 0
    while at < len(variables):
        kind = variables[at]
        at += 1
        if kind == 1:
            (sql_mode,) = struct.unpack_from("<Q", variables, at)
        elif kind == 4:
            (charset,) = struct.unpack_from("<H", variables, at)
        if kind == 12:
            count = variables[at]
            at += 1
            if count != _MANY_DATABASES:
                names = variables[at:].split(b"\0")[:count]
                databases = tuple(name.decode("utf-8", "surrogateescape") for name in names)
                at += sum(len(name) + 1 for name in names)
        elif kind in (5, 6):
            at += 1 + variables[at]
        elif kind == 11:
            at += 1 + variables[at]
            at += 1 + variables[at]
        elif kind in _STATUS_SIZES:
            at += _STATUS_SIZES[kind]
        else:
            raise LogError(f"a statement of its binary log has a variable {kind} that we do not know")
    return databases, sql_mode, charset


def committed_at(event: Event) -> float | None:
    """When a transaction was, by the server's clock: an agent can set the time of its statements. None = not said."""
    at = _GTID_SECONDS_AT.get(event.kind)
    if at is None or len(event.body) < at + 7:
        return None
    microseconds = int.from_bytes(event.body[at : at + 7], "little") & ((1 << 55) - 1)
    return microseconds / 1_000_000


def read_prepared(body: bytes) -> tuple[bool, str]:
    """Of an XA transaction: whether it was committed at once, and its name as statements have it. Raises LogError."""
    try:
        one_phase, format_id, first, second = struct.unpack_from("<?III", body)
    except struct.error as error:
        raise LogError(f"a prepared transaction of its binary log can't be read: {error}") from None
    name = body[13 : 13 + first + second]
    return one_phase, f"X'{name[:first].hex()}',X'{name[first:].hex()}',{format_id}"
