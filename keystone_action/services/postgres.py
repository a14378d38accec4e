"""The service kind `postgres` without a container engine: an embedded server, a database and a role for each cell."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from keystone_action.errors import NotSupportedYet, ServiceError, UsageError
from keystone_action.evidence.model import Address
from keystone_action.services.base import Attached, CellScope
from keystone_action.services.postgres_cells import CellDatabase
from keystone_action.services.postgres_reader import PostgresReader
from keystone_action.services.postgres_server import HOST, MAINTENANCE, PostgresServer

if TYPE_CHECKING:
    from keystone_action.services.server_process import Spawner
    from keystone_action.spec.services import ContainerService, PostgresService

_HONOURED = frozenset({"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "POSTGRES_HOST_AUTH_METHOD"})
_AUTH_METHODS = frozenset({"scram-sha-256", "md5", "password", "trust"})
_RESERVED_DATABASES = frozenset({"template0", "template1", MAINTENANCE})


@dataclass(frozen=True, slots=True)
class Credentials:
    """What `env` asks for, as the official image reads it; a password that isn't given is generated."""

    user: str
    password: str
    database: str
    trust: bool = False

    @classmethod
    def from_env(cls, service: str, env: Mapping[str, str]) -> Credentials:
        """POSTGRES_USER [postgres], POSTGRES_PASSWORD [generated], POSTGRES_DB [the user],
        POSTGRES_HOST_AUTH_METHOD. Raises UsageError for other POSTGRES_ variables and for reserved names."""
        for name in env:
            if name.startswith("POSTGRES_") and name not in _HONOURED:
                raise UsageError(
                    f"service {service}: env {name} means nothing to the embedded PostgreSQL",
                    help=f"It reads {', '.join(sorted(_HONOURED))}.",
                )
        method = env.get("POSTGRES_HOST_AUTH_METHOD", "scram-sha-256")
        if method not in _AUTH_METHODS:
            raise UsageError(
                f"service {service}: POSTGRES_HOST_AUTH_METHOD {method!r} means nothing to the embedded PostgreSQL",
                help=f"It knows {', '.join(sorted(_AUTH_METHODS))}.",
            )
        user = env.get("POSTGRES_USER") or "postgres"
        database = env.get("POSTGRES_DB") or user
        for what, name in (("POSTGRES_USER", user), ("POSTGRES_DB", database)):
            if len(name.encode()) > 63 or "\0" in name or "\n" in name:
                raise UsageError(f"service {service}: {what} must be one line of at most 63 bytes")
        if user.startswith("pg_") or database in _RESERVED_DATABASES or user in ("public", "none"):
            raise UsageError(f"service {service}: the name {user!r} or {database!r} is reserved in PostgreSQL")
        password = env.get("POSTGRES_PASSWORD") or secrets.token_urlsafe(18)
        return cls(user, password, database, trust=method == "trust")

    @classmethod
    def of_a_cell(cls) -> Credentials:
        """Names that no other cell has."""
        name = f"cell_{secrets.token_hex(6)}"
        return cls(name, secrets.token_urlsafe(18), name)


class EmbeddedPostgres:
    """A `RunningService`. directory: a new one for this server alone; see `PostgresServer`. That it stands in for an
    image which the spec names is said in the report's head, once for the run."""

    def __init__(self, definition: PostgresService | ContainerService, directory: Path, spawner: Spawner) -> None:
        refuse_what_only_an_image_has(definition)
        self._definition = definition
        self._credentials = Credentials.from_env(definition.name, definition.env)
        self._cells: dict[str, CellDatabase] = {}
        self._server = PostgresServer(
            definition.name,
            directory,
            spawner,
            trusted_role=self._credentials.user if self._credentials.trust else None,
        )

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService."""
        try:
            await self._server.start(self._definition.ready_timeout)
        except OSError as error:
            raise ServiceError(f"service {self.name}: the embedded PostgreSQL can't be started: {error}") from error

    async def attach(self, scope: CellScope) -> Attached:
        """See RunningService. With one cell at a time exactly the names of `env`, unless `isolation: database`."""
        import anyio.to_thread
        import psycopg

        by_env = scope.exclusive and self._definition.isolation != "database"
        wanted = self._credentials if by_env else Credentials.of_a_cell()
        cell = CellDatabase(self._server, wanted.database, wanted.user, wanted.password)
        try:
            await anyio.to_thread.run_sync(cell.create)
        except psycopg.Error as error:
            raise self._failure("could not make a database for a cell", error) from None
        self._cells[wanted.database] = cell
        address = _address(self._server.port, wanted)
        reader = PostgresReader(
            self._server.address(cell.reader, cell.reader_password, cell.database),
            search_path=lambda: cell.before.schemas,
            prepare=cell.prepare,
        )
        return Attached(self.name, address, address, database=reader, settle=lambda: self._settle(cell))

    def _settle(self, cell: CellDatabase) -> None:
        import psycopg

        try:
            cell.end_sessions()
        except psycopg.Error as error:
            raise self._failure("went away", error) from None

    async def run_sql(self, attached: Attached, script: str) -> None:
        """See RunningService."""
        import anyio.to_thread
        import psycopg

        cell = self._cells[attached.for_host.database]
        try:
            await anyio.to_thread.run_sync(cell.run_script, script)
        except psycopg.Error as error:
            raise self._failure(f"refused a fixture{_position(error, script)}", error) from None

    async def seal(self, attached: Attached) -> None:
        """Just before the agent starts, when setup has changed the database: what stands now stood before it."""
        import anyio.to_thread
        import psycopg

        try:
            await anyio.to_thread.run_sync(self._cells[attached.for_host.database].remember)
        except psycopg.Error as error:
            raise self._failure("went away", error) from None

    async def detach(self, attached: Attached) -> None:
        """See RunningService. What can't be dropped now goes with the server."""
        import anyio.to_thread
        import psycopg

        cell = self._cells.pop(attached.for_host.database, None)
        if cell is not None:
            try:
                await anyio.to_thread.run_sync(cell.drop)
            except psycopg.Error:
                return

    async def stop(self) -> None:
        """See RunningService."""
        await self._server.stop()

    def _failure(self, what: str, error: Exception) -> ServiceError:
        return self._server.failure(f"{what}: {' '.join(str(error).split())}")


def refuse_what_only_an_image_has(definition: PostgresService | ContainerService) -> None:
    """Raises NotSupportedYet for fields that mean something to a container only."""
    where = f"service {definition.name}"
    if definition.command is not None:
        raise NotSupportedYet(f"{where}: command of a PostgreSQL image without a container engine")
    if definition.isolation == "container":
        raise NotSupportedYet(f"{where}: isolation: container without a container engine")


def _address(port: int, credentials: Credentials) -> Address:
    user, password, database = (
        quote(part, safe="") for part in (credentials.user, credentials.password, credentials.database)
    )
    return Address(
        host=HOST,
        port=port,
        url=f"postgresql://{user}:{password}@{HOST}:{port}/{database}",
        user=credentials.user,
        password=credentials.password,
        database=credentials.database,
    )


def _position(error: Any, script: str) -> str:
    """` at line 3` when the server said where."""
    position = getattr(getattr(error, "diag", None), "statement_position", None)
    return f" at line {script[: int(position) - 1].count(chr(10)) + 1}" if position else ""
