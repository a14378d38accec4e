"""The binary log of a server of MySQL 8 or later, as the server sends it to a replica: its events and their rows.

It is read here and not by `mysql-replication` (1.0.17): that library can't read any table with a VECTOR column, gives
texts of UTF-16 columns with their bytes swapped, does not read by which clock of the server a transaction was
committed (the time of a statement can be set by the agent), and passes over rows of a table that the log did not name.
What is not understood here is an error, and never silence.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from keystone_action.services.mysql.database_view import decode

QUERY, ROTATE, FORMAT, XID, TABLE_MAP, XA_PREPARE = 2, 4, 15, 16, 19, 38
GTIDS = frozenset({33, 34, 42})
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 30, 31, 32
ROW_OPERATIONS = {WRITE_ROWS: "insert", UPDATE_ROWS: "update", DELETE_ROWS: "delete"}
IGNORED = frozenset({3, ROTATE, 5, 13, 14, FORMAT, 27, 29, 35, 41})
"""Ends and starts of files, variables of a statement, a statement as a comment, what was logged before."""
_DUMP, _NON_BLOCKING = 0x12, 1
_CHECKSUM_BYTES = 4
_OFFSET_MASK = (1 << 32) - 1
"""A transaction is never divided between files, so one can be longer than its own offsets can say."""
_HEADER = struct.Struct("<IBIIIH")
_COMMIT_TIME_AT = {33: 42, 34: 42}
"""Where, by kind of event, the server's own time of a commit stands."""


class LogError(RuntimeError):
    """The log can't be read, or holds what we do not understand."""


class LogPosition(NamedTuple):
    """A place in the log. Files are ordered by their numbers: their names may differ in length."""

    number: int
    """Of the file."""
    offset: int
    """Of the next event, in bytes."""
    file: str
    """Its name."""

    @classmethod
    def of(cls, file: str, offset: int) -> LogPosition:
        """Raises LogError."""
        number = file.rpartition(".")[2]
        if not number.isdecimal():
            raise LogError(f"its binary log has a file {file!r}, without a number")
        return cls(int(number), offset, file)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event of the log."""

    kind: int
    """Its number in MySQL's protocol."""
    start: LogPosition
    end: LogPosition
    body: bytes
    """Without header and checksum."""


def read_log(connection: Mapping[str, Any], start: LogPosition, end: LogPosition) -> Iterator[LogEvent]:
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


def _events(session: Any, start: LogPosition, end: LogPosition) -> Iterator[LogEvent]:
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
            has_checksum = whole[-1 - _CHECKSUM_BYTES] == 1
        if kind == ROTATE and not next_offset:
            (offset,) = struct.unpack_from("<Q", whole, _HEADER.size)
            name = whole[_HEADER.size + 8 : -_CHECKSUM_BYTES if has_checksum else None]
            at = LogPosition.of(name.decode("ascii", "replace"), offset)
        if not next_offset:
            continue  # made up for us, as the name of the file and heartbeats are
        if has_checksum and zlib.crc32(whole[:-_CHECKSUM_BYTES]) != int.from_bytes(whole[-_CHECKSUM_BYTES:], "little"):
            raise LogError(f"an event of its binary log, at {at.file}:{at.offset}, is damaged")
        after = at._replace(offset=at.offset + size)
        if after.offset & _OFFSET_MASK != next_offset:
            raise LogError(f"its binary log has a gap after {at.file}:{at.offset}")
        yield LogEvent(kind, at, after, whole[_HEADER.size : -_CHECKSUM_BYTES if has_checksum else None])
        at = after


def read_statement(body: bytes) -> tuple[str, bytes]:
    """The session's database, and the statement. Raises LogError."""
    try:
        _, _, schema_length, _, status_length = struct.unpack_from("<IIBHH", body)
    except struct.error as error:
        raise LogError(f"a statement of its binary log can't be read: {error}") from None
    at = 13 + status_length
    return body[at : at + schema_length].decode("utf-8", "surrogateescape"), body[at + schema_length + 1 :]


def committed_at(event: LogEvent) -> float | None:
    """When a transaction was committed, by the server's clock, in seconds; None where it is not said. The time in an
    event's header is that of a statement, which an agent can set."""
    at = _COMMIT_TIME_AT.get(event.kind)
    if at is None or len(event.body) < at + 7:
        return None
    microseconds = int.from_bytes(event.body[at : at + 7], "little") & ((1 << 55) - 1)
    return microseconds / 1_000_000


def read_prepared(body: bytes) -> tuple[bool, str]:
    """Whether an XA transaction was committed at once, and its name as statements have it. Raises LogError."""
    try:
        one_phase, format_id, first, second = struct.unpack_from("<?III", body)
    except struct.error as error:
        raise LogError(f"a prepared transaction of its binary log can't be read: {error}") from None
    name = body[13 : 13 + first + second]
    return one_phase, f"X'{name[:first].hex()}',X'{name[first:].hex()}',{format_id}"


