"""A cell's database on a PostgreSQL server of ours: its roles, what stood there before the agent, and asking it after.

The agent's role owns its database and nothing else: no superuser, no way into another database, no file of the
server. Checks ask through a role of ours that may only read. What an owner can do to a reader is undone first: open
sessions and their locks, settings of the database and of roles, revoked rights, row security. What can't be undone
is refused: functions, operators and casts that take the place of built-in ones, and tables, views and routines that
are no longer what stood there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from keystone_action.services.postgres.connections import scram_verifier
from keystone_action.services.postgres.reader import read_postgres_catalogue, read_shadows
from keystone_action.services.redefinitions import NO_CHANGES, Catalogue, CatalogueChanges, Shadow, stand_in

if TYPE_CHECKING:
    import psycopg

    from keystone_action.services.postgres.logical_decoding import ReplicationSlots

_OWN_SETTINGS = (
    "(setdatabase = (SELECT oid FROM pg_database WHERE datname = %(database)s)"
    " OR setrole IN (SELECT oid FROM pg_roles WHERE rolname = ANY(%(roles)s)))"
)
_SETTINGS = f"SELECT setdatabase, setrole, setconfig FROM pg_db_role_setting WHERE {_OWN_SETTINGS}"  # noqa: S608
_RESET_SETTINGS = f"DELETE FROM pg_db_role_setting WHERE {_OWN_SETTINGS}"  # noqa: S608
_SCHEMAS = (
    "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' ORDER BY nspname"
)
# Whoever was given a way into a cell's database, or its owner's rights: by a dump that grants them to PUBLIC, or by the
# agent, for that of another cell. Before version 16 a role could make others its members.
_OPEN_TO = """
    SELECT format('REVOKE ALL ON DATABASE %%I FROM %%s CASCADE', datname,
                  CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
      FROM (SELECT datname, (aclexplode(coalesce(datacl, acldefault('d', datdba)))).grantee
              FROM pg_database WHERE datname = %(database)s) granted
     WHERE pg_get_userbyid(grantee) <> ALL(%(roles)s)
    UNION
    SELECT format('REVOKE %%I FROM %%I CASCADE', pg_get_userbyid(roleid), pg_get_userbyid(member))
      FROM pg_auth_members WHERE pg_get_userbyid(roleid) = ANY(%(roles)s)
    UNION
    SELECT format('ALTER DATABASE %%I OWNER TO %%I', datname, %(owner)s::text)
      FROM pg_database WHERE datname = %(database)s AND pg_get_userbyid(datdba) <> %(owner)s
"""
_UNLOGGED = {"log_min_messages": "log", "log_min_error_statement": "panic", "track_activities": "off"}
"""Settings of a session, which only a superuser may give it."""
MAINTENANCE = "keystone"
"""Our own database on a server of ours; agents can't connect to it."""
PRISTINE = "template1"
"""The template of databases in which nothing of an author's stands yet."""
# What an image's own scripts left in the template belongs to its superuser, as whom no agent may act. What belongs to
# an extension stays; a sequence of a column follows its table.
_NOT_OF_AN_EXTENSION = (
    "NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = '{0}'::regclass AND d.objid = o.oid"
    " AND d.deptype IN ('e', 'a', 'i'))"
)
_HAND_OVER = f"""
    SELECT format('ALTER SCHEMA %I OWNER TO ', nspname) FROM pg_namespace o
     WHERE nspowner = 10 AND nspname !~ '^pg_' AND nspname <> 'information_schema'
       AND {_NOT_OF_AN_EXTENSION.format("pg_namespace")}
    UNION ALL
    SELECT format('ALTER %s %s OWNER TO ', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW'
                  WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END,
                  format('%I.%I', n.nspname, relname))
      FROM pg_class o JOIN pg_namespace n ON n.oid = relnamespace
     WHERE relowner = 10 AND relkind IN ('r', 'p', 'S', 'v', 'm', 'f', 'c')
       AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND {_NOT_OF_AN_EXTENSION.format("pg_class")}
    UNION ALL
    SELECT format('ALTER ROUTINE %s OWNER TO ', o.oid::regprocedure)
      FROM pg_proc o JOIN pg_namespace n ON n.oid = pronamespace
     WHERE proowner = 10 AND prokind <> 'a' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
       AND {_NOT_OF_AN_EXTENSION.format("pg_proc")}
    UNION ALL
    SELECT format('ALTER TYPE %s OWNER TO ', o.oid::regtype)
      FROM pg_type o JOIN pg_namespace n ON n.oid = typnamespace
     WHERE typowner = 10 AND typtype IN ('e', 'd', 'r') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
       AND {_NOT_OF_AN_EXTENSION.format("pg_type")}
"""  # noqa: S608 - names of catalogs, ours


class PostgresServer(Protocol):
    """A server whose superuser is ours alone. template: the database that those of cells are copies of. template_state:
    what stands in each copy of it that was just made, once that is known; always None where the template has
    something to be handed over to each cell's role. slots: where what cells write is wanted."""

    template_state: StateBefore | None
    slots: ReplicationSlots | None

    @property
    def template(self) -> str: ...

    def admin(self, database: str = ...) -> AbstractContextManager[psycopg.Connection[tuple[Any, ...]]]:
        """A connection of the superuser, each statement its own transaction, names looked up in pg_catalog only.
        Raises psycopg.OperationalError."""

    @property
    def crashed(self) -> bool:
        """Whether it has ended, or has ended all sessions and come back, since it was ready. Blocking."""

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """libpq keywords for a role of this server."""


@dataclass(frozen=True, slots=True)
class StateBefore:
    """What stood before the agent."""

    schemas: tuple[str, ...]
    """Those in which names are looked up."""
    settings: tuple[tuple[Any, ...], ...]
    """Rows of `pg_db_role_setting`."""
    shadows: frozenset[Shadow]
    catalogue: Catalogue = field(default_factory=dict)


@dataclass
class PostgresCellDatabase:
    """One database with its owner (the agent's role) and its reader (ours)."""

    server: PostgresServer
    database: str
    owner: str
    owner_password: str
    unique: bool = False
    """No other cell of the server has these names, ever."""
    # A name that says nothing: what the agent made could give this role another answer.
    reader: str = field(default_factory=lambda: f"cell_{secrets.token_hex(6)}")
    reader_password: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    before: StateBefore = field(default_factory=lambda: StateBefore(("public",), (), frozenset()))
    changes: CatalogueChanges = field(default=NO_CHANGES)
    _shadows: list[Shadow] | None = field(default=None)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self) -> None:
        """A fresh database, owner and reader; what had these names is dropped first. Raises psycopg.Error."""
        with self.server.admin() as admin:
            if not self.unique:
                self._drop(admin)
            plain = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"
            limit = ""
            if self.unique:  # an agent that takes every connection would make those of other cells fail
                most = int(_column(admin, "SHOW max_connections")[0])
                limit = f" CONNECTION LIMIT {max(1, most // 2)}"
            self._execute(
                admin,
                f"CREATE ROLE {{owner}} LOGIN {plain} NOBYPASSRLS{limit} PASSWORD {{password}}",
                # Row security that the agent sets up must not hide rows from checks.
                f"CREATE ROLE {{reader}} LOGIN {plain} BYPASSRLS PASSWORD {{reader_password}}",
            )
            # Before version 15 copying files was the only strategy, and had no name.
            strategy = " STRATEGY file_copy" if admin.info.server_version >= 150000 else ""
            self._execute(admin, f"CREATE DATABASE {{database}} OWNER {{owner}} TEMPLATE {{template}}{strategy}")
            self._execute(
                admin,
                "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
                "GRANT CONNECT ON DATABASE {database} TO {reader}",
            )
        self._find_state()

    def _find_state(self) -> None:
        # Copies of one template differ in nothing but the names of their roles, which a unique one's path can't find a
        # schema by: only the first has to be looked into.
        if self.unique and self.server.template_state is not None:
            self.before = self.server.template_state
            return
        handed_over = self.server.template != PRISTINE and self._hand_over()
        self.remember()
        if self.unique and not handed_over:
            self.server.template_state = self.before

    def _hand_over(self) -> bool:
        """Whether there was anything to hand over."""
        from psycopg import sql

        with self.server.admin(self.database) as admin, admin.transaction():
            statements = _column(admin, _HAND_OVER)
            for statement in statements:
                admin.execute(sql.SQL("{}{}").format(sql.SQL(statement), sql.Identifier(self.owner)))
        return bool(statements)

    def drop(self) -> None:
        """Remove the database and both roles, ending their sessions. Raises psycopg.Error."""
        with self.server.admin() as admin:
            self._drop(admin)

    def remember(self) -> None:
        """Take down what stands now as what stood before the agent, as its role sees it. Raises psycopg.Error."""
        with self.owner_session() as session:
            schemas = tuple(_column(session, "SELECT unnest(current_schemas(false))::text"))
            session.execute("SET search_path = pg_catalog")
            settings = tuple(tuple(row) for row in session.execute(_SETTINGS, self._own).fetchall())
            shadows = read_shadows(session, schemas)
            self.before = StateBefore(schemas, settings, shadows, read_postgres_catalogue(session))
        self._shadows = None

    def end_sessions(self) -> None:
        """End all sessions of the agent's and in its database, busy ones too; no other cell's agent gets in again.
        Raises psycopg.Error."""
        with self.server.admin() as admin:
            self._end_all(admin)

    def close_to_others(self) -> None:
        """Nobody but our reader and the agent's role gets into the database, and whoever did is out. For a database
        that others have beside it; one that is alone on its server for now keeps what the spec grants there. Raises
        psycopg.Error."""
        with self.server.admin() as admin:
            if self._close_to_others(admin):
                others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                others += " AND pid <> pg_backend_pid() AND usename <> ALL(%s)"
                admin.execute(others, (self.database, [self.owner, self.reader, admin.info.user]))

    def _end_all(self, admin: psycopg.Connection[Any]) -> None:
        self._end_sessions(admin)
        if self._close_to_others(admin):  # somebody may have come in between
            self._end_sessions(admin)
            self._close_to_others(admin)

    def _close_to_others(self, admin: psycopg.Connection[Any]) -> bool:
        """Whether it was open to any."""
        from psycopg import sql

        if not self.unique:
            return False
        names = {**self._own, "owner": self.owner}
        statements = [str(row[0]) for row in admin.execute(_OPEN_TO.encode(), names).fetchall()]
        for statement in statements:
            admin.execute(sql.SQL(statement))
        return bool(statements)

    def prepare(self, query: str) -> str | None:
        """Before each query of a check: undo, once, what could keep the reader out or set up its session, look at what
        stands there now (`changes`), and say what would change the meaning of this query. Raises psycopg.Error."""
        with self._lock:
            if self._shadows is None:
                self.restore_access()
                with self.server.admin(self.database) as admin:
                    self.grant_reading(admin)
                    now = read_shadows(admin, self.before.schemas)
                    catalogue = read_postgres_catalogue(admin)
                    self.changes = CatalogueChanges(self.before.catalogue, catalogue, self.before.schemas)
                    self._shadows = sorted(now - self.before.shadows)
        return stand_in(self._shadows, query)

    def restore_access(self) -> None:
        """Undo what could keep our roles out, or set up their sessions; the agent's sessions end. Raises
        psycopg.Error."""
        with self.server.admin() as admin:
            self._execute(
                admin,
                "ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true CONNECTION LIMIT -1",
                "ALTER ROLE {owner} LOGIN CONNECTION LIMIT -1 PASSWORD {password}",
                "GRANT CONNECT ON DATABASE {database} TO {reader}",
            )
            self._end_all(admin)
            with admin.transaction():
                admin.execute(_RESET_SETTINGS, self._own)
                for row in self.before.settings:
                    admin.execute("INSERT INTO pg_db_role_setting VALUES (%s, %s, %s)", row)

    def _end_sessions(self, admin: psycopg.Connection[Any]) -> None:
        # The clients are dead, but a backend learns that only when its statement ends: until then it holds its locks,
        # and `DO $$ … pg_sleep … INSERT` goes on to write.
        waiting = ", 5000" if admin.info.server_version >= 140000 else ""
        admin.execute(
            f"SELECT pg_terminate_backend(pid{waiting}) FROM pg_stat_activity"  # noqa: S608 - one of two words
            " WHERE pid <> pg_backend_pid() AND (usename = %s OR datname = %s)",
            (self.owner, self.database),
        )

    @property
    def _own(self) -> dict[str, Any]:
        return {"database": self.database, "roles": [self.owner, self.reader]}

    def grant_reading(self, admin: psycopg.Connection[Any]) -> None:
        """Let our reader read all that is there now. admin: in this database. Raises psycopg.Error."""
        from psycopg import sql

        for schema in map(sql.Identifier, _column(admin, _SCHEMAS)):
            self._execute(
                admin,
                "GRANT USAGE ON SCHEMA {schema} TO {reader}",
                "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}",
                "GRANT SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {reader}",
                schema=schema,
            )

    def _drop(self, admin: psycopg.Connection[Any]) -> None:
        force = " WITH (FORCE)"
        if admin.info.server_version < 130000:
            # It has no such word, but waits some seconds for sessions that are about to end.
            self._end_sessions(admin)
            force = ""
        self._execute(admin, f"DROP DATABASE IF EXISTS {{database}}{force}")
        self._execute(admin, "DROP ROLE IF EXISTS {owner}", "DROP ROLE IF EXISTS {reader}")

    def _execute(self, admin: psycopg.Connection[Any], *templates: str, **names: Any) -> None:
        """In one round trip and one transaction."""
        from psycopg import sql

        names |= {name: sql.Identifier(getattr(self, name)) for name in ("database", "owner", "reader")}
        names["template"] = sql.Identifier(self.server.template)
        text = "; ".join(templates)
        if "{password}" in text:
            names["password"] = sql.Literal(scram_verifier(self.owner_password))
        if "{reader_password}" in text:
            names["reader_password"] = sql.Literal(scram_verifier(self.reader_password, private=True))
        admin.execute(sql.SQL(text).format(**names), prepare=False)

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Around sessions of the owner that load rows: the server's log, which may be kept, has nothing of what fails
        in them, nor what they did when it crashed. Raises psycopg.Error."""
        import psycopg

        with self.server.admin() as admin:
            for name, value in _UNLOGGED.items():
                self._execute(admin, f"ALTER ROLE {{owner}} IN DATABASE {{database}} SET {name} = '{value}'")
        try:
            yield
        finally:
            with contextlib.suppress(psycopg.Error), self.server.admin() as admin:
                for name in _UNLOGGED:
                    self._execute(admin, f"ALTER ROLE {{owner}} IN DATABASE {{database}} RESET {name}")

    def owner_session(self) -> psycopg.Connection[Any]:
        """With the owner's rights, each statement its own transaction; `remember` is for when all have run. Raises
        psycopg.Error."""
        import psycopg

        return psycopg.connect(
            **self.server.address(self.owner, self.owner_password, self.database),
            autocommit=True,
            application_name="keystone",
            client_encoding="UTF8",
        )


def _column(session: psycopg.Connection[Any], query: str) -> list[str]:
    return [str(row[0]) for row in session.execute(query.encode()).fetchall()]
