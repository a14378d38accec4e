"""A role of ours on a PostgreSQL server that somebody else runs; see `own_role`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from keystone_action.services.database_queries import OwnRole, RefusedError, is_left_over
from keystone_action.services.postgres.connections import scram_verifier, session_options
from keystone_action.services.postgres.reader import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_USERS = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
# What the URL's user may hand on, and the new role does not have. Of tables that their owner took its own rights on it
# can still hand them on.
_GRANTS = f"""
    SELECT format('CONNECT ON DATABASE %%I', current_database())
     WHERE NOT has_database_privilege(%(role)s::name, current_database(), 'CONNECT')
       AND has_database_privilege(current_database(), 'CONNECT WITH GRANT OPTION')
    UNION ALL
    SELECT format('USAGE ON SCHEMA %%I', n.nspname) FROM pg_namespace n
     WHERE {_OF_USERS} AND NOT has_schema_privilege(%(role)s::name, n.oid, 'USAGE')
       AND has_schema_privilege(n.oid, 'USAGE WITH GRANT OPTION')
    UNION ALL
    SELECT format('SELECT ON TABLE %%I.%%I', n.nspname, c.relname)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {_OF_USERS}
       AND NOT has_table_privilege(%(role)s::name, c.oid, 'SELECT')
       AND has_table_privilege(c.oid, 'SELECT WITH GRANT OPTION')
    UNION ALL
    SELECT format('EXECUTE ON ROUTINE %%s', p.oid::regprocedure)
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE {_OF_USERS} AND NOT has_function_privilege(%(role)s::name, p.oid, 'EXECUTE')
       AND has_function_privilege(p.oid, 'EXECUTE WITH GRANT OPTION')
"""  # noqa: S608 - a condition of ours
# Of what the URL's user reads, what this session's role can't, or not in the same way.
_UNREADABLE = f"""
    SELECT format('may not read %%I.%%I', n.nspname, c.relname)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {_OF_USERS}
       AND has_schema_privilege(%(user)s::name, n.oid, 'USAGE')
       AND has_any_column_privilege(%(user)s::name, c.oid, 'SELECT')
       AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))
    UNION ALL
    SELECT format('would not see all rows of %%I.%%I (row level security)', n.nspname, c.relname)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relrowsecurity AND {_OF_USERS}
       AND NOT (SELECT rolbypassrls FROM pg_roles WHERE rolname = current_user)
    UNION ALL
    SELECT format('has no user mapping of the server %%I', m.srvname)
      FROM pg_user_mappings m
     WHERE m.usename = %(user)s
       AND NOT EXISTS (SELECT FROM pg_user_mappings o WHERE o.srvid = m.srvid AND o.umuser = 0)
     LIMIT 1
"""  # noqa: S608 - as above
_PLAIN = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"
_NO_LOGIN = re.compile("authentication failed|is not permitted to log in|pg_hba\\.conf|FATAL: +role .* does not exist")
"""Of class 28, which libpq does not tell of a connection that was refused. In another language it is tried again."""
_SINCE_READ_ALL = 140000
_SECONDS = 10


class PostgresRole(OwnRole):
    """connection: libpq keywords."""

    errors = (psycopg.Error, OSError)

    def _make(self, name: str, password: str) -> None:
        try:
            with self._session() as session:
                self._make_in(session, name, password)
        except psycopg.errors.InsufficientPrivilege as error:
            raise RefusedError(sentence(error)) from None

    def _make_in(self, session: psycopg.Connection[Any], name: str, password: str) -> None:
        role, secret = sql.Identifier(name), sql.Literal(scram_verifier(password, private=True))
        superuser = bool(_first(session, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"))
        # Only a superuser can let a role read past row security on every version.
        rows = " BYPASSRLS" if superuser else ""
        create = sql.SQL(f"CREATE ROLE {{}} {_PLAIN}{rows} PASSWORD {{}}")
        session.execute(create.format(role, secret))
        if superuser and session.info.server_version >= _SINCE_READ_ALL:
            session.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(role))
        grants = [str(row[0]) for row in session.execute(_GRANTS, {"role": name}).fetchall()]
        if grants:
            several = sql.SQL("; ").join(sql.SQL("GRANT {} TO {}").format(sql.SQL(one), role) for one in grants)
            session.execute(several, prepare=False)

    def _prove(self, fields: Mapping[str, Any]) -> None:
        with self._session() as session:
            user = str(_first(session, "SELECT current_user"))
        try:
            with self._session(fields) as session:
                problem = _first(session, _UNREADABLE, {"user": user})
        except psycopg.OperationalError as error:
            if self._may_pass(error):
                raise
            raise RefusedError(f"a new role can't connect: {sentence(error)}") from None
        if problem is not None:
            raise RefusedError(f"a new role {problem}")

    def _drop(self, name: str) -> None:
        with self._session() as session:
            _drop_roles(session, [name])

    def _drop_left_over(self) -> None:
        with self._session() as session:
            names = [str(row[0]) for row in session.execute("SELECT rolname FROM pg_roles").fetchall()]
            left = [name for name in names if is_left_over(name)]
        for name in left:
            try:
                with self._session() as session:
                    _drop_roles(session, [name])
            except psycopg.Error:
                continue  # another database of the server granted it something, or it is another user's

    def _may_pass(self, error: Exception) -> bool:
        never = psycopg.errors.QueryCanceled | psycopg.errors.ConnectionTimeout
        if isinstance(error, never) or _NO_LOGIN.search(str(error)):
            return False
        # XX000: "tuple concurrently updated", of the rights of one table.
        return isinstance(error, psycopg.OperationalError) or getattr(error, "sqlstate", None) == "XX000"

    def _session(self, fields: Mapping[str, Any] | None = None) -> psycopg.Connection[Any]:
        """One transaction of the URL's user, or of these fields'; names are looked up in pg_catalog alone."""
        own = self.connection if fields is None else fields
        settings = {
            "search_path": "pg_catalog",
            "statement_timeout": f"{_SECONDS * 1000}",
            "lock_timeout": f"{_SECONDS * 1000}",
            "default_transaction_read_only": "off",
            "role": "none",  # also after an `ALTER ROLE … SET role`
        }
        options = f"{own.get('options', '')} {session_options(settings)}".strip()
        return psycopg.connect(**{"connect_timeout": _SECONDS, **own, "options": options, "application_name": ""})


def _drop_roles(session: psycopg.Connection[Any], names: Sequence[str]) -> None:
    for name in names:
        if _first(session, "SELECT 1 FROM pg_roles WHERE rolname = %(name)s", {"name": name}) is None:
            continue
        role = sql.Identifier(name)
        if not _first(session, "SELECT pg_has_role(%(name)s::name, 'USAGE')", {"name": name}):
            session.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
        session.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (name,))
        session.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role), prepare=False)


def _first(session: psycopg.Connection[Any], query: str, values: Mapping[str, Any] | None = None) -> Any:
    row = session.execute(query.encode(), values).fetchone()
    return None if row is None else row[0]
