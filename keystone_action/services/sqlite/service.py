"""The service kind `sqlite`: a database file of the workspace."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import Address
from keystone_action.files.paths import PathMissing, PathProblem, write_inside
from keystone_action.services.base import Attached, CellScope
from keystone_action.services.sqlite.process import SqliteProcess
from keystone_action.services.sqlite.reader import SqliteReader, copy_in

if TYPE_CHECKING:
    from keystone_action.services.server_process import ScriptHost
    from keystone_action.spec.models.services import SqliteService


@dataclass
class SqliteFile:
    """A `RunningService` without a process of its own. host: confines what reads the file.

    Its address is relative to the workspace, which is the working directory of the agent and of every check: so it
    is valid for the agent, and leads each check to its own copy.
    """

    definition: SqliteService
    host: ScriptHost
    _scopes: dict[int, tuple[CellScope, SqliteReader]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The service's name."""
        return self.definition.name

    async def start(self) -> None:
        """Nothing to start."""

    async def attach(self, scope: CellScope) -> Attached:
        """See RunningService. The file need not exist: the agent, or a fixture, makes it."""
        path = self.definition.path
        address = Address(url=f"sqlite:///{path}", database=path)
        reader = SqliteReader(scope.workspace, path, SqliteProcess(self.host, scope.private))
        attached = Attached(self.name, address, address, database=reader)
        self._scopes[id(attached)] = (scope, reader)
        return attached

    async def run_sql(self, attached: Attached, script: str) -> None:
        """See RunningService. Run before the agent starts, on a copy that then takes the file's place: what was
        copied into the workspace may hold links."""
        import anyio.to_thread

        scope, _ = self._scopes[id(attached)]
        try:
            await anyio.to_thread.run_sync(self._run_script, scope, script)
        except (sqlite3.Error, sqlite3.Warning, PathProblem, OSError) as error:
            raise ServiceError(f"service {self.name} refused a fixture: {error}") from None

    def _run_script(self, scope: CellScope, script: str) -> None:
        place = scope.private / f"{secrets.token_hex(8)}.sqlite"
        try:
            with contextlib.suppress(PathMissing):
                copy_in(scope.workspace, self.definition.path, place)
            _execute(place, script)
            write_inside(scope.workspace, self.definition.path, place.read_bytes())
        finally:
            for path in scope.private.glob(f"{place.name}*"):
                path.unlink()

    async def seal(self, attached: Attached) -> None:
        """See RunningService. The file as it stands is kept."""
        import anyio.to_thread

        _, reader = self._scopes[id(attached)]
        try:
            await anyio.to_thread.run_sync(reader.seal)
        except OSError as error:
            raise ServiceError(f"service {self.name}: {self.definition.path} can't be kept: {error}") from None

    async def detach(self, attached: Attached) -> None:
        """See RunningService. The copies go, and whatever still reads them."""
        _, reader = self._scopes.pop(id(attached), (None, None))
        if reader is not None:
            await reader.process.close()

    async def stop(self) -> None:
        """Nothing to stop."""


def _execute(place: Path, script: str) -> None:
    connection = sqlite3.connect(place, isolation_level=None)
    try:
        connection.executescript(script)
        # One file holds everything: a log left open (`PRAGMA journal_mode = WAL`) is folded in.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
