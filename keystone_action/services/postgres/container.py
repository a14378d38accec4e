"""Images of PostgreSQL and what is built on them: a database and a role for each cell, as of the embedded server."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from keystone_action.engine.calls import ask
from keystone_action.engine.pulling import ensure_image
from keystone_action.errors import ServiceError, UsageError
from keystone_action.services.base import CellScope, Place
from keystone_action.services.container.database_servers import DatabaseServers
from keystone_action.services.container.engine_container import ServiceContainerPlan
from keystone_action.services.postgres.databases import PostgresCredentials, PostgresPlace, RetiredDatabases
from keystone_action.services.postgres.embedded import read_credentials
from keystone_action.services.postgres.server_in_container import MAINTENANCE, TEMPLATE, PostgresInContainer
from keystone_action.services.postgres.writes.slots import SERVER_SETTINGS
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.postgres.cells import PostgresServer
    from keystone_action.spec.models.services import ContainerService, PostgresService

_PORT = 5432
_RESERVED = frozenset({"template0", "template1", MAINTENANCE, TEMPLATE})
_STARTS_A_SERVER = frozenset({"postgres", "docker-entrypoint.sh"})
_UNREADABLE = ("POSTGRES_USER_FILE", "POSTGRES_PASSWORD_FILE", "POSTGRES_DB_FILE")


class PostgresContainer:
    """A `RunningService`."""

    def __init__(
        self, definition: PostgresService | ContainerService, host: ContainerHost, *, watches_writes: bool = False
    ) -> None:
        """watches_writes: see Surroundings. Raises UsageError for an env that can't be honoured."""
        assert definition.image is not None
        self._definition = definition
        self._image = definition.image
        self._host = host
        self._watches_writes = watches_writes
        self._command: str | Sequence[str] | None = definition.command
        self._credentials = credentials_of_image(definition.name, definition.env)
        self._port = port_of(definition, "PGPORT", _PORT)
        self._servers = DatabaseServers(definition, self._image, host, self._server)
        self._retired = RetiredDatabases()

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """See RunningService. With `isolation: container` only the image is pulled; each cell starts its server."""
        if self._watches_writes:
            self._command = await self._command_with_log()
        await self._servers.start()

    async def _command_with_log(self) -> str | Sequence[str] | None:
        """The command, or the image's own, for a server that keeps a log of changes. One that is started by another
        program is not ours to change: it says itself what it has."""
        await ensure_image(self._host.client, self._image, self._host.pull)
        words = self._definition.command
        if words is None:
            found = await ask(lambda: self._host.client.inspect_image(self._image), f"service {self.name}")
            words = (found["Config"] or {}).get("Cmd") or ["postgres"]
        words = shlex.split(words) if isinstance(words, str) else list(words)
        if words and (words[0].startswith("-") or PurePosixPath(words[0]).name in _STARTS_A_SERVER):
            words += [part for name, value in SERVER_SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return words

    def _server(self) -> PostgresInContainer:
        definition = self._definition
        env = {"POSTGRES_PASSWORD": self._credentials.password, "POSTGRES_INITDB_ARGS": "--no-sync", **definition.env}
        plan = ServiceContainerPlan(service=self.name, image=self._image, env=env, command=self._command)
        return PostgresInContainer(
            self._host.container(plan), self._credentials, self._port, watches_writes=self._watches_writes
        )

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService."""
        async with self._servers.seat(scope) as seat:
            wanted = self._credentials if seat.by_env else PostgresCredentials.of_a_cell()
            for_host = wanted.address(seat.server.container.address, self._port)
            for_agent = wanted.address(self.name, self._port) if scope.in_network else for_host
            place = PostgresPlace(
                self.name, for_agent, for_host, seat.server, wanted, _failure, watches_writes=scope.watches_writes
            )
            await place.create()
            async with undoing(partial(self._retired.add, place)) if seat.shared else nullcontext():
                yield place

    async def stop(self) -> None:
        """See RunningService."""
        await self._servers.stop()


def credentials_of_image(service: str, env: Mapping[str, str]) -> PostgresCredentials:
    """By the official image's variables. Raises UsageError for names that are reserved, and for `…_FILE`, which name
    files that only the container has."""
    for name in _UNREADABLE:
        if name in env:
            raise UsageError(
                f"service {service}: env {name} names a file in the container, which can't be read from here",
                help=f"Set {name.removesuffix('_FILE')}; a secret of the spec keeps its value out of the file.",
            )
    return read_credentials(service, env, reserved=_RESERVED)


def port_of(definition: PostgresService | ContainerService, variable: str, default: int) -> int:
    """The first of `ports`, or what the image's variable says, or the usual one. Raises UsageError."""
    if definition.ports:
        return definition.ports[0]
    text = definition.env.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"service {definition.name}: env {variable} must be a port, found {text!r}")
    return int(text)


def _failure(server: PostgresServer, problem: str) -> ServiceError:
    assert isinstance(server, PostgresInContainer)
    return server.container.failure(problem)
