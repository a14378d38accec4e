"""Databases of MySQL or MariaDB at one moment: definitions as the server writes them, rows as it sends them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from keystone_action.errors import ServiceError
from keystone_action.services.database_comparison import DatabaseObject, DatabaseView, TableUnreadableError
from keystone_action.services.mysql.reader import OWN_ENGINES, SYSTEM
from keystone_action.services.mysql.server import quote_name

_AUTO_INCREMENT = re.compile(r"(\n\) ENGINE=\S+) AUTO_INCREMENT=\d+")
_NOT_ITS_OWN = frozenset({"CREATED", "LAST_ALTERED", "LAST_EXECUTED", "IS_UPDATABLE"})
"""Columns that say when something was done, or what the tables of a view are, not what it is."""
_MERGE = "mrg_myisam"
_NULL = 0xFB
_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_ENCODINGS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "binary": "",
    "utf16": "utf-16-be", "ucs2": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "koi8r": "koi8_r", "koi8u": "koi8_u", "ujis": "euc_jp", "eucjpms": "euc_jp", "euckr": "euc_kr", "sjis": "cp932",
}  # fmt: skip
"""Those that Python calls otherwise."""
_OTHERS = (
    ("triggers", "trigger_schema", "EVENT_OBJECT_TABLE", "trigger", "trigger_name"),
    ("routines", "routine_schema", "ROUTINE_NAME", "ROUTINE_TYPE", "routine_name"),
    ("parameters", "specific_schema", "SPECIFIC_NAME", "ROUTINE_TYPE", "specific_name, routine_type, ordinal_position"),
    ("events", "event_schema", "EVENT_NAME", "event", "event_name"),
    ("libraries", "library_schema", "LIBRARY_NAME", "library", "library_name"),
    ("routine_libraries", "routine_schema", "ROUTINE_NAME", "ROUTINE_TYPE", "library_schema, library_name"),
)
"""Where to look if the server has it, the columns with the schema, the name and what it is, and in which order."""
_UNREADABLE = frozenset({1168, 1812, 1814})
"""What a server says of a table that somebody made unreadable: parts of a MERGE table that are not there or are
otherwise, a tablespace that is missing, or that was discarded."""
_READ_SECONDS = 300
"""For a server that hangs: rows come as they are found."""


def errors() -> tuple[type[Exception], ...]:
    """What asking a server raises, and what it sends that can't be read."""
    import pymysql

    return pymysql.err.MySQLError, OSError, RuntimeError, ValueError, LookupError, struct.error


