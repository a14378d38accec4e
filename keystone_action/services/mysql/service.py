"""MySQL and MariaDB, in containers of images or as this machine has them: a database and a user for each cell."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import Address
from keystone_action.services.container.engine_container import ServiceContainerPlan
from keystone_action.services.container.service import DatabaseServers
from keystone_action.services.mysql.client_script import ClientScript, script_session
from keystone_action.services.mysql.local_server import LocalMysqlServers, require_program, unused_directory
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.mysql.server import MysqlCellDatabase, MysqlCredentials, MysqlInContainer, MysqlServer
from keystone_action.services.mysql.write_log import MysqlWrites
from keystone_action.services.redefinitions import CatalogueWatch
from keystone_action.services.service import (
    CRASHED,
    CellScope,
    Place,
    RunningService,
    ServiceKind,
    Surroundings,
    one_line,
)
from keystone_action.services.sql_script import ServerLook, SqlScript, run_script
from keystone_action.spec.models.services import ContainerService, MysqlService, repository_of
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.server_process import Provider

DEFAULT_IMAGE = "mysql:9"
_PORT = 3306
_OURS = ("ROOT_PASSWORD", "ROOT_HOST", "RANDOM_ROOT_PASSWORD", "ALLOW_EMPTY_PASSWORD", "ALLOW_EMPTY_ROOT_PASSWORD")
_NAMES = ("ROOT_PASSWORD", "USER", "PASSWORD", "DATABASE")
_RESERVED = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
_LONGEST_USER = 32
_LONGEST_DATABASE = 64


class Mysql(ServiceKind[MysqlService | ContainerService]):
    """Without an engine the server of this machine serves what names no image."""

    @classmethod
    def build(cls, definition: MysqlService | ContainerService, surroundings: Surroundings) -> RunningService:
        """See ServiceKind."""
        if definition.image is None and surroundings.containers is None:
            return LocalMysql(definition, surroundings.provider)
        return MysqlContainer(definition, surroundings.require_containers(definition))

    @classmethod
    def refuse_unsupported(cls, definition: MysqlService | ContainerService, *, engine: bool) -> None:
        """See ServiceKind."""
        if engine or definition.image is not None:
            return
        for field, is_given in (
            ("command", definition.command is not None),
            ("isolation: container", definition.isolation == "container"),
        ):
            if is_given:
                raise UsageError(
                    f"service {definition.name}: {field} needs a container engine; the server of this machine, which "
                    "stands in for one, has nothing like it",
                    help=f"Start Docker (or set DOCKER_HOST), or leave {field} out.",
                )
        require_program(definition.name)


class LocalMysql:
    """A `RunningService`."""

    def __init__(self, definition: MysqlService | ContainerService, provider: Provider) -> None:
        """Raises UsageError for an env that can't be honoured."""
        self.name = definition.name
        self._isolation = definition.isolation
        self._credentials = mysql_credentials(definition.name, definition.env)
        self._servers = LocalMysqlServers(
            definition.name, unused_directory(provider.root), provider, definition.ready_timeout
        )

    async def start(self) -> None:
        """See RunningService."""
        await self._servers.start()

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService."""
        async with self._servers.seat() as server:
            by_env = scope.exclusive and self._isolation != "database"
            wanted = self._credentials if by_env else MysqlCredentials.of_a_cell()
            address = _address(server.host, server.port, wanted)
            place = MysqlPlace(self.name, address, address, server, wanted, self._credentials.database)
            if scope.watches_writes:
                place.watch_writes(self._credentials.database, scope.private)
            async with undoing(place.drop):
                await place.create()
                yield place

    async def stop(self) -> None:
        """See RunningService."""
        await self._servers.stop()


class MysqlContainer:
    """A `RunningService`."""

    def __init__(self, definition: MysqlService | ContainerService, host: ContainerHost) -> None:
        """Raises UsageError for an env that can't be honoured."""
        self._definition = definition
        self._host = host
        self._image = definition.image or DEFAULT_IMAGE
        self._credentials = mysql_credentials(definition.name, definition.env)
        self._port = definition.ports[0] if definition.ports else _PORT
        self._servers = DatabaseServers(definition, self._image, host, self._server)

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService. With `isolation: container` only the image is pulled; each cell starts its server."""
        await self._servers.start()

    def _server(self) -> MysqlInContainer:
        definition, root = self._definition, secrets.token_urlsafe(24)
        env = env_for_image(self._image, definition.env, self._credentials, root)
        plan = ServiceContainerPlan(
            service=self.name, image=self._image, env=env, command=definition.command, is_database=True
        )
        return MysqlInContainer(self._host.container(plan), self._credentials, root, self._port)

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService."""
        async with self._servers.seat(scope) as seat:
            wanted = self._credentials if seat.by_env else MysqlCredentials.of_a_cell()
            for_host = _address(seat.server.container.address, self._port, wanted)
            for_agent = _address(self.name, self._port, wanted) if scope.in_network else for_host
            place = MysqlPlace(self.name, for_agent, for_host, seat.server, wanted, self._credentials.database)
            if scope.watches_writes:
                place.watch_writes(self._credentials.database, scope.private)
            async with undoing(place.drop) if seat.shared else nullcontext():
                await place.create()
                yield place

    async def stop(self) -> None:
        """See RunningService."""
        await self._servers.stop()


