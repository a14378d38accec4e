"""Images of PostgreSQL and what is built on them: a database and a role for each cell, as of the embedded server.

`isolation: container` gives each cell a server of its own. Else one server serves all: with one cell at a time by the
names of `env`, with several, or by `isolation: database`, by names that no other cell has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError, UsageError
from keystone_action.services.base import Attached, CellScope
from keystone_action.services.container import remove_all
from keystone_action.services.engine_container import ContainerPlan
from keystone_action.services.images import ensure_image
from keystone_action.services.postgres import named_by_env
from keystone_action.services.postgres_databases import CellDatabases, Credentials
from keystone_action.services.postgres_in_container import MAINTENANCE, TEMPLATE, PostgresInContainer

if TYPE_CHECKING:
    from keystone_action.evidence.model import Address
    from keystone_action.services.container_host import ContainerHost
    from keystone_action.services.networks import Network
    from keystone_action.services.postgres_cells import Server
    from keystone_action.spec.services import ContainerService, PostgresService

_PORT = 5432
_RESERVED = frozenset({"template0", "template1", MAINTENANCE, TEMPLATE})
_UNREADABLE = ("POSTGRES_USER_FILE", "POSTGRES_PASSWORD_FILE", "POSTGRES_DB_FILE")


@dataclass(frozen=True, slots=True)
class _Used:
    """What a cell has: joined, the network to which a shared server was added."""

    address: Address
    server: PostgresInContainer
    joined: Network | None


class PostgresContainer:
    """A `RunningService`."""

    def __init__(self, definition: PostgresService | ContainerService, host: ContainerHost) -> None:
        """Raises UsageError for an env that can't be honoured."""
        self._definition = definition
        self._host = host
        self._credentials = credentials_of_image(definition.name, definition.env)
        self._port = port_of(definition, "PGPORT", _PORT)
        self._shared: PostgresInContainer | None = None
        self._used: list[_Used] = []
        self._databases = CellDatabases(_failure)

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService. With `isolation: container` only the image is had; each cell starts its server."""
        assert self._definition.image is not None
        await ensure_image(self._host.client, self._definition.image, **self._host.pulling())
        if self._definition.isolation != "container":
            self._shared = await self._server(await self._host.group.enter())

    async def _server(self, network: Network, cell: str = "") -> PostgresInContainer:
        definition = self._definition
        assert definition.image is not None
        env = {"POSTGRES_PASSWORD": self._credentials.password, "POSTGRES_INITDB_ARGS": "--no-sync", **definition.env}
        plan = ContainerPlan(service=self.name, image=definition.image, env=env, command=definition.command)
        container = self._host.container(plan)
        server = PostgresInContainer(container, self._credentials, self._port)
        await server.start(network, definition.ready_timeout, wait_for=definition.wait_for, cell=cell)
        return server

    async def attach(self, scope: CellScope) -> Attached:
        """See RunningService."""
        import anyio

        server, joined = self._shared, scope.network
        if server is not None:
            await server.container.must_run("between two cells")
            if joined is not None:
                await self._host.share(joined, server.container.id, self.name)
        else:
            server, joined = await self._server(scope.network or await self._host.group.enter(), scope.cell_id), None
        by_env = self._shared is None or (scope.exclusive and self._definition.isolation != "database")
        wanted = self._credentials if by_env else Credentials.of_a_cell()
        for_host = wanted.address(server.container.address, self._port)
        for_agent = wanted.address(self.name, self._port) if scope.in_network else for_host
        used = _Used(for_host, server, joined)
        self._used.append(used)
        try:
            return await self._databases.attach(self.name, server, wanted, for_agent=for_agent, for_host=for_host)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave(used)
            raise

    async def run_sql(self, attached: Attached, script: str) -> None:
        """See RunningService."""
        await self._databases.run_sql(attached, script)

    async def seal(self, attached: Attached) -> None:
        """See RunningService."""
        await self._databases.seal(attached)

    async def detach(self, attached: Attached) -> None:
        """See RunningService."""
        used = next((one for one in self._used if one.address is attached.for_host), None)
        if used is None:
            return
        if used.server is self._shared:
            await self._databases.detach(attached)
        await self._leave(used)

    async def _leave(self, used: _Used) -> None:
        self._used.remove(used)
        if used.server is not self._shared:
            await used.server.remove()
        elif used.joined is not None:
            await self._host.unshare(used.joined, used.server.container.id)

    async def stop(self) -> None:
        """See RunningService."""
        servers = [used.server for used in self._used] + ([self._shared] if self._shared is not None else [])
        self._used.clear()
        self._shared = None
        await remove_all(set(servers))


def credentials_of_image(service: str, env: Mapping[str, str]) -> Credentials:
    """By the official image's variables. Raises UsageError for names that are reserved, and for `…_FILE`, which name
    files that only the container has."""
    for name in _UNREADABLE:
        if name in env:
            raise UsageError(
                f"service {service}: env {name} names a file in the container, which can't be read from here",
                help=f"Set {name.removesuffix('_FILE')}; a secret of the spec keeps its value out of the file.",
            )
    return named_by_env(service, env, reserved=_RESERVED)


def port_of(definition: PostgresService | ContainerService, variable: str, default: int) -> int:
    """The first of `ports`, or what the image's variable says, or the usual one. Raises UsageError."""
    if definition.ports:
        return definition.ports[0]
    text = definition.env.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"service {definition.name}: env {variable} must be a port, found {text!r}")
    return int(text)


def _failure(server: Server, problem: str) -> ServiceError:
    assert isinstance(server, PostgresInContainer)
    return server.container.failed(problem)
