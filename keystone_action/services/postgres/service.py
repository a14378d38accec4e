"""The service kind `postgres`: an image on the container engine, or, without one, the embedded server. Each cell has a
database and a role of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import ServiceError, UsageError
from keystone_action.network.relay import PortRelays, RelayTarget
from keystone_action.services.postgres.databases import MAINTENANCE
from keystone_action.services.postgres.embedded_server import EMBEDDED_HOST, EmbeddedServer
from keystone_action.services.postgres.place import PostgresCredentials, PostgresPlace, read_credentials
from keystone_action.services.service import CellScope, Place, RunningService, ServiceKind, Surroundings
from keystone_action.spec.models.services import ContainerService, PostgresService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    import anyio

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.network.loop_thread import LoopThread
    from keystone_action.services.postgres.databases import PostgresServer
    from keystone_action.services.server_process import Spawner
    from keystone_action.spec.models.services import ContainerService, PostgresService


class Postgres(ServiceKind[PostgresService | ContainerService]):
    """The embedded server serves what names no image, and stands in for an image where no engine is."""

    @classmethod
    def build(cls, definition: PostgresService | ContainerService, surroundings: Surroundings) -> RunningService:
        """See ServiceKind."""
        if definition.image is not None and surroundings.containers is not None:
            from keystone_action.services.postgres.container import PostgresContainer

            return PostgresContainer(definition, surroundings.containers, watches_writes=surroundings.watches_writes)
        provider = surroundings.provider
        directory = provider.root / f"postgres-{secrets.token_hex(6)}"
        return EmbeddedPostgres(
            definition, directory, provider, surroundings.mocks.thread, watches_writes=surroundings.watches_writes
        )

    @classmethod
    def refuse_unsupported(cls, definition: PostgresService | ContainerService, *, engine: bool) -> None:
        """See ServiceKind: fields that mean something to a container only."""
        if definition.image is not None and engine:
            return
        for field, is_given in (
            ("command", definition.command is not None),
            ("isolation: container", definition.isolation == "container"),
        ):
            if is_given:
                raise UsageError(
                    f"service {definition.name}: {field} needs a container engine; the embedded PostgreSQL, which"
                    " stands in for an image where there is none, has nothing like it",
                    help=f"Start Docker (or set DOCKER_HOST), or leave {field} out; `keystone doctor` says what there"
                    " is.",
                )


_HONOURED = frozenset({"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "POSTGRES_HOST_AUTH_METHOD"})
_LACKING = (
    "The embedded PostgreSQL does not have it: give the service `image: postgres:17`, which needs a Docker engine."
)
_AUTH_METHODS = frozenset({"scram-sha-256", "md5", "password", "trust"})
_RESERVED_DATABASES = frozenset({"template0", "template1", MAINTENANCE})


def credentials_from_env(service: str, env: Mapping[str, str]) -> PostgresCredentials:
    """What `env` asks for, as the official image reads it: POSTGRES_USER [postgres], POSTGRES_PASSWORD [generated],
    POSTGRES_DB [the user], POSTGRES_HOST_AUTH_METHOD. Raises UsageError for other POSTGRES_ variables and for
    reserved names."""
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
    return read_credentials(service, env, reserved=_RESERVED_DATABASES)


class EmbeddedPostgres:
    """A `RunningService`. directory: a new one for this server alone; see `EmbeddedServer`. thread: for the relays by
    which containers reach it [its own]. watches_writes: see Surroundings. That it stands in for an image which the spec
    names is said in the report's head, once for the run."""

    def __init__(
        self,
        definition: PostgresService | ContainerService,
        directory: Path,
        spawner: Spawner,
        thread: LoopThread | None = None,
        *,
        watches_writes: bool = False,
    ) -> None:
        self._definition = definition
        self._credentials = credentials_from_env(definition.name, definition.env)
        self._relays = PortRelays(thread)
        self._directory = directory  # a further server has one beside it
        self._spawner = spawner
        self._watches_writes = watches_writes
        self._server = self._new_server(directory)
        self._ended_servers: list[EmbeddedServer] = []
        self._one_at_a_time: anyio.Lock | None = None

    def _new_server(self, directory: Path) -> EmbeddedServer:
        trusted_role = self._credentials.user if self._credentials.trust else None
        return EmbeddedServer(
            self.name,
            directory,
            self._spawner,
            trusted_role=trusted_role,
            watches_writes=self._watches_writes,
        )

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService."""
        await self._start(self._server)

    async def _start(self, server: EmbeddedServer) -> None:
        try:
            await server.start(self._definition.ready_timeout)
        except OSError as error:
            raise ServiceError(f"service {self.name}: the embedded PostgreSQL can't be started: {error}") from error

    async def _running_server(self) -> EmbeddedServer:
        """The server, or a new one where it has ended: the cells that were under way have lost theirs, the next have
        not. Raises ServiceError."""
        import anyio
        import anyio.to_thread

        self._one_at_a_time = self._one_at_a_time or anyio.Lock()
        async with self._one_at_a_time:
            if await anyio.to_thread.run_sync(lambda: self._server.crashed):
                number = len(self._ended_servers) + 1
                fresh = self._new_server(self._directory.with_name(f"{self._directory.name}-{number}"))
                await self._start(fresh)
                self._ended_servers.append(self._server)  # its cells tell what it printed last
                self._server = fresh
            return self._server

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService. With one cell at a time exactly the names of `env`, unless `isolation: database`."""
        by_env = scope.exclusive and self._definition.isolation != "database"
        wanted = self._credentials if by_env else PostgresCredentials.of_a_cell()
        server = await self._running_server()
        for_agent = for_host = wanted.address(EMBEDDED_HOST, server.port)
        async with AsyncExitStack() as way:
            if scope.network is not None and scope.in_network:
                for_agent = wanted.address(self.name, await self._open_way(scope.network, server, way))
            place = PostgresPlace(
                self.name,
                for_agent,
                for_host,
                server,
                wanted,
                _failure,
                databases=[self._credentials.database],
                lacking=_LACKING,
                watches_writes=scope.watches_writes,
            )
            await place.create()
            # The way there closes first: nobody comes while the database goes.
            async with undoing(place.drop), undoing(way.aclose):
                yield place

    async def _open_way(self, network: ContainerNetwork, server: EmbeddedServer, way: AsyncExitStack) -> int:
        """The port at which an agent in a container reaches the server. The relay lets only its cell's containers
        through; among those that know the way, as on the loopback, a cell's password is what tells them apart."""
        try:
            relay = await way.enter_async_context(self._relays.open(network, RelayTarget(EMBEDDED_HOST, server.port)))
        except ServiceError as error:
            raise ServiceError(f"service {self.name}: {error.message}", help=error.help) from error
        network.hosts[self.name] = network.host_address
        return relay.port

    async def stop(self) -> None:
        """See RunningService."""
        await self._relays.stop()
        for server in (*self._ended_servers, self._server):
            await server.stop()


def _failure(server: PostgresServer, problem: str) -> ServiceError:
    assert isinstance(server, EmbeddedServer)
    return server.failure(problem)