class MysqlPlace(Place):
    """One cell's database on a server of ours. shown: its name in the spec."""

    def __init__(
        self,
        name: str,
        for_agent: Address,
        for_host: Address,
        server: MysqlServer,
        wanted: MysqlCredentials,
        shown: str,
    ) -> None:
        self._server = server
        self._database_of_env = shown
        self._cell = MysqlCellDatabase(server, wanted.database, wanted.user, wanted.password)
        self._watch = CatalogueWatch(self._cell.look)
        reader = MysqlReader(self._cell.reader_connection(), self._watch.changes)
        super().__init__(name, for_agent, for_host, database=reader)
        self._watched: MysqlWrites | None = None

    def watch_writes(self, shown: str, private: Path) -> None:
        """From `seal` on. shown: the database's name in the spec. private: a directory of ours."""
        directory = private / f"writes-{secrets.token_hex(6)}"
        self._watched = MysqlWrites(self.name, self._server.reads_all(), self._cell.database, shown, directory)
        self.writes = self._watched

    async def create(self) -> None:
        """Make it, with what the image filled its own database with. Raises ServiceError."""
        await self._run("could not make a database for a cell", self._cell.create)
        await self._server.fill(self._cell)

    async def drop(self) -> None:
        """Drop it. What can't be dropped now goes with the server. Never raises."""
        with contextlib.suppress(ServiceError):
            await self._run("could not drop a cell's database", self._cell.drop)

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:
        """See Place."""
        import pymysql

        cell = self._cell
        names = {cell.database, self._database_of_env}
        run = ClientScript(script, lambda: script_session(cell.user_connection()), cell.database, names).run
        look = ServerLook(lambda: self._server.crashed, lambda: self._server.failure(CRASHED))
        return await run_script(self.name, script, run, [pymysql.err.MySQLError, OSError, RuntimeError], look)

    async def seal(self) -> None:
        """See Place."""
        import anyio.to_thread

        await anyio.to_thread.run_sync(self.require_unbroken)
        await self._run("went away", self._watch.seal)
        if self._watched is not None:
            await self._run("went away", self._watched.seal)

    def settle(self) -> None:
        """See Place. Ends the agent's sessions."""
        import pymysql

        self.require_unbroken()
        try:
            self._cell.settle()
            if self._watched is not None and self._cell.has_sessions():
                raise self._server.failure("goes on with what the agent's clients have left there")
        except (pymysql.err.MySQLError, OSError) as error:
            raise self._server.failure(self._problem("went away", error)) from None
        if self._watched is not None:
            self._watched.settle()

    def require_unbroken(self) -> None:
        """See Place."""
        if self._server.crashed:
            raise self._server.failure(CRASHED)

    async def _run(self, what: str, call: Callable[[], None]) -> None:
        import anyio.to_thread
        import pymysql

        try:
            await anyio.to_thread.run_sync(call)
        except (pymysql.err.MySQLError, OSError) as error:
            found = error
        else:
            return
        problem = await anyio.to_thread.run_sync(self._problem, what, found)
        raise await anyio.to_thread.run_sync(self._server.failure, problem) from None

    def _problem(self, what: str, error: Exception) -> str:
        """A crash is told as one, also where it came after the last look."""
        return f"{CRASHED if _ended_by_server(error) or self._server.crashed else what}: {one_line(error)}"


