"""Asking PostgreSQL what an agent left there: read-only, bounded in time and rows, in a session that nothing of the
agent's has set up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.services.query_limit import QueryLimit
from keystone_action.services.redefinitions import NOTHING, CatalogueChanges

if TYPE_CHECKING:
    import psycopg

ROWS_LIMIT = 10_000
"""Rows that a query keeps; that there were more is said."""
_CONNECT_SECONDS = 10

_SESSION: Mapping[str, str] = {
    # What `ALTER DATABASE … SET` and `ALTER ROLE … SET` could have changed under a query. Options of the connection
    # win over both (PostgreSQL, "20.1.4. Parameter Interaction via the Shell").
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "off",
    "row_security": "on",
    "transform_null_equals": "off",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "array_nulls": "on",
    "xmloption": "content",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "default_text_search_config": "pg_catalog.simple",
    "idle_in_transaction_session_timeout": "0",
}


def keywords(host: str, port: int, user: str, password: str, database: str) -> dict[str, Any]:
    """For libpq: a server of ours, on this machine or on an engine's network, where nobody else listens."""
    return {
        "host": host,
        "port": port,
        "user": user,
        "password": password,
        "dbname": database,
        "connect_timeout": _CONNECT_SECONDS,
        "sslmode": "disable",
        "gssencmode": "disable",
    }


def session_options(settings: Mapping[str, str]) -> str:
    """The `options` of a connection that sets these parameters, quoted as libpq reads them."""
    escaped = (f"-c {name}={value}".replace("\\", "\\\\").replace(" ", "\\ ") for name, value in settings.items())
    return " ".join(option.replace("-c\\ ", "-c ", 1) for option in escaped)


def quoted_path(schemas: Sequence[str]) -> str:
    """A search_path of exactly these schemas; `""` (no schema at all) for none. pg_catalog comes first by itself."""
    return ", ".join('"' + schema.replace('"', '""') + '"' for schema in schemas) or '""'


