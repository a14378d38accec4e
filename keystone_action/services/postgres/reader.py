"""Asking PostgreSQL what an agent left there: read-only, bounded in time and rows, in a session that nothing of the
agent's has set up. And the catalogue: which tables, views and routines stand in a database, and what changes their
reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.services.database_queries import ROWS_LIMIT, QueryLimit
from keystone_action.services.postgres.connections import session_options
from keystone_action.services.redefinitions import (
    NO_CHANGES,
    ROUTINE,
    CatalogueChanges,
    CatalogueEntry,
    CatalogueName,
    Column,
    Shadow,
)

if TYPE_CHECKING:
    import psycopg

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


def quoted_path(schemas: Sequence[str]) -> str:
    """A search_path of exactly these schemas; `""` (no schema at all) for none. pg_catalog comes first by itself."""
    return ", ".join('"' + schema.replace('"', '""') + '"' for schema in schemas) or '""'


@dataclass
class PostgresReader:
    """A `Database`."""

    connection: Mapping[str, Any]
    """Keywords of libpq (host, port, user, password, dbname, …)."""
    search_path: Callable[[], Sequence[str]]
    """The schemas in which names without one are looked up."""
    prepare: Callable[[str], str | None] = field(default=lambda _query: None)
    """Called with each query before it runs. Returns a sentence when what the agent left would make the query mean
    something else; may raise OSError and psycopg's errors."""
    changes: Callable[[], CatalogueChanges] = field(default=lambda: NO_CHANGES)
    """What the agent made and redefined; asked after `prepare`."""
    lend: Callable[[float], AbstractContextManager[Mapping[str, Any]]] | None = None
    """Gives the role as which a query is asked, in place of the connection's, within about so many seconds; may raise
    psycopg's errors and QueryFailed."""

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


_KINDS = {
    "r": "table",
    "p": "table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
}
_OF_USERS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
_RELATIONS = f"""
    SELECT n.nspname, c.relname, c.relkind,
           CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
           CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) END
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {_OF_USERS}
"""  # noqa: S608 - a condition of ours
# Each row: a table, what it has, and what that is made of. The last are rows of a foreign table, read by the name
# of its parent.
_TRAITS = f"""
    SELECT n.nspname, c.relname, 'the rule ' || w.rulename, pg_get_ruledef(w.oid)
      FROM pg_rewrite w JOIN pg_class c ON c.oid = w.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE w.rulename <> '_RETURN' AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the policy ' || p.polname,
           concat_ws(' ', p.polcmd, p.polpermissive, pg_get_expr(p.polqual, p.polrelid))
      FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'row level security', ''
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE (c.relrowsecurity OR c.relforcerowsecurity) AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the collation ' || l.collname || ' of column ' || a.attname, ''
      FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation
           JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE l.collnamespace <> 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'p') AND {_OF_USERS}
    UNION ALL
    SELECT n.nspname, c.relname, 'the foreign child ' || k.relname, ''
      FROM (WITH RECURSIVE below (top, child) AS (
                SELECT inhparent, inhrelid FROM pg_inherits
                UNION SELECT b.top, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.child)
            SELECT top, child FROM below) i
           JOIN pg_class k ON k.oid = i.child AND k.relkind = 'f'
           JOIN pg_class c ON c.oid = i.top JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE {_OF_USERS}
"""  # noqa: S608 - as above
_GENERATED = f"""
    UNION ALL
    SELECT n.nspname, c.relname, 'the generated column ' || a.attname, pg_get_expr(d.adbin, d.adrelid)
      FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
           JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE a.attgenerated <> '' AND {_OF_USERS}
"""  # noqa: S608 - as above
_SINCE_GENERATED = 120000
_COLUMNS = f"""
    SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, NULL),
           COALESCE((SELECT l.collname FROM pg_collation l WHERE l.oid = a.attcollation), '')
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p') AND {_OF_USERS}
"""  # noqa: S608 - as above
_ALIKE = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "integer"),
    **dict.fromkeys(("character varying", "text"), "text"),
}
"""Types whose values compare alike, but for their collation."""
# What an extension brought is its superuser's; that it is an extension's is all that counts.
_ROUTINES = f"""
    SELECT n.nspname, p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
           CASE WHEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                              AND d.deptype = 'e') THEN ''
                WHEN p.prokind = 'a' THEN (SELECT concat_ws(' ', g.aggtransfn, g.aggfinalfn, g.agginitval)
                                             FROM pg_aggregate g WHERE g.aggfnoid = p.oid)
                ELSE pg_get_functiondef(p.oid) END
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE {_OF_USERS}
"""  # noqa: S608 - as above