_INTEGERS = {1: 1, 2: 2, 3: 4, 8: 8, 9: 3}
_OTHER_FIXED = {0: 1, 6: 0, 7: 4, 10: 3, 11: 3, 12: 8, 13: 1, 14: 3}
"""Bytes by type: those of old tables, dates and years."""
_FLOAT, _DOUBLE, _VARCHAR, _BIT, _TIMESTAMP2, _DATETIME2, _TIME2 = 4, 5, 15, 16, 17, 18, 19
_VECTOR, _JSON, _DECIMAL, _ENUM, _SET, _BLOB, _STRING, _GEOMETRY = 242, 245, 246, 247, 248, 252, 254, 255
_BLOBS = frozenset({_VECTOR, _JSON, 249, 250, 251, _BLOB, _GEOMETRY})
_CHARACTERS = frozenset({_VARCHAR, _BLOB, 253, _STRING})
_WITH_COLLATION = _CHARACTERS | {_VECTOR}
"""The types whose collations a table names."""
_META_SIZES = {
    **dict.fromkeys((_FLOAT, _DOUBLE, _TIMESTAMP2, _DATETIME2, _TIME2, *_BLOBS), 1),
    **dict.fromkeys((_VARCHAR, _BIT, _DECIMAL, _ENUM, _SET, 253, _STRING), 2),
}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DEFAULT_CHARSET, _COLUMN_CHARSET = 2, 3


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column of a table, as far as its values need it."""

    kind: int
    """The number of its type."""
    fixed: int = 0
    """How many bytes each value has; 0 where each says it itself, in `length_bytes`."""
    length_bytes: int = 0
    digits: tuple[int, int] = (0, 0)
    """Of a decimal: all its digits, and those after the point."""
    collation: int = 0
    """The number of a text's collation; 0 where none is said."""


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table as the events after it mean it."""

    schema: str
    name: str
    columns: tuple[LoggedColumn, ...]


def read_table(body: bytes) -> tuple[int, LoggedTable]:
    """Its number in the log, and what it is. Raises LogError."""
    try:
        at = 9 + body[8]
        schema = body[9:at].decode("utf-8", "surrogateescape")
        length = body[at + 1]
        name = body[at + 2 : at + 2 + length].decode("utf-8", "surrogateescape")
        count, at = _packed(body, at + 3 + length)
        kinds, at = body[at : at + count], at + count
        size, at = _packed(body, at)
        columns = list(_columns(kinds, body[at : at + size]))
        at += size
        collations = _collations(body[at + (count + 7) // 8 :], [one.kind in _WITH_COLLATION for one in columns])
        whole = tuple(
            LoggedColumn(one.kind, one.fixed, one.length_bytes, one.digits, collation)
            for one, collation in zip(columns, collations, strict=True)
        )
        return table_number(body), LoggedTable(schema, name, whole)
    except (IndexError, ValueError) as error:
        raise LogError(f"a table of its binary log can't be read: {error}") from None


def table_number(body: bytes) -> int:
    """Of an event that names a table, or has rows of one."""
    return int.from_bytes(body[:6], "little")


def _columns(kinds: bytes, meta: bytes) -> Iterator[LoggedColumn]:
    at = 0
    for kind in kinds:
        size = _META_SIZES.get(kind, 0)
        yield _column(kind, meta[at : at + size])
        at += size


def _column(kind: int, meta: bytes) -> LoggedColumn:
    if kind in _INTEGERS or kind in _OTHER_FIXED:
        return LoggedColumn(kind, _INTEGERS.get(kind) or _OTHER_FIXED[kind])
    if kind in (_FLOAT, _DOUBLE):
        return LoggedColumn(kind, meta[0])
    if kind in (_TIMESTAMP2, _DATETIME2, _TIME2):
        return LoggedColumn(kind, {_TIMESTAMP2: 4, _DATETIME2: 5, _TIME2: 3}[kind] + (meta[0] + 1) // 2)
    if kind in _BLOBS:
        return LoggedColumn(kind, 0, meta[0])
    if kind == _VARCHAR:
        return LoggedColumn(kind, 0, 1 if int.from_bytes(meta, "little") < 256 else 2)
    if kind == _BIT:
        return LoggedColumn(kind, meta[1] + (meta[0] > 0))
    if kind == _DECIMAL:
        whole, part = meta[0] - meta[1], meta[1]
        size = whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + part // 9 * 4 + _DIGIT_BYTES[part % 9]
        return LoggedColumn(kind, size, 0, (meta[0], part))
    if kind == _STRING:
        # The type and the length share two bytes, where a length above 255 has two bits in the type.
        if meta[0] in (_ENUM, _SET):
            return LoggedColumn(meta[0], meta[1])
        longest = meta[1] + ((meta[0] & 0x30 ^ 0x30) << 4)
        return LoggedColumn(kind, 0, 1 if longest < 256 else 2)
    raise LogError(f"a table of its binary log has a column of type {kind}, which we do not know")


def _collations(optional: bytes, is_text: list[bool]) -> list[int]:
    """The collation of each column, 0 where nothing is said."""
    found = [0] * len(is_text)
    texts = [number for number, one in enumerate(is_text) if one]
    at = 0
    while at < len(optional):
        kind = optional[at]
        size, at = _packed(optional, at + 1)
        value, at = optional[at : at + size], at + size
        numbers: list[int] = []
        if kind in (_DEFAULT_CHARSET, _COLUMN_CHARSET):
            where = 0
            while where < size:
                number, where = _packed(value, where)
                numbers.append(number)
        if kind == _DEFAULT_CHARSET:
            others = dict(zip(numbers[1::2], numbers[2::2], strict=True))
            for order, number in enumerate(texts):
                found[number] = others.get(order, numbers[0])
        elif kind == _COLUMN_CHARSET:
            for number, one in zip(texts, numbers, strict=True):
                found[number] = one
    return found


class LoggedRows:
    """The rows of one event. Raises LogError where they are not as their table says."""

    def __init__(self, event: LogEvent, table: LoggedTable) -> None:
        self._body, self._columns = event.body, table.columns
        count, at = _packed(event.body, 8 + int.from_bytes(event.body[8:10], "little"))
        if count != len(table.columns):
            raise LogError(f"rows of {table.schema}.{table.name} have {count} columns; it has {len(table.columns)}")
        self._images = 2 if event.kind == UPDATE_ROWS else 1
        self._start = at + self._images * ((count + 7) // 8)
        if sum(one.bit_count() for one in event.body[at : self._start]) < self._images * count:
            raise LogError(f"rows of {table.schema}.{table.name} are logged in part")

    def count(self) -> int:
        """How many there are."""
        return sum(1 for _ in self._walk(None)) // self._images

    def texts(self, encodings: Mapping[int, str]) -> Iterator[str]:
        """The values of each row as it is now. encodings: Python's, by the number of a collation."""
        for number, values in enumerate(self._walk(encodings)):
            if self._images == 1 or number % 2:
                yield "\n".join(values)

    def _walk(self, encodings: Mapping[int, str] | None) -> Iterator[list[str]]:
        body, columns, at = self._body, self._columns, self._start
        null_bytes = (len(columns) + 7) // 8
        try:
            while at < len(body):
                nulls = int.from_bytes(body[at : at + null_bytes], "little")
                at += null_bytes
                values: list[str] = []
                for column in columns:
                    is_null, nulls = nulls & 1, nulls >> 1
                    if is_null:
                        continue
                    size = column.fixed
                    if length_bytes := column.length_bytes:
                        size = int.from_bytes(body[at : at + length_bytes], "little")
                        at += length_bytes
                    if encodings is not None and (value := _text(column, body[at : at + size], encodings)):
                        values.append(value)
                    at += size
                yield values
        except (IndexError, ValueError, struct.error) as error:
            raise LogError(f"a row of its binary log can't be read: {error}") from None
        if at != len(body):
            raise LogError("a row of its binary log goes on after its end")