@dataclass
class PostgresReader:
    """A `Database`.

    connection: libpq keywords (host, port, user, password, dbname, …). search_path: the schemas that names without
    one are looked up in. prepare: called with each query before it runs; it returns a sentence when what the agent
    left would make the query mean something else, and may raise OSError or psycopg errors. changes: asked after that
    what the agent made and redefined. lend: gives whom a query is asked as, in place of the connection's user, in about
    so many seconds; may raise psycopg errors and QueryFailed.
    """

    connection: Mapping[str, Any]
    search_path: Callable[[], Sequence[str]]
    prepare: Callable[[str], str | None] = field(default=lambda _query: None)
    changes: Callable[[], CatalogueChanges] = field(default=lambda: NOTHING)
    lend: Callable[[float], AbstractContextManager[Mapping[str, Any]]] | None = None

    def query(self, sql: str, *, timeout: float, redefined: bool = False) -> QueryResult:
        """Blocking. Raises QueryFailed; `by_agent` for a missing table, column or schema, where the agent redefined
        what the query is made of, and where what it made takes longer than the time limit."""
        import psycopg

        limit, began = None, time.monotonic()
        try:
            problem = self.prepare(sql)
            if problem is None and not redefined:
                problem = self.changes().redefinition(self.changes().names_in(sql))
            if problem is not None:
                raise QueryFailed(problem, by_agent=True)
            with (
                self._lent(timeout - (time.monotonic() - began)) as fields,
                self._connect(fields, timeout) as connection,
                self._limit(fields, timeout, connection) as limit,
            ):
                began = time.monotonic()
                return _rows(connection, sql)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName) as e:
            raise QueryFailed(sentence(e), by_agent=True) from None
        except (psycopg.Error, OSError) as error:
            # A query can be cancelled by others, too, and a function can say that it was.
            ours = isinstance(error, psycopg.errors.QueryCanceled) and time.monotonic() - began >= timeout
            if limit is not None and (limit.is_over or ours):
                raise self._too_late(sql, timeout) from None
            raise QueryFailed(sentence(error)) from None
        except (ValueError, RecursionError) as error:
            raise QueryFailed(f"a value can't be read: {error}") from None

    def _too_late(self, sql: str, timeout: float) -> QueryFailed:
        theirs = self.changes().is_by_agent(self.changes().names_in(sql))
        return QueryFailed(f"the query hit its time limit of {timeout:g} s", by_agent=theirs)

    def _lent(self, seconds: float) -> AbstractContextManager[Mapping[str, Any]]:
        return self.lend(seconds) if self.lend is not None else nullcontext(self.connection)

    def _limit(self, own: Mapping[str, Any], seconds: float, connection: psycopg.Connection[Any]) -> QueryLimit:
        """For what the server's own time limit does not end: a function can catch that."""
        import psycopg

        backend = connection.info.backend_pid
        options = session_options({"search_path": "pg_catalog", "statement_timeout": "2000"})
        fields = {**own, "connect_timeout": 2, "options": options}

        def terminate() -> None:
            with psycopg.connect(**fields, autocommit=True) as session:
                session.execute("SELECT pg_terminate_backend(%s)", (backend,))

        return QueryLimit(seconds, connection.fileno, terminate)

    @contextmanager
    def _connect(self, fields: Mapping[str, Any], timeout: float) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        import psycopg

        milliseconds = str(max(1, int(timeout * 1000)))
        settings = {
            **_SESSION,
            "search_path": quoted_path(self.search_path()),
            "statement_timeout": milliseconds,
            "lock_timeout": milliseconds,
        }
        keywords = {
            **fields,
            # The URL's own options first: where both set something, ours win.
            "options": f"{fields.get('options', '')} {session_options(settings)}".strip(),
            "connect_timeout": max(2, min(_CONNECT_SECONDS, int(timeout))),
            "application_name": "",
        }
        with psycopg.connect(**keywords) as connection:
            _register_lenient_loaders(connection)
            connection.read_only = True
            connection.deferrable = False
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            try:
                yield connection
            finally:
                connection.close()


def _rows(connection: psycopg.Connection[tuple[Any, ...]], sql: str) -> QueryResult:
    import psycopg

    kept: list[tuple[Any, ...]] = []
    more = False
    with connection.cursor() as cursor:
        try:
            # `stream` uses the extended protocol: one statement a call, so none can end our read-only transaction and
            # bring its own; and rows come one by one, so a huge result is cut, not kept.
            for row in cursor.stream(sql):
                if len(kept) == ROWS_LIMIT:
                    more = True
                    break
                kept.append(row)
        except psycopg.ProgrammingError as error:
            if error.sqlstate is None:
                raise QueryFailed("the statement gives no rows; a query was expected") from None
            raise
        columns = tuple(column.name for column in cursor.description or ())
    return QueryResult(columns, tuple(kept), more=more)


def _register_lenient_loaders(connection: psycopg.Connection[Any]) -> None:
    """`infinity`, years before Christ and the like, which Python's dates can't hold, come as text."""
    from psycopg import DataError
    from psycopg.types import datetime as kinds

    def lenient(base: Any) -> Any:
        class LenientLoader(base):  # type: ignore[misc]
            def load(self, data: Any) -> Any:
                try:
                    return super().load(data)
                except (DataError, ValueError, OverflowError):
                    return bytes(data).decode("utf-8", "replace")

        return LenientLoader

    for name, base in {
        "date": kinds.DateLoader,
        "time": kinds.TimeLoader,
        "timetz": kinds.TimetzLoader,
        "timestamp": kinds.TimestampLoader,
        "timestamptz": kinds.TimestamptzLoader,
        "interval": kinds.IntervalLoader,
    }.items():
        connection.adapters.register_loader(name, lenient(base))


def sentence(error: BaseException) -> str:
    """The first part of what the server said, without its details, on one line."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return " ".join((primary or str(error) or type(error).__name__).split())