# Overload resolution prefers an exact match in any schema of the path to a coercion to a built-in one, so a function
# or operator with a built-in's name changes what a query means (CVE-2018-1058). Those that a superuser
# has by an extension came with a trusted one.
_SHADOWS = """
    SELECT 'function', p.proname, n.nspname, p.oid::text || '/' || p.xmin::text
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_roles r ON r.oid = p.proowner
     WHERE n.nspname = ANY(%(schemas)s) AND NOT (r.rolsuper AND EXISTS (SELECT FROM pg_depend d
                 WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'))
       AND EXISTS (SELECT FROM pg_proc b WHERE b.pronamespace = 'pg_catalog'::regnamespace AND b.proname = p.proname)
    UNION ALL
    SELECT 'operator', o.oprname, n.nspname, o.oid::text || '/' || o.xmin::text
      FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace JOIN pg_roles r ON r.oid = o.oprowner
     WHERE n.nspname = ANY(%(schemas)s) AND NOT (r.rolsuper AND EXISTS (SELECT FROM pg_depend d
                 WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e'))
       AND EXISTS (SELECT FROM pg_operator b
                    WHERE b.oprnamespace = 'pg_catalog'::regnamespace AND b.oprname = o.oprname)
    UNION ALL
    SELECT 'cast', format('%%s to %%s', format_type(c.castsource, NULL), format_type(c.casttarget, NULL)), '',
           c.oid::text || '/' || c.xmin::text
      FROM pg_cast c
     WHERE c.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_cast'::regclass
                                             AND d.objid = c.oid AND d.deptype = 'e')
"""


def read_postgres_catalogue(session: psycopg.Connection[Any]) -> dict[CatalogueName, CatalogueEntry]:
    """The catalogue now; texts are comparable as long as the session's search_path is pg_catalog alone. Raises
    psycopg.Error."""
    traits: dict[CatalogueName, list[tuple[str, str]]] = {}
    query = _TRAITS + (_GENERATED if session.info.server_version >= _SINCE_GENERATED else "")
    for schema, name, trait, text in session.execute(query.encode()).fetchall():
        traits.setdefault((schema, name), []).append((trait, text or ""))
    columns: dict[CatalogueName, dict[str, Column]] = {}
    for schema, name, column, kind, collation in session.execute(_COLUMNS.encode()).fetchall():
        columns.setdefault((schema, name), {})[column] = Column(_ALIKE.get(kind, kind), collation)
    found = {}
    for schema, name, kind, text, size in session.execute(_RELATIONS.encode()).fetchall():
        its = sorted(traits.get((schema, name), ()))
        whole = "\n".join([text or "", *(one for _, one in its)])
        phrases, own = frozenset(trait for trait, _ in its), columns.get((schema, name), {})
        found[schema, name] = CatalogueEntry(_KINDS[_text(kind)], whole, phrases, size or 0, own)
    for schema, name, text in session.execute(_ROUTINES.encode()).fetchall():
        found[schema, name] = CatalogueEntry(ROUTINE, text or "")
    return found


def read_shadows(session: psycopg.Connection[Any], schemas: Sequence[str]) -> frozenset[Shadow]:
    """Those in the schemas that names are looked up in, and all casts. Raises psycopg.Error."""
    rows = session.execute(_SHADOWS, {"schemas": list(schemas)}).fetchall()
    return frozenset(Shadow(*map(str, row)) for row in rows)


def _text(kind: bytes | str) -> str:
    """PostgreSQL's "char" type comes as bytes."""
    return kind.decode() if isinstance(kind, bytes) else kind
