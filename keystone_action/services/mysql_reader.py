"""Asking MySQL or MariaDB what an agent left there: read-only, bounded in time and rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.services.postgres_reader import ROWS_LIMIT

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
_LOST = {2006, 2013}
_READS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC"})
_BEFORE_THE_FIRST_WORD = re.compile(r"(?:[\s(]+|--\s[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class MysqlReader:
    """A `Database`. connection: keywords of `pymysql.connect` (host, port, user, password, database)."""

    connection: Mapping[str, Any]

    def query(self, sql: str, *, timeout: float) -> QueryResult:
        """Blocking. Raises QueryFailed; `undefined` for a missing table, column or database."""
        import pymysql

        if first_word(sql) not in _READS:
            # A read-only transaction stops INSERT and CREATE, but not MariaDB's DROP TABLE, which commits it first.
            raise QueryFailed(f"a query was expected that begins with one of {', '.join(sorted(_READS))}")
        try:
            connection = self._connect(timeout)
        except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
            raise _failure(error, timeout) from None
        try:
            self._set_up(connection, timeout)
            return _rows(connection, sql)
        except (pymysql.err.MySQLError, OSError) as error:
            raise _failure(error, timeout) from None
        except (ValueError, RecursionError) as error:
            raise QueryFailed(f"a value can't be read: {error}") from None
        finally:
            # Without a goodbye: an unread result would be read to its end first.
            connection._force_close()

    def _connect(self, timeout: float) -> Any:
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
        return pymysql.connect(
            **self.connection,
            charset="utf8mb4",
            conv=converters,
            cursorclass=SSCursor,
            local_infile=False,
            connect_timeout=max(1, min(_CONNECT_SECONDS, int(timeout))),
            # The server's own limit comes first; this one is for a server that hangs.
            read_timeout=max(2, int(timeout) + 2),
        )

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


def _failure(error: BaseException, timeout: float) -> QueryFailed:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number in _TIME_LIMIT or isinstance(error, TimeoutError):
        return QueryFailed(f"the query hit its time limit of {timeout:g} s")
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if number in _LOST and "timed out" in text:
        return QueryFailed(f"the query hit its time limit of {timeout:g} s")
    return QueryFailed(" ".join(text.split()) or type(error).__name__, undefined=number in _UNDEFINED)
