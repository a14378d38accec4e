"""A cell's database as the run sees it, and who may use it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import Address
from keystone_action.services.postgres.databases import PostgresCellDatabase, PostgresServer
from keystone_action.services.postgres.psql_script import PsqlScript
from keystone_action.services.postgres.reader import PostgresReader
from keystone_action.services.postgres.write_log import PostgresWrites
from keystone_action.services.service import CRASHED, Place, one_line
from keystone_action.services.sql_script import ServerLook, SqlScript, run_script


@dataclass(frozen=True, slots=True)
class PostgresCredentials:
    """Who may use which database."""

    user: str
    password: str
    database: str
    trust: bool = False
    """Without a password."""
    unique: bool = False
    """No other cell has these names."""

    @classmethod
    def of_a_cell(cls) -> PostgresCredentials:
        """Names that no other cell has."""
        name = f"cell_{secrets.token_hex(6)}"
        return cls(name, secrets.token_urlsafe(18), name, unique=True)

    def address(self, host: str, port: int) -> Address:
        """Where a server with this database is reached."""
        user, password, database = (quote(part, safe="") for part in (self.user, self.password, self.database))
        return Address(
            host=host,
            port=port,
            url=f"postgresql://{user}:{password}@{host}:{port}/{database}",
            user=self.user,
            password=self.password,
            database=self.database,
        )


def read_credentials(service: str, env: Mapping[str, str], *, reserved: Collection[str]) -> PostgresCredentials:
    """User, password and database. Raises UsageError for names that PostgreSQL, or we, reserve."""
    user = env.get("POSTGRES_USER") or "postgres"
    database = env.get("POSTGRES_DB") or user
    for what, name in (("POSTGRES_USER", user), ("POSTGRES_DB", database)):
        if len(name.encode()) > 63 or "\0" in name or "\n" in name:
            raise UsageError(f"service {service}: {what} must be one line of at most 63 bytes")
    if user.startswith("pg_") or database in reserved or user in ("public", "none"):
        raise UsageError(f"service {service}: the name {user!r} or {database!r} is reserved in PostgreSQL")
    password = env.get("POSTGRES_PASSWORD") or secrets.token_urlsafe(18)
    return PostgresCredentials(user, password, database, trust=env.get("POSTGRES_HOST_AUTH_METHOD") == "trust")


class PostgresPlace(Place):
    """One cell's database. failure: makes the service's error of a problem; may block. databases: by what names
    scripts may mean it. lacking: what to do about an extension that the server does not have. watches_writes: see
    CellScope."""

    def __init__(
        self,
        name: str,
        for_agent: Address,
        for_host: Address,
        server: PostgresServer,
        wanted: PostgresCredentials,
        failure: Callable[[PostgresServer, str], ServiceError],
        *,
        databases: Collection[str] = (),
        lacking: str = "",
        watches_writes: bool = False,
    ) -> None:
        self._databases = frozenset({wanted.database, *databases})
        self._lacking = lacking
        cell = PostgresCellDatabase(server, wanted.database, wanted.user, wanted.password, unique=wanted.unique)
        reader = PostgresReader(
            server.address(cell.reader, cell.reader_password, cell.database),
            search_path=lambda: cell.before.schemas,
            prepare=cell.prepare,
            changes=lambda: cell.changes,
        )
        self._watch = PostgresWrites(name, cell, partial(failure, server)) if watches_writes else None
        super().__init__(name, for_agent, for_host, database=reader, writes=self._watch)
        self.cell = cell
        self._failure = failure

    async def create(self) -> None:
        """A fresh database. Raises ServiceError."""
        await self._run("could not make a database for a cell", self.cell.create)

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:
        """See Place."""
        import psycopg

        def run() -> tuple[str, ...]:
            with self.cell.unlogged():
                notices = PsqlScript(script, self.cell.owner_session, self._databases, self._lacking).run()
            self.cell.close_to_others()
            return notices

        server = self.cell.server
        look = ServerLook(lambda: server.crashed, lambda: self._failure(server, CRASHED))
        return await run_script(self.name, script, run, [psycopg.Error], look)

    async def seal(self) -> None:
        """See Place. For when setup has changed the database."""
        import anyio.to_thread

        await anyio.to_thread.run_sync(self.require_unbroken)
        await self._run("can't be closed to other cells", self.cell.close_to_others)
        await self._run("can't be looked at after its fixtures and setup", self.cell.remember)
        if self._watch is not None:
            await self._run("can't be watched", self._watch.begin)

    def settle(self) -> None:
        """See Place. Ends the agent's sessions."""
        import psycopg

        self.require_unbroken()
        try:
            self.cell.end_sessions()
            if self._watch is not None:
                self._watch.end()
        except psycopg.Error as error:
            raise self._failure(self.cell.server, self._problem("went away", error)) from None

    def require_unbroken(self) -> None:
        """See Place."""
        if self.cell.server.crashed:
            raise self._failure(self.cell.server, CRASHED)

    async def drop(self) -> None:
        """The cell has been graded: nobody gets into its database any more, and its replication slot goes with it. What
        can't be dropped now goes with the server. Never raises."""
        import anyio.to_thread
        import psycopg

        with contextlib.suppress(psycopg.Error):
            await anyio.to_thread.run_sync(self.cell.drop)

    async def _run(self, what: str, call: Callable[[], None]) -> None:
        import anyio.to_thread
        import psycopg

        try:
            await anyio.to_thread.run_sync(call)
        except psycopg.Error as error:
            found = error
        else:
            return
        problem = await anyio.to_thread.run_sync(self._problem, what, found)
        raise await anyio.to_thread.run_sync(self._failure, self.cell.server, problem) from None

    def _problem(self, what: str, error: Exception) -> str:
        """A crash is told as one, also where it came after the last look."""
        return f"{CRASHED if _ended_by_server(error) or self.cell.server.crashed else what}: {one_line(error)}"


def _ended_by_server(error: Exception) -> bool:
    """Whether the session ended, or was refused, as a crash does it. The witness may live a moment longer than others:
    the server ends one session after the other."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError) or isinstance(error, psycopg.errors.ConnectionTimeout):
        return False
    return error.sqlstate is None or error.sqlstate in _CRASH_STATES


_CRASH_STATES = frozenset({"57P01", "57P02", "57P03"})
"""It shuts down, another of its processes crashed, it recovers."""
