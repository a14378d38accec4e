"""A user of ours on a MySQL or MariaDB server that somebody else runs; see `own_role`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql

from keystone_action.services.database_queries import OwnRole, RefusedError, is_left_over
from keystone_action.services.mysql.server import quote_name

_DENIED = {
    1044,  # access to the database denied
    1045,  # access denied, also: may grant nothing
    1141,  # there is no such grant
    1142,  # command denied
    1227,  # a privilege is needed
    1410,  # not allowed to create a user with GRANT
    1698,  # no login by password
    3619,  # a privilege that can't be granted
}
_LOST = {
    1927,  # MariaDB: killed
    2006,  # the server has gone away
    2013,  # lost during a query
    4031,  # MySQL: disconnected by the server
}
_SECONDS = 10
_SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_TABLES = f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {_SYSTEM}"  # noqa: S608
_FUNCTIONS = f"""
    SELECT routine_schema, routine_name FROM information_schema.routines
     WHERE routine_type = 'FUNCTION' AND routine_schema NOT IN {_SYSTEM}
"""  # noqa: S608 - a list of ours


class MysqlRole(OwnRole):
    """connection: keywords of `pymysql.connect`."""

    errors = (pymysql.err.MySQLError, OSError, RuntimeError)

    def _make(self, name: str, password: str) -> None:
        with self._session() as cursor:
            try:
                cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (name, password))
                _grant(cursor, name)
            except pymysql.err.MySQLError as error:
                if error.args[0] not in _DENIED:
                    raise
                _drop_user(cursor, name)
                raise RefusedError(str(error.args[1])) from None

    def _prove(self, fields: Mapping[str, Any]) -> None:
        with self._session() as cursor:
            cursor.execute(_TABLES)
            wanted = set(cursor.fetchall())
        try:
            with self._session(fields) as cursor:
                cursor.execute(_TABLES)
                missing = sorted(wanted - set(cursor.fetchall()))
        except pymysql.err.OperationalError as error:
            if self._may_pass(error):
                raise
            raise RefusedError(f"a new user can't connect: {error.args[-1]}") from None
        if missing:
            raise RefusedError(f"a new user may not read {'.'.join(missing[0])}")

    def _drop(self, name: str) -> None:
        with self._session() as cursor:
            _drop_user(cursor, name)

    def _drop_left_over(self) -> None:
        with self._session() as cursor:
            try:
                cursor.execute("SELECT user FROM mysql.user WHERE host = '%' AND user LIKE 'cell\\_%'")
                for name in [_text(row[0]) for row in cursor.fetchall()]:
                    if is_left_over(name):
                        _drop_user(cursor, name)
            except pymysql.err.MySQLError as error:
                if error.args[0] not in _DENIED:
                    raise

    def _may_pass(self, error: Exception) -> bool:
        return bool(error.args) and error.args[0] in _LOST and "timed out" not in str(error)

    @contextmanager
    def _session(self, fields: Mapping[str, Any] | None = None) -> Iterator[Any]:
        own = self.connection if fields is None else fields
        limits = {"connect_timeout": _SECONDS, "read_timeout": _SECONDS, "autocommit": True}
        with pymysql.connect(**{**limits, **own}) as session, session.cursor() as cursor:
            yield cursor


def _grant(cursor: Any, name: str) -> None:
    """To read all that the URL's user can hand on, and to call its functions in a query. Raises pymysql's errors."""
    try:
        cursor.execute("GRANT SELECT, SHOW VIEW ON *.* TO %s@'%%'", (name,))
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _DENIED:
            raise
        cursor.execute(_TABLES)
        for schema in sorted({str(row[0]) for row in cursor.fetchall()} | _own_schema(cursor)):
            # In a grant, `_` and `%` of a database's name stand for other characters.
            literal = schema.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
            pattern = quote_name(literal).replace("%", "%%")
            cursor.execute(f"GRANT SELECT, SHOW VIEW ON {pattern}.* TO %s@'%%'", (name,))
    cursor.execute(_FUNCTIONS)
    for schema, routine in cursor.fetchall():
        function = f"{quote_name(str(schema))}.{quote_name(str(routine))}".replace("%", "%%")
        try:
            cursor.execute(f"GRANT EXECUTE ON FUNCTION {function} TO %s@'%%'", (name,))
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _DENIED:
                raise


def _own_schema(cursor: Any) -> set[str]:
    cursor.execute("SELECT database()")
    return {str(row[0]) for row in cursor.fetchall() if row[0] is not None}


def _drop_user(cursor: Any, name: str) -> None:
    """Raises pymysql's errors, but where it may not be dropped, since it was never made."""
    try:
        cursor.execute("DROP USER IF EXISTS %s@'%%'", (name,))
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _DENIED:
            raise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
