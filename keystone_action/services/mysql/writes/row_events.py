"""The rows of a binary log: which table, how many, and their values as text."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from keystone_action.services.mysql.writes.events import UPDATE_ROWS, LogError
from keystone_action.services.mysql.writes.look import decode

_INTEGERS = {1: 1, 2: 2, 3: 4, 8: 8, 9: 3}
_OTHER_FIXED = {0: 1, 6: 0, 7: 4, 10: 3, 11: 3, 12: 8, 13: 1, 14: 3}
"""By type: those of old tables, dates and years."""
_FLOAT, _DOUBLE, _VARCHAR, _BIT, _TIMESTAMP2, _DATETIME2, _TIME2 = 4, 5, 15, 16, 17, 18, 19
_VECTOR, _JSON, _DECIMAL, _ENUM, _SET, _BLOB, _STRING, _GEOMETRY = 242, 245, 246, 247, 248, 252, 254, 255
_BLOBS = frozenset({_VECTOR, _JSON, 249, 250, 251, _BLOB, _GEOMETRY})
_CHARACTERS = frozenset({_VARCHAR, _BLOB, 253, _STRING})
_WITH_COLLATION = _CHARACTERS | {_VECTOR}
"""Those of which a table says it."""
_META_SIZES = {
    **dict.fromkeys((_FLOAT, _DOUBLE, _TIMESTAMP2, _DATETIME2, _TIME2, *_BLOBS), 1),
    **dict.fromkeys((_VARCHAR, _BIT, _DECIMAL, _ENUM, _SET, 253, _STRING), 2),
}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Column:
    """kind: the type's number. fixed: the bytes of its values; 0 where they say themselves, in `length_bytes`. digits:
    of a decimal, all and after the point. collation: its number, of a text."""

    kind: int
    fixed: int = 0
    length_bytes: int = 0
    digits: tuple[int, int] = (0, 0)
    collation: int = 0


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table as the events after it mean it."""

    schema: str
    name: str
    columns: tuple[Column, ...]


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
        meta, at = body[at : at + size], at + size
        columns = list(_columns(kinds, meta))
        collations = _collations(body[at + (count + 7) // 8 :], [one.kind in _WITH_COLLATION for one in columns])
        return int.from_bytes(body[:6], "little"), LoggedTable(
            schema,
            name,
            tuple(
                Column(one.kind, one.fixed, one.length_bytes, one.digits, collation)
                for one, collation in zip(columns, collations, strict=True)
            ),
        )
    except (IndexError, ValueError) as error:
        raise LogError(f"a table of its binary log can't be read: {error}") from None


def _columns(kinds: bytes, meta: bytes) -> Iterator[Column]:
    at = 0
    for kind in kinds:
        size = _META_SIZES.get(kind, 0)
        yield _column(kind, meta[at : at + size])
        at += size


def _column(kind: int, meta: bytes) -> Column:
    if kind in _INTEGERS or kind in _OTHER_FIXED:
        return Column(kind, _INTEGERS.get(kind) or _OTHER_FIXED[kind])
    if kind in (_FLOAT, _DOUBLE):
        return Column(kind, meta[0])
    if kind in (_TIMESTAMP2, _DATETIME2, _TIME2):
        return Column(kind, {_TIMESTAMP2: 4, _DATETIME2: 5, _TIME2: 3}[kind] + (meta[0] + 1) // 2)
    if kind in _BLOBS:
        return Column(kind, 0, meta[0])
    if kind == _VARCHAR:
        return Column(kind, 0, 1 if int.from_bytes(meta, "little") < 256 else 2)
    if kind == _BIT:
        return Column(kind, meta[1] + (meta[0] > 0))
    if kind == _DECIMAL:
        whole, part = meta[0] - meta[1], meta[1]
        size = whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + part // 9 * 4 + _DIGIT_BYTES[part % 9]
        return Column(kind, size, 0, (meta[0], part))
    if kind == _STRING:
        # The type and the length share two bytes, where a length above 255 has two bits in the type.
        if meta[0] in (_ENUM, _SET):
            return Column(meta[0], meta[1])
        longest = meta[1] + ((meta[0] & 0x30 ^ 0x30) << 4)
        return Column(kind, 0, 1 if longest < 256 else 2)
    raise LogError(f"a table of its binary log has a column of type {kind}, which we do not know")


def _collations(optional: bytes, is_text: list[bool]) -> list[int]:
    """Of each column, 0 where nothing is said."""
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


def table_of_rows(body: bytes) -> int:
    """The number of the table that rows are of."""
    return int.from_bytes(body[:6], "little")


class Rows:
    """The rows of one event. Raises LogError where they are not as their table says."""

    def __init__(self, kind: int, body: bytes, table: LoggedTable) -> None:
        self._body, self._columns = body, table.columns
        at = 8 + int.from_bytes(body[8:10], "little")
        count, at = _packed(body, at)
        if count != len(table.columns):
            raise LogError(f"rows of {table.schema}.{table.name} have {count} columns; it has {len(table.columns)}")
        self._images = 2 if kind == UPDATE_ROWS else 1
        bitmaps, self._start = body[at : at + self._images * ((count + 7) // 8)], at + self._images * ((count + 7) // 8)
        if sum(one.bit_count() for one in bitmaps) < self._images * count:
            raise LogError(f"rows of {table.schema}.{table.name} are logged in part")

    def count(self) -> int:
        """How many."""
        return sum(1 for _ in self._walk(None)) // self._images

    def texts(self, encodings: Mapping[int, str]) -> Iterator[str]:
        """The values of each row as it is now. encodings: by collation."""
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
                    if nulls & 1:
                        nulls >>= 1
                        continue
                    nulls >>= 1
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


def _text(column: Column, value: bytes, encodings: Mapping[int, str]) -> str:
    kind = column.kind
    if kind in _INTEGERS:
        signed, unsigned = (int.from_bytes(value, "little", signed=one) for one in (True, False))
        return str(signed) if signed == unsigned else f"{signed} {unsigned}"
    if kind in _SHOWN:
        return _SHOWN[kind](column, value)
    if kind in _CHARACTERS or kind in _BLOBS:
        return decode(value, encodings.get(column.collation, ""))
    return ""  # dates, and what stands for a word of the table's definition


def _decimal(column: Column, value: bytes) -> str:
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


_SHOWN: Mapping[int, Callable[[Column, bytes], str]] = {
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
