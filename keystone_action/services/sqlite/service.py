"""The service kind `sqlite`: a database file of the workspace."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import Address
from keystone_action.files.paths import PathMissing, PathProblem, write_inside
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.services.sqlite.process import SqliteProcess
from keystone_action.services.sqlite.reader import SqliteReader, copy_in
from keystone_action.services.sqlite.writes import SqliteWrites
from keystone_action.spec.models.services import SqliteService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.services.server_process import ScriptHost


@dataclass(frozen=True)
class SqliteFile(ServiceKind[SqliteService]):
    """A `RunningService` without a process of its own. host: confines what reads the file.

    Its address is relative to the workspace, which is the working directory of the agent and of every check: so it
    is valid for the agent, and leads each check to its own copy.
    """

    definition: SqliteService
    host: ScriptHost

    @classmethod
    def build(cls, definition: SqliteService, surroundings: Surroundings) -> SqliteFile:
        """See ServiceKind."""
        return cls(definition, surroundings.provider)

    @property
    def name(self) -> str:
        """The service's name."""
        return self.definition.name

    async def start(self) -> None:
        """Nothing to start."""

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService. The file need not exist: the agent, or a fixture, makes it. After the cell the copies go,
        and the process that reads them ends."""
        process = SqliteProcess(self.host, scope.private)
        async with undoing(process.close):
            yield SqlitePlace(self.name, scope, self.definition.path, process)

    async def stop(self) -> None:
        """Nothing to stop."""


class SqlitePlace(Place):
    """The file of one cell's workspace."""

    def __init__(self, name: str, scope: CellScope, path: str, process: SqliteProcess) -> None:
        self._scope, self._path = scope, path
        self._reader = SqliteReader(scope.workspace, path, process)
        address = Address(url=f"sqlite:///{path}", database=path)
        self._watched = SqliteWrites(name, self._reader, process) if scope.watches_writes else None
        super().__init__(name, address, address, database=self._reader, writes=self._watched)

    async def run_sql(self, script: str) -> None:
        """See Place. Run before the agent starts, on a copy that then takes the file's place: what was copied into the
        workspace may hold links."""
        import anyio.to_thread

        try:
            await anyio.to_thread.run_sync(self._run_script, script)
        except (sqlite3.Error, sqlite3.Warning, PathProblem, OSError) as error:
            raise ServiceError(f"service {self.name} refused a fixture: {error}") from None

    def _run_script(self, script: str) -> None:
        private, workspace = self._scope.private, self._scope.workspace
        copy = private / f"{secrets.token_hex(8)}.sqlite"
        try:
            with contextlib.suppress(PathMissing):
                copy_in(workspace, self._path, copy)
            _execute(copy, script)
            write_inside(workspace, self._path, copy.read_bytes())
        finally:
            for path in private.glob(f"{copy.name}*"):
                path.unlink()

    async def seal(self) -> None:
        """See Place. The file as it stands is kept."""
        import anyio.to_thread

        try:
            await anyio.to_thread.run_sync(self._reader.seal)
        except OSError as error:
            raise ServiceError(f"service {self.name}: {self._path} can't be kept: {error}") from None
        if self._watched is not None:
            await anyio.to_thread.run_sync(self._watched.seal)

    def settle(self) -> None:
        """See Place. The file as the agent left it is kept, and compared, where its writes are wanted."""
        if self._watched is not None:
            self._watched.settle()


def _execute(file: Path, script: str) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        connection.executescript(script)
        # One file holds everything: a log left open (`PRAGMA journal_mode = WAL`) is folded in.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
