"""The servers of one service that is a database in containers: one for all cells, or one for each.

`isolation: container` gives each cell a server of its own. Else one server serves all: with one cell at a time by the
names of `env`, with several, or by `isolation: database`, by names that no other cell has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from keystone_action.engine.pulling import ensure_image
from keystone_action.services.base import CellScope
from keystone_action.services.container.service import remove_all
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    import anyio

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.services.container.engine_container import ServiceContainer
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.spec.models.services import ContainerService, MysqlService, PostgresService


class DatabaseServer(Protocol):
    """A server in a container that was not started yet, or is ours alone by now."""

    container: ServiceContainer

    @property
    def crashed(self) -> bool:
        """Whether it has ended, or has ended all sessions and come back, since it was ready. Blocking."""

    async def start(self, network: ContainerNetwork, timeout: float, *, wait_for: str | None, cell: str = "") -> None:
        """Ready when a query is answered and `wait_for` succeeds. Raises ServiceError."""

    async def remove(self) -> None:
        """Never raises."""


S = TypeVar("S", bound=DatabaseServer)


@dataclass(frozen=True, slots=True)
class Seat(Generic[S]):
    """What a cell has of the servers. by_env: it has the names of `env`."""

    server: S
    shared: bool
    by_env: bool


class DatabaseServers(Generic[S]):
    """new: makes a server, not started yet."""

    def __init__(
        self,
        definition: ContainerService | MysqlService | PostgresService,
        image: str,
        host: ContainerHost,
        new: Callable[[], S],
    ) -> None:
        self._definition = definition
        self._image = image
        self._host = host
        self._new = new
        self._shared: S | None = None
        self._servers: set[S] = set()
        self._one_at_a_time: anyio.Lock | None = None

    async def start(self) -> None:
        """Have the image, and where cells share one, the server. Raises ServiceError."""
        await ensure_image(self._host.client, self._image, self._host.pull)
        if self._definition.isolation != "container":
            self._shared = await self._start_server(await self._host.group.enter())

    async def _start_server(self, network: ContainerNetwork, cell: str = "") -> S:
        server, definition = self._new(), self._definition
        await server.start(network, definition.ready_timeout, wait_for=definition.wait_for, cell=cell)
        self._servers.add(server)
        return server

    async def _remove(self, server: S) -> None:
        self._servers.discard(server)
        await server.remove()

    @asynccontextmanager
    async def seat(self, scope: CellScope) -> AsyncIterator[Seat[S]]:
        """A server for a cell. After it, its own server is removed, and a shared one taken out of its network. Raises
        ServiceError."""
        if self._shared is None:
            server = await self._start_server(scope.network or await self._host.group.enter(), scope.cell_id)
            async with undoing(partial(self._remove, server)):
                yield Seat(server, shared=False, by_env=True)
            return
        server = await self._running_server(self._shared)
        async with self._host.sharing(scope.network, server.container.id, self._definition.name):
            by_env = scope.exclusive and self._definition.isolation != "database"
            yield Seat(server, shared=True, by_env=by_env)

    async def _running_server(self, server: S) -> S:
        """The shared server, or a new one where it has ended: the cells that were under way have lost theirs, the
        others have not. Raises ServiceError."""
        import anyio
        import anyio.to_thread

        self._one_at_a_time = self._one_at_a_time or anyio.Lock()
        async with self._one_at_a_time:
            if self._shared is server and await anyio.to_thread.run_sync(lambda: server.crashed):
                # The one that ended is removed with the others: its cells tell how it ended.
                self._shared = await self._start_server(await self._host.group.enter())
            assert self._shared is not None
            return self._shared

    async def stop(self) -> None:
        """Remove them all. Never raises."""
        servers, self._servers = self._servers, set()
        self._shared = None
        await remove_all(servers)