class MysqlView:
    """A `DatabaseView` by a connection of its own."""

    def __init__(self, connection: Any, named: Mapping[str, str] | None, service: str) -> None:
        """named: the databases that are looked at, each with the name that people know it by; None: all but the
        server's own. service: for errors."""
        self._connection = connection
        self._service = service
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT IN {SYSTEM}")  # noqa: S608
            found = sorted(_text(row[0]) for row in cursor.fetchall())
        self._schemas = {one: one if named is None else named[one] for one in found if named is None or one in named}
        self._sources: dict[DatabaseObject, tuple[str, str, list[tuple[str, str]]]] = {}
        self._encodings: list[str] = []

    def definitions(self) -> Mapping[DatabaseObject, str]:
        """See DatabaseView. Triggers go by the names of their tables. When something was made or run last does not
        count, nor from where AUTO_INCREMENT goes on."""
        found: dict[DatabaseObject, str] = {}
        for schema, shown in self._schemas.items():
            for name, kind in self._tables_of(schema):
                found[DatabaseObject(kind, f"{shown}.{name}")] = self._definition(schema, name, kind)
            for what, name, text in self._others_of(schema):
                thing = DatabaseObject(what, f"{shown}.{name}")
                found[thing] = found.get(thing, "") + text
            found[DatabaseObject("database", shown)] = self._defaults_of(schema)
        return found

    def tables(self) -> Mapping[DatabaseObject, str]:
        """See DatabaseView. Without generated columns, which are made of the others, without sequences that number the
        rows of a table, as AUTO_INCREMENT does, and without tables whose rows are elsewhere."""
        found: dict[DatabaseObject, str] = {}
        for schema, shown in self._schemas.items():
            columns, counters = self._columns_of(schema), self._defaults_of_columns(schema)
            for name, kind, engine in self._rows(
                "SELECT table_name, table_type, engine FROM information_schema.tables WHERE table_schema = %s", schema
            ):
                if _kind(kind) == "view" or engine.lower() == _MERGE:  # their rows are those of other tables
                    continue
                if _kind(kind) == "sequence" and f"{quote_name(schema)}.{quote_name(name)}" in counters:
                    continue
                if engine.lower() not in OWN_ENGINES:
                    continue
                thing = DatabaseObject(_kind(kind), f"{shown}.{name}")
                self._sources[thing] = schema, name, columns.get(name, [])
                found[thing] = repr(columns.get(name, []))
        return found

    def refuse(self) -> None:
        """See DatabaseView: a table whose rows are elsewhere. One that an agent makes is told when it is made."""
        query = "SELECT table_name, table_type, engine FROM information_schema.tables WHERE table_schema = %s"
        for schema, shown in self._schemas.items():
            for name, kind, engine in self._rows(query, schema):
                if _kind(kind) != "view" and engine.lower() not in {*OWN_ENGINES, _MERGE}:
                    raise ServiceError(
                        f"service {self._service}: what is written through {shown}.{name} can't be told: the rows of "
                        f"its storage engine, {engine}, are elsewhere",
                        help="Leave the table out of this database, or the rule.",
                    )

    def rows(self, table: DatabaseObject) -> Iterator[bytes]:
        """See DatabaseView. As the server sends them."""
        from pymysql.cursors import SSCursor
        from pymysql.err import MySQLError

        schema, name, columns = self._sources[table]
        selected = ", ".join(column for column, _ in columns) or "1"
        self._encodings = [encoding for _, encoding in columns] or [""]
        history = " FOR SYSTEM_TIME ALL" if self._is_versioned(schema, name) else ""
        connection, result = self._connection, None
        cursor = connection.cursor(SSCursor)
        try:
            cursor.execute(f"SELECT {selected} FROM {quote_name(schema)}.{quote_name(name)}{history}")  # noqa: S608 - quoted
            result = cursor._result
            # Not by the cursor: it would make values of them.
            while not result._check_packet_is_eof(packet := connection._read_packet()):
                yield packet.get_all_data()
        except MySQLError as error:
            if error.args[0] in _UNREADABLE:
                raise TableUnreadableError(str(error)) from None
            raise
        finally:
            if result is not None:
                result.unbuffered_active = False

    def text_of(self, table: DatabaseObject, row: bytes) -> str:  # noqa: ARG002
        """See DatabaseView."""
        return "\n".join(
            decode(value, encoding) for value, encoding in zip(_values(row), self._encodings, strict=True) if value
        )

    def _tables_of(self, schema: str) -> list[tuple[str, str]]:
        query = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s"
        return [(name, _kind(kind)) for name, kind in self._rows(query, schema)]

    def _definition(self, schema: str, name: str, kind: str) -> str:
        if kind == "view":
            # SHOW CREATE VIEW would need more rights; of a view that is broken it says nothing.
            return self._described("views", "table_schema", schema, "table_name", name)
        from pymysql.err import MySQLError

        with self._connection.cursor() as cursor:
            what = "SEQUENCE" if kind == "sequence" else "TABLE"
            try:
                cursor.execute(f"SHOW CREATE {what} {quote_name(schema)}.{quote_name(name)}")
            except MySQLError as error:
                if error.args[0] in _UNREADABLE:
                    return f"unreadable: {error.args[0]}"
                raise
            text = _text(cursor.fetchone()[1])
        return text if kind == "sequence" else _AUTO_INCREMENT.sub(r"\1", text, count=1)

    def _defaults_of(self, schema: str) -> str:
        return self._described("schemata", "schema_name", schema)

    def _others_of(self, schema: str) -> Iterator[tuple[str, str, str]]:
        """What is in a database besides tables: what it is, its name, what it is made of."""
        query = "SELECT LOWER(table_name) FROM information_schema.tables WHERE table_schema = %s"
        there = {name for (name,) in self._rows(query, "information_schema")}
        for view, schema_column, name_column, kind_column, order in _OTHERS:
            if view not in there:
                continue
            query = f"SELECT * FROM information_schema.{view} WHERE {schema_column} = %s ORDER BY {order}"  # noqa: S608 - ours
            for one in self._described_rows(query, schema):
                what = one.get(kind_column, kind_column).lower()
                yield what, one[name_column], _said(one)

    def _described(self, view: str, *conditions: str) -> str:
        columns, values = conditions[::2], conditions[1::2]
        query = f"SELECT * FROM information_schema.{view} WHERE {' AND '.join(f'{one} = %s' for one in columns)}"  # noqa: S608
        return "".join(_said(one) for one in self._described_rows(query, *values))

    def _described_rows(self, query: str, *values: str) -> list[dict[str, str]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values)
            names = [column[0].upper() for column in cursor.description]
            return [dict(zip(names, map(_text, row), strict=True)) for row in cursor.fetchall()]

    def _columns_of(self, schema: str) -> dict[str, list[tuple[str, str]]]:
        """Table → what is selected of it, each with how it is encoded."""
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind, extra, charset in self._rows(
            "SELECT table_name, column_name, data_type, extra, character_set_name FROM information_schema.columns"
            " WHERE table_schema = %s ORDER BY table_name, ordinal_position",
            schema,
        ):
            own = found.setdefault(table, [])
            if not re.search(r"(?i)\b(virtual|stored|persistent) generated\b|^(virtual|persistent)$", extra):
                # As text a FLOAT has fewer digits than it has.
                quoted = quote_name(column)
                selected = f"{quoted} + 0E0" if kind.lower() == "float" else quoted
                own.append((selected, python_encoding(charset)))
        return found

    def _defaults_of_columns(self, schema: str) -> str:
        query = (
            "SELECT column_default FROM information_schema.columns WHERE table_schema = %s AND column_default LIKE %s"
        )
        return "\n".join(default for (default,) in self._rows(query, schema, "%nextval%"))

    def _is_versioned(self, schema: str, name: str) -> bool:
        query = "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return self._rows(query, schema, name) == [("SYSTEM VERSIONED",)]

    def _rows(self, query: str, *values: str) -> list[tuple[str, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values)
            return [tuple(map(_text, row)) for row in cursor.fetchall()]


def view_opener(
    connection: Mapping[str, Any], named: Mapping[str, str] | None, service: str
) -> Callable[[], AbstractContextManager[DatabaseView]]:
    """Opens views. connection: keywords of `pymysql.connect`, of a user that may read it all. What it raises is
    pymysql's, and ServiceError."""

    @contextmanager
    def open_view() -> Iterator[MysqlView]:
        import pymysql

        fields = {
            "connect_timeout": 10,
            "read_timeout": _READ_SECONDS,
            **connection,
            "autocommit": True,
            "local_infile": False,
        }
        session: Any = pymysql.connect(**fields)
        try:
            with session.cursor() as cursor:
                cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = NULL")
                if "mariadb" in session.get_server_info().lower():
                    cursor.execute("SET SESSION max_statement_time = 0, sql_select_limit = DEFAULT")
                else:
                    cursor.execute("SET SESSION information_schema_stats_expiry = 0, sql_select_limit = DEFAULT")
                    cursor.execute("SET SESSION max_execution_time = 0")
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            yield MysqlView(session, named, service)
        finally:
            # Without a goodbye: an unread result would be read to its end first.
            session._force_close()

    return open_view


def python_encoding(charset: str) -> str:
    """Of a character set of the server's; empty for none."""
    return _ENCODINGS.get(charset, charset)


def decode(value: bytes, encoding: str) -> str:
    """A value as text. encoding: of Python, empty for bytes."""
    try:
        return value.decode(encoding or "utf-8", "backslashreplace")
    except LookupError:  # a character set that Python does not know; ASCII in it still shows
        return value.decode("utf-8", "backslashreplace")


def _kind(table_type: str) -> str:
    return {"VIEW": "view", "SYSTEM VIEW": "view", "SEQUENCE": "sequence"}.get(table_type, "table")


def _said(described: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in described.items() if name not in _NOT_ITS_OWN)


def _values(row: bytes) -> Sequence[bytes | None]:
    """The values of a row of a text result."""
    found: list[bytes | None] = []
    at = 0
    while at < len(row):
        first = row[at]
        at += 1
        if first == _NULL:
            found.append(None)
            continue
        size = first
        if extra := _LENGTHS.get(first):
            size = int.from_bytes(row[at : at + extra], "little")
            at += extra
        found.append(row[at : at + size])
        at += size
    return found


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None else str(value)
