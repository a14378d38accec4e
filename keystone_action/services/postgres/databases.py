"""The cells' databases of one PostgreSQL service, on whatever server each of them is."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import Address
from keystone_action.services.base import Attached
from keystone_action.services.postgres.cells import CellDatabase, Server
from keystone_action.services.postgres.reader import PostgresReader

KEPT_BYTES = 256 << 20
"""Databases of cells that are over, up to this size together, wait for the end of their server. To drop one makes the
next slower: its 300 files are 300 inodes that ext4 looks at, and won't give out again for minutes, whenever it makes
one of the next 300."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who may use which database. trust: without a password. unique: no other cell has these names."""

    user: str
    password: str
    database: str
    trust: bool = False
    unique: bool = False

    @classmethod
    def of_a_cell(cls) -> Credentials:
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


class CellDatabases:
    """Makes, seals, settles and drops databases of cells. failure: makes the service's error of a problem; may
    block."""

    def __init__(self, failure: Callable[[Server, str], ServiceError]) -> None:
        self._failure = failure
        self._cells: dict[tuple[str, int | None, str], CellDatabase] = {}
        self._retired: deque[tuple[int, CellDatabase]] = deque()

    async def attach(
        self, name: str, server: Server, wanted: Credentials, *, for_agent: Address, for_host: Address
    ) -> Attached:
        """A fresh database with these names. Raises ServiceError."""
        cell = CellDatabase(server, wanted.database, wanted.user, wanted.password, unique=wanted.unique)
        await self._run(server, "could not make a database for a cell", cell.create)
        self._cells[_key(for_host)] = cell
        reader = PostgresReader(
            server.address(cell.reader, cell.reader_password, cell.database),
            search_path=lambda: cell.before.schemas,
            prepare=cell.prepare,
            changes=lambda: cell.changes,
        )
        return Attached(name, for_agent, for_host, database=reader, settle=lambda: self._settle(cell))

    def _settle(self, cell: CellDatabase) -> None:
        import psycopg

        try:
            cell.end_sessions()
        except psycopg.Error as error:
            raise self._failure(cell.server, f"went away: {_one_line(error)}") from None

    async def run_sql(self, attached: Attached, script: str) -> None:
        """With the rights of the database's owner. Raises ServiceError."""
        cell = self._cells[_key(attached.for_host)]
        await self._run(cell.server, "refused a fixture", lambda: cell.run_script(script), script)

    async def seal(self, attached: Attached) -> None:
        """Just before the agent starts, when setup has changed the database: what stands now stood before it.
        Raises ServiceError."""
        cell = self._cells[_key(attached.for_host)]
        await self._run(cell.server, "went away", cell.remember)

    async def detach(self, attached: Attached) -> None:
        """Close it to everybody, and drop it where its names are for the next cell, or too much is kept. What can't be
        dropped now goes with the server. Never raises."""
        import anyio.to_thread
        import psycopg

        cell = self._cells.pop(_key(attached.for_host), None)
        if cell is None:
            return
        try:
            if not cell.unique:
                await anyio.to_thread.run_sync(cell.drop)
                return
            self._retired.append((await anyio.to_thread.run_sync(cell.retire), cell))
            while self._retired and sum(size for size, _ in self._retired) > KEPT_BYTES:
                _, oldest = self._retired.popleft()
                await anyio.to_thread.run_sync(oldest.drop)
        except psycopg.Error:
            return

    async def _run(self, server: Server, what: str, call: Callable[[], None], script: str = "") -> None:
        import anyio.to_thread
        import psycopg

        try:
            await anyio.to_thread.run_sync(call)
        except psycopg.Error as error:
            problem = f"{what}{_position(error, script)}: {_one_line(error)}"
            raise await anyio.to_thread.run_sync(self._failure, server, problem) from None


def _key(address: Address) -> tuple[str, int | None, str]:
    return address.host, address.port, address.database


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _position(error: Any, script: str) -> str:
    """` at line 3` when the server said where."""
    position = getattr(getattr(error, "diag", None), "statement_position", None)
    return f" at line {script[: int(position) - 1].count(chr(10)) + 1}" if position and script else ""