def _ended_by_server(error: Exception) -> bool:
    """Whether the session ended as a crash ends it. The witness may live a moment longer than others."""
    return bool(error.args) and error.args[0] in _CRASH_NUMBERS and "timed out" not in str(error)


_CRASH_NUMBERS = frozenset({1053, 2006, 2013})
"""The server shuts down, has gone away, lost the connection in mid-query."""


def mysql_credentials(service: str, env: Mapping[str, str]) -> MysqlCredentials:
    """By the official images' variables, MYSQL_… or MARIADB_…: USER [root], PASSWORD [ROOT_PASSWORD for root;
    generated], DATABASE [the service's name, dashes as `_`]. Raises UsageError."""
    found = {name: env.get(f"MYSQL_{name}") or env.get(f"MARIADB_{name}") or "" for name in _NAMES}
    for variable in env:
        if variable.startswith(("MYSQL_", "MARIADB_")) and variable.endswith("_FILE"):
            raise UsageError(
                f"service {service}: env {variable} names a file in the container, which can't be read from here",
                help=f"Set {variable.removesuffix('_FILE')}; a secret of the spec keeps its value out of the file.",
            )
    user = found["USER"] or "root"
    password = found["PASSWORD"] if user != "root" else found["ROOT_PASSWORD"]
    database = found["DATABASE"] or service.replace("-", "_")
    if len(user) > _LONGEST_USER or len(database) > _LONGEST_DATABASE:
        raise UsageError(
            f"service {service}: MySQL's users have at most {_LONGEST_USER} characters, its databases "
            f"{_LONGEST_DATABASE}"
        )
    if database.lower() in _RESERVED or user.startswith(("mysql.", "keystone_")):
        raise UsageError(f"service {service}: the name {user!r} or {database!r} is reserved")
    return MysqlCredentials(user, password or secrets.token_urlsafe(18), database)


def env_for_image(image: str, env: Mapping[str, str], credentials: MysqlCredentials, root: str) -> dict[str, str]:
    """What the image gets: the spec's env, but a superuser whose password is ours, and names for what it left out."""
    mariadb = any(name.startswith("MARIADB_") for name in env) or repository_of(image) == "mariadb"
    prefix = "MARIADB" if mariadb else "MYSQL"
    ours = {f"{start}_{name}" for start in ("MYSQL", "MARIADB") for name in (*_OURS, *_NAMES)}
    result = {name: value for name, value in env.items() if name not in ours}
    result |= {f"{prefix}_ROOT_PASSWORD": root, f"{prefix}_ROOT_HOST": "%", f"{prefix}_DATABASE": credentials.database}
    if credentials.user != "root":
        result |= {f"{prefix}_USER": credentials.user, f"{prefix}_PASSWORD": credentials.password}
    return result


def _address(host: str, port: int, credentials: MysqlCredentials) -> Address:
    user, password, database = (
        quote(part, safe="") for part in (credentials.user, credentials.password, credentials.database)
    )
    address = Address(host, port, user=credentials.user, password=credentials.password, database=credentials.database)
    return replace(address, url=f"mysql://{user}:{password}@{host}:{port}/{database}")