def _text(column: LoggedColumn, value: bytes, encodings: Mapping[int, str]) -> str:
    kind = column.kind
    if kind in _INTEGERS:
        signed, unsigned = (int.from_bytes(value, "little", signed=one) for one in (True, False))
        return str(signed) if signed == unsigned else f"{signed} {unsigned}"
    if kind in _SHOWN:
        return _SHOWN[kind](column, value)
    if kind in _CHARACTERS or kind in _BLOBS:
        return decode(value, encodings.get(column.collation, ""))
    return ""  # dates, and what stands for a word of the table's definition


def _decimal(column: LoggedColumn, value: bytes) -> str:
    """Groups of nine digits, those that are left over outermost; the first bit is the sign, and negative numbers have
    all bits inverted."""
    digits, part = column.digits
    positive = bool(value[0] & 0x80)
    plain = bytes([value[0] ^ 0x80]) + value[1:]
    if not positive:
        plain = bytes(one ^ 0xFF for one in plain)
    sizes = [(digits - part) % 9, *[9] * ((digits - part) // 9), *[9] * (part // 9), part % 9]
    found, at, whole = [], 0, 1 + (digits - part) // 9
    for number, size in enumerate(sizes):
        length = _DIGIT_BYTES[size]
        if size:
            found.append(f"{int.from_bytes(plain[at : at + length], 'big'):0{size}d}")
        at += length
        if number == whole - 1:
            found.append(".")
    return ("" if positive else "-") + "".join(found).lstrip("0").rstrip(".")


_SHOWN: Mapping[int, Callable[[LoggedColumn, bytes], str]] = {
    _FLOAT: lambda _, value: str(struct.unpack("<f", value)[0]),
    _DOUBLE: lambda _, value: str(struct.unpack("<d", value)[0]),
    _DECIMAL: _decimal,
    _BIT: lambda _, value: str(int.from_bytes(value, "big")),
}


def _packed(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if size is None:
        raise ValueError("a number with no length")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
