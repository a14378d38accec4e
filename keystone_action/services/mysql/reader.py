"""Asking MySQL or MariaDB what an agent left there: read-only, bounded in time and rows.

And the catalogue: which tables, views and routines stand in a database, and what changes their reading.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.services.database_queries import ROWS_LIMIT, QueryLimit
from keystone_action.services.redefinitions import (
    NO_CHANGES,
    ROUTINE,
    CatalogueChanges,
    CatalogueEntry,
    CatalogueName,
    Column,
)
from keystone_action.services.service import one_line

_CONNECT_SECONDS = 10
_UNDEFINED = {
    1049,  # unknown database
    1051,  # unknown table
    1054,  # unknown column
    1109,  # unknown table in a list
    1146,  # no such table
}
_TIME_LIMIT = {
    1969,  # MariaDB: max_statement_time exceeded
    3024,  # MySQL: max_execution_time exceeded
    1205,  # lock wait timeout
}
_READS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"})
_BEFORE_THE_FIRST_WORD = re.compile(r"(?:[\s(]+|--\s[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class MysqlReader:
    """A `Database`."""

    connection: Mapping[str, Any]
    """Keywords of `pymysql.connect` (host, port, user, password, database)."""
    changes: Callable[[], CatalogueChanges] = field(default=lambda: NO_CHANGES)
    """What the agent made and redefined; may raise pymysql's errors."""
    lend: Callable[[float], AbstractContextManager[Mapping[str, Any]]] | None = None
    """Gives the user as whom a query is asked, in place of the connection's, within about so many seconds; may raise
    pymysql's errors and QueryFailed."""

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:
        """Blocking. Raises QueryFailed; `by_agent` for a missing table, column or database, where the agent redefined
        what the query is made of, and where what it made takes longer than the time limit."""
        import pymysql

        if first_word(sql) not in _READS:
            # A read-only transaction stops INSERT and CREATE, but not MariaDB's DROP TABLE, which commits it first.
            raise QueryFailed(f"a query was expected that begins with one of {', '.join(sorted(_READS))}")
        limit, began = None, time.monotonic()
        try:
            changes = self.changes()
            read = changes.names_in(sql)
            if not redefined and (sentence := changes.redefinition(read)):
                raise QueryFailed(sentence, by_agent=True)
            with (
                self._lent(timeout - (time.monotonic() - began)) as fields,
                self._connect(fields, timeout) as connection,
                self._limit(fields, timeout, connection) as limit,
            ):
                self._set_up(connection, timeout)
                began = time.monotonic()
                result = _rows(connection, sql)
                # BENCHMARK() and SLEEP() give a number when they are interrupted, and no error.
                if time.monotonic() - began >= timeout:
                    raise _too_late(timeout, by_agent=changes.is_by_agent(read))
                return result
        except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
            if limit is not None and (limit.is_over or _is_late(error)):
                theirs = changes.is_by_agent(read)
                raise _too_late(timeout, by_agent=theirs) from None
            raise _failure(error) from None
        except (ValueError, RecursionError) as error:
            raise QueryFailed(f"a value can't be read: {error}") from None

    def _lent(self, seconds: float) -> AbstractContextManager[Mapping[str, Any]]:
        return self.lend(seconds) if self.lend is not None else nullcontext(self.connection)

    def _limit(self, own: Mapping[str, Any], seconds: float, connection: Any) -> QueryLimit:
        """For what the server's own time limit does not end: it stops before a routine's statements, and says nothing
        of rows that come slowly."""
        import pymysql

        thread = connection.thread_id()

        def kill() -> None:
            with pymysql.connect(**own, connect_timeout=2) as session, session.cursor() as cursor:
                cursor.execute("KILL CONNECTION %s", (thread,))

        return QueryLimit(seconds, lambda: int(connection._sock.fileno()), kill)

    @contextmanager
    def _connect(self, own: Mapping[str, Any], timeout: float) -> Iterator[Any]:
        import pymysql
        from pymysql.constants import FIELD_TYPE
        from pymysql.converters import conversions, through
        from pymysql.cursors import SSCursor

        converters: dict[Any, Any] = {
            **conversions,
            FIELD_TYPE.BIT: lambda value: int.from_bytes(value.encode("latin-1") if isinstance(value, str) else value),
            FIELD_TYPE.JSON: json.loads,
            FIELD_TYPE.GEOMETRY: through,
        }
        connection: Any = pymysql.connect(
            **own,
            charset="utf8mb4",
            conv=converters,
            cursorclass=SSCursor,
            local_infile=False,
            connect_timeout=max(1, min(_CONNECT_SECONDS, int(timeout))),
            # The server's own limit comes first; this one is for a server that hangs.
            read_timeout=max(2, int(timeout) + 2),
        )
        try:
            yield connection
        finally:
            # Without a goodbye: an unread result would be read to its end first.
            connection._force_close()

    def _set_up(self, connection: Any, timeout: float) -> None:
        seconds = max(1, int(timeout))
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute(f"SET SESSION lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}")
            if "mariadb" in connection.get_server_info().lower():
                cursor.execute(f"SET SESSION max_statement_time = {max(0.001, timeout):.3f}")
            else:
                cursor.execute(f"SET SESSION max_execution_time = {max(1, int(timeout * 1000))}")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION READ ONLY")


