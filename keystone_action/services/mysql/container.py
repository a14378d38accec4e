"""Images of MySQL and MariaDB: a database and a user for each cell."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import Address
from keystone_action.services.base import Attached, CellScope
from keystone_action.services.container.database_servers import DatabaseServers, Seat
from keystone_action.services.container.engine_container import ContainerPlan
from keystone_action.services.mysql.cells import CellDatabase
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.mysql.server_in_container import Credentials, MysqlInContainer, one_line
from keystone_action.services.redefinitions import Watch
from keystone_action.spec.models.services import repository_of

if TYPE_CHECKING:
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.spec.models.services import ContainerService, MysqlService

DEFAULT_IMAGE = "mysql:9"
_PORT = 3306
_OURS = ("ROOT_PASSWORD", "ROOT_HOST", "RANDOM_ROOT_PASSWORD", "ALLOW_EMPTY_PASSWORD", "ALLOW_EMPTY_ROOT_PASSWORD")
_NAMES = ("ROOT_PASSWORD", "USER", "PASSWORD", "DATABASE")
_RESERVED = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
_LONGEST_USER = 32
_LONGEST_DATABASE = 64


@dataclass(frozen=True, slots=True)
class _Used:
    """What a cell has."""

    address: Address
    seat: Seat[MysqlInContainer]
    cell: CellDatabase
    watch: Watch


class MysqlContainer:
    """A `RunningService`."""

    def __init__(self, definition: MysqlService | ContainerService, host: ContainerHost) -> None:
        """Raises UsageError for an env that can't be honoured."""
        self._definition = definition
        self._host = host
        self._image = definition.image or DEFAULT_IMAGE
        self._credentials = credentials_of_image(definition.name, definition.env)
        self._port = definition.ports[0] if definition.ports else _PORT
        self._servers = DatabaseServers(definition, self._image, host, self._server)
        self._used: list[_Used] = []

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService. With `isolation: container` only the image is had; each cell starts its server."""
        await self._servers.start()

    def _server(self) -> MysqlInContainer:
        definition, root = self._definition, secrets.token_urlsafe(24)
        env = env_for_image(self._image, definition.env, self._credentials, root)
        plan = ContainerPlan(service=self.name, image=self._image, env=env, command=definition.command)
        return MysqlInContainer(self._host.container(plan), self._credentials, root, self._port)

    async def attach(self, scope: CellScope) -> Attached:
        """See RunningService."""
        import anyio

        seat = await self._servers.enter(scope)
        server = seat.server
        wanted = self._credentials if seat.by_env else Credentials.of_a_cell()
        cell = CellDatabase(server, wanted.database, wanted.user, wanted.password)
        for_host = _address(server.container.address, self._port, wanted)
        used = _Used(for_host, seat, cell, Watch(cell.look))
        self._used.append(used)
        try:
            await self._run(server, "could not make a database for a cell", cell.create)
            await server.fill(cell)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave(used)
            raise
        return Attached(
            self.name,
            _address(self.name, self._port, wanted) if scope.in_network else for_host,
            for_host,
            database=MysqlReader(cell.reader_connection(), used.watch.changes),
            settle=lambda: self._settle(server, cell),
        )

    def _settle(self, server: MysqlInContainer, cell: CellDatabase) -> None:
        import pymysql

        try:
            cell.settle()
        except (pymysql.err.MySQLError, OSError) as error:
            raise server.container.failed(f"went away: {one_line(error)}") from None

    async def run_sql(self, attached: Attached, script: str) -> None:
        """See RunningService."""
        used = self._of(attached)
        assert used is not None
        await self._run(used.seat.server, "refused a fixture", lambda: used.cell.run_script(script))

    async def seal(self, attached: Attached) -> None:
        """See RunningService."""
        used = self._of(attached)
        assert used is not None
        await self._run(used.seat.server, "went away", used.watch.seal)

    async def detach(self, attached: Attached) -> None:
        """See RunningService."""
        used = self._of(attached)
        if used is not None:
            await self._leave(used)

    async def _leave(self, used: _Used) -> None:
        self._used.remove(used)
        if used.seat.shared:
            with contextlib.suppress(ServiceError):  # what can't be dropped now goes with the server
                await self._run(used.seat.server, "could not drop a cell's database", used.cell.drop)
        await self._servers.leave(used.seat)

    async def stop(self) -> None:
        """See RunningService."""
        self._used.clear()
        await self._servers.stop()

    def _of(self, attached: Attached) -> _Used | None:
        return next((one for one in self._used if one.address is attached.for_host), None)

    async def _run(self, server: MysqlInContainer, what: str, call: Callable[[], None]) -> None:
        import anyio.to_thread
        import pymysql

        try:
            await anyio.to_thread.run_sync(call)
        except (pymysql.err.MySQLError, OSError) as error:
            raise await server.container.failure(f"{what}: {one_line(error)}") from None


def credentials_of_image(service: str, env: Mapping[str, str]) -> Credentials:
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
    return Credentials(user, password or secrets.token_urlsafe(18), database)


def env_for_image(image: str, env: Mapping[str, str], credentials: Credentials, root: str) -> dict[str, str]:
    """What the image gets: the spec's env, but a superuser whose password is ours, and names for what it left out."""
    mariadb = any(name.startswith("MARIADB_") for name in env) or repository_of(image) == "mariadb"
    prefix = "MARIADB" if mariadb else "MYSQL"
    ours = {f"{start}_{name}" for start in ("MYSQL", "MARIADB") for name in (*_OURS, *_NAMES)}
    result = {name: value for name, value in env.items() if name not in ours}
    result |= {f"{prefix}_ROOT_PASSWORD": root, f"{prefix}_ROOT_HOST": "%", f"{prefix}_DATABASE": credentials.database}
    if credentials.user != "root":
        result |= {f"{prefix}_USER": credentials.user, f"{prefix}_PASSWORD": credentials.password}
    return result


def _address(host: str, port: int, credentials: Credentials) -> Address:
    user, password, database = (
        quote(part, safe="") for part in (credentials.user, credentials.password, credentials.database)
    )
    address = Address(host, port, user=credentials.user, password=credentials.password, database=credentials.database)
    return replace(address, url=f"mysql://{user}:{password}@{host}:{port}/{database}")