def first_word(sql: str) -> str:
    """The first word of a statement in upper case, after comments, blanks and parentheses; empty for a comment that
    MySQL would run (`/*! … */`)."""
    start = _BEFORE_THE_FIRST_WORD.match(sql)
    word = _WORD.match(sql, start.end() if start else 0)
    return word[0].upper() if word else ""


def _rows(connection: Any, sql: str) -> QueryResult:
    cursor = connection.cursor()
    cursor.execute(sql)
    if cursor.description is None:
        raise QueryFailed("the statement gives no rows; a query was expected")
    kept: list[tuple[Any, ...]] = []
    more = False
    while (row := cursor.fetchone()) is not None:
        if len(kept) == ROWS_LIMIT:
            more = True
            break
        kept.append(tuple(row))
    columns = tuple(column[0] for column in cursor.description)
    return QueryResult(columns, tuple(kept), boolean_as_number=True, more=more)


def _too_late(timeout: float, *, by_agent: bool) -> QueryFailed:
    return QueryFailed(f"the query hit its time limit of {timeout:g} s", by_agent=by_agent)


def _is_late(error: BaseException) -> bool:
    """Whether the server kept the limit that we gave it. A connection that timed out, at any layer, is not that: our
    `QueryLimit` closes it before its own time is up."""
    return not isinstance(error, OSError) and _number(error) in _TIME_LIMIT


def _failure(error: BaseException) -> QueryFailed:
    return QueryFailed(one_line(error), by_agent=_number(error) in _UNDEFINED)


def _number(error: BaseException) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_KINDS = {"VIEW": "view", "SEQUENCE": "sequence"}
OWN_ENGINES = frozenset({"", "innodb", "myisam", "aria", "memory", "archive", "csv", "rocksdb", "tokudb", "ndbcluster"})
"""Storage engines whose tables have their own rows. Others read another table, another server or a file."""
_TABLES = f"""
    SELECT table_schema, table_name, table_type, engine, data_length
      FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - a list of ours
_VIEWS = f"""
    SELECT table_schema, table_name, view_definition
      FROM information_schema.views WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above
_COLUMNS = f"""
    SELECT table_schema, table_name, column_name, data_type, collation_name, generation_expression
      FROM information_schema.columns WHERE table_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above
_ALIKE = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
}
"""Types whose values compare alike, but for their collation."""
_ROUTINES = f"""
    SELECT routine_schema, routine_name, routine_definition
      FROM information_schema.routines WHERE routine_type = 'FUNCTION' AND routine_schema NOT IN {SYSTEM}
"""  # noqa: S608 - as above


def read_mysql_catalogue(cursor: Any) -> dict[CatalogueName, CatalogueEntry]:
    """The catalogue now, as far as this user sees it. Raises pymysql's errors."""
    if "mariadb" not in cursor.connection.get_server_info().lower():
        cursor.execute("SET SESSION information_schema_stats_expiry = 0")  # sizes as they are, not as they were
    traits: dict[CatalogueName, list[tuple[str, str]]] = {}
    columns: dict[CatalogueName, dict[str, Column]] = {}
    for schema, table, column, kind, collation, text in _fetched(cursor, _COLUMNS):
        one = Column(_ALIKE.get(_text(kind), _text(kind)), _text(collation))
        columns.setdefault((schema, table), {})[column.lower()] = one
        if text:
            traits.setdefault((schema, table), []).append((f"the generated column {column}", _text(text)))
    texts = {(schema, view): _text(text) for schema, view, text in _fetched(cursor, _VIEWS)}
    found: dict[CatalogueName, CatalogueEntry] = {}
    for schema, table, kind, engine, size in _fetched(cursor, _TABLES):
        name = schema, table
        its = sorted(traits.get(name, ()))
        whole = "\n".join([texts.get(name, ""), *(text for _, text in its)])
        phrases = {trait for trait, _ in its}
        if kind not in _KINDS and str(engine or "").lower() not in OWN_ENGINES:
            phrases.add(f"the storage engine {engine}")
        own = {} if kind in _KINDS else columns.get(name, {})
        found[name] = CatalogueEntry(_KINDS.get(kind, "table"), whole, frozenset(phrases), int(size or 0), own)
    for schema, routine, text in _fetched(cursor, _ROUTINES):
        found[schema, f"{routine}()"] = CatalogueEntry(ROUTINE, _text(text))
    return found


def _fetched(cursor: Any, query: str) -> list[tuple[Any, ...]]:
    cursor.execute(query)
    return list(cursor.fetchall())


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
