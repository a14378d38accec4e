"""The service kind `container`, any image, and the servers of databases that run in containers.

Nothing that we know of resets any image, so every cell has a fresh container in its own network. With `isolation:
database` all cells share one container, and the report says so.

Of a database one server serves all cells, each with a database of its own; `isolation: container` gives each cell a
server of its own. With one cell at a time its database has the names of `env`; with several, or by `isolation:
database`, it has names that no other cell has.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from keystone_action.engine.images import find_image
from keystone_action.engine.pulling import ensure_image
from keystone_action.engine.records import labels
from keystone_action.errors import ServiceError
from keystone_action.evidence.model import Address
from keystone_action.services.container.engine_container import ServiceContainer, ServiceContainerPlan
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.spec.models.services import ContainerService
from keystone_action.system.command import Capture, CommandLimits
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    import anyio

    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.services.container.engine_container import ServiceContainer
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.sql_script import SqlScript
    from keystone_action.spec.models.services import ContainerService, MysqlService, PostgresService

_CONNECT_SECONDS = 2.0
_NO_SHELL = re.compile(r"OCI runtime.*/bin/sh.*(no such file or directory|not found)", re.DOTALL)
_GRACE_SECONDS = 0.5
"""How long a container must run to be taken for started, where nothing else tells that it is ready."""
_NOTICED_SECONDS = 3.0
_TRUST = "keystone-trust"
"""The folder in which programs of a container find what they have to trust."""
_SCHEMES = {6379: "redis", 5672: "amqp", 27017: "mongodb", 4222: "nats", 11211: "memcached", 443: "https"}


class GenericContainer(ServiceKind[ContainerService]):
    """A `RunningService`."""

    def __init__(self, definition: ContainerService, host: ContainerHost) -> None:
        self._definition = definition
        self._host = host
        self._shared: ServiceContainer | None = None
        self._containers: set[ServiceContainer] = set()

    @classmethod
    def build(cls, definition: ContainerService, surroundings: Surroundings) -> GenericContainer:
        """See ServiceKind."""
        return cls(definition, surroundings.require_containers(definition))

    @property
    def name(self) -> str:
        """The service's name."""
        return self._definition.name

    async def start(self) -> None:
        """Have the image, and where cells share one, its container. Raises ServiceError."""
        await ensure_image(self._host.client, self._definition.image, self._host.pull)
        if self._definition.isolation == "database":
            self._shared = await self._run(await self._host.group.enter())

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """See RunningService. The container is made here, and removed after the cell with its volumes; ready when it
        runs, `wait_for` succeeds and all `ports` accept connections."""
        if self._shared is None:
            network = scope.network or await self._host.group.enter()
            container = await self._run(network, scope)
            async with undoing(partial(self._remove, container)):
                yield self._place(container, scope)
            return
        await self._shared.must_run("between two cells")
        notice = f"service {self.name} is one container for all cells: its state is never reset"
        async with self._host.sharing(scope.network, self._shared.id, self.name):
            yield self._place(self._shared, scope, () if scope.exclusive else (notice,))

    def _place(self, container: ServiceContainer, scope: CellScope, notices: tuple[str, ...] = ()) -> Place:
        port = next(iter(self._definition.ports or container.exposed_ports()), None)
        inside = self.name if scope.in_network else container.address
        return ContainerPlace(self.name, inside, port, container, notices)

    async def _run(self, network: ContainerNetwork, scope: CellScope | None = None) -> ServiceContainer:
        import anyio
        import anyio.to_thread

        definition = self._definition
        plan = ServiceContainerPlan(
            service=self.name,
            image=definition.image,
            env=definition.env,
            command=definition.command,
            limits=(scope.agent_limits if scope else None) or CommandLimits(),
            output_to=scope.agent_output if scope else None,
        )
        if scope is not None and scope.agent_authority is not None:
            plan = await anyio.to_thread.run_sync(self._trusting, plan, scope.agent_authority)
        container = self._host.container(plan)
        await container.start(network, cell=scope.cell_id if scope else "")
        try:
            await wait_until_ready(container, definition)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await container.remove()
            raise
        self._containers.add(container)
        return container

    def _trusting(self, plan: ServiceContainerPlan, authority: bytes) -> ServiceContainerPlan:
        """Its programs trust this authority beside those of its image. Blocking; raises SandboxError."""
        from keystone_action.network.authority import JAVA_OPTIONS, trust_files, trust_variables

        image = find_image(self._host.client, plan.image, labels(self._host.run_id, "service", service=self.name))
        java = plan.env.get(JAVA_OPTIONS, image.environment.get(JAVA_OPTIONS, ""))
        variables = trust_variables(PurePosixPath("/", _TRUST), java)
        env = {**variables, **plan.env, JAVA_OPTIONS: variables[JAVA_OPTIONS]}
        return replace(plan, env=env, folder=_TRUST, files=trust_files(authority, image.certificates()))

    async def _remove(self, container: ServiceContainer) -> None:
        self._containers.discard(container)
        await container.remove()

    async def stop(self) -> None:
        """See RunningService."""
        containers, self._containers = self._containers, set()
        self._shared = None
        await remove_all(containers)


class ContainerPlace(Place):
    """A container that a cell uses. inside: by what name or address its agent does."""

    noun = "a container"

    def __init__(
        self, name: str, inside: str, port: int | None, container: ServiceContainer, notices: tuple[str, ...]
    ) -> None:
        super().__init__(name, _address(inside, port), _address(container.address, port), notices=notices)
        self._container = container

    def end(self) -> Capture:
        """See ServiceContainer; of the container that is the agent."""
        return self._container.end()

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:  # noqa: ARG002
        """Raises ServiceError: we know of no database here."""
        raise ServiceError(f"service {self.name} is a container; sql needs a database that we know")

    def has_ended(self) -> bool:
        """Whether the container runs no more. The engine notices that a moment after its connections were cut: it gets
        `_NOTICED_SECONDS` for that. Blocking; raises ServiceError."""
        deadline = time.monotonic() + _NOTICED_SECONDS
        while not self._container.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def settle(self) -> None:
        """See Place. Raises ServiceError where it has failed."""
        self._container.must_not_have_failed("while the agent ran")

    def require_unbroken(self) -> None:
        """See Place. A program that something in its container starts again is not noticed."""
        self._container.must_not_have_failed("while it was in use")


class Removable(Protocol):
    """A container, or a server in one."""

    async def remove(self) -> None:
        """Never raises."""


async def remove_all(removables: Iterable[Removable]) -> None:
    """Remove them at once. Never raises."""
    import anyio

    async with anyio.create_task_group() as group:
        for one in removables:
            group.start_soon(one.remove)


async def wait_until_ready(container: ServiceContainer, definition: ContainerService) -> None:
    """By `wait_for` and all `ports`; without either by the image's own health check, and without that by running for
    half a second. Raises ServiceError."""
    import anyio

    async def ready() -> str:
        missing = await closed_port(container.address, definition.ports)
        if not missing and definition.wait_for is not None:
            return await unmet_condition(container, definition.wait_for)
        return missing

    async def healthy() -> str:
        health = await container.health()
        return "" if health in (None, "healthy") else f"its health check says {health}"

    if definition.ports or definition.wait_for is not None:
        await container.until(ready, definition.ready_timeout)
    else:
        await container.until(healthy, definition.ready_timeout)
        await anyio.sleep(_GRACE_SECONDS)
    await container.must_run("just after it was started")


async def unmet_condition(container: ServiceContainer, wait_for: str) -> str:
    """Empty when the command succeeds inside, else what it said. Raises ServiceError when it can't be run at all."""
    exit_code, printed = await container.run(["/bin/sh", "-c", wait_for])
    if exit_code == 0:
        return ""
    # What has just ended can't run anything either, and the engine says so in similar words.
    if exit_code in (126, 127) and _NO_SHELL.search(printed):
        advice = "Name its `ports` instead: they are waited for from outside."
        raise await container.failure_in_thread("can't run `wait_for`: the image has no /bin/sh", advice)
    last = " ".join(printed.split())[-300:]
    return f"wait_for ended with exit code {exit_code}{f' ({last})' if last else ''}"


async def closed_port(host: str, ports: Sequence[int]) -> str:
    """Empty when all accept connections, else which one does not."""
    import anyio.to_thread

    if not host:
        return "it has no address"
    for port in ports:
        try:
            await anyio.to_thread.run_sync(_connect, host, port, abandon_on_cancel=True)
        except OSError as error:
            return f"port {port} does not accept connections ({error.strerror or error})"
    return ""


def _connect(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()


def _address(host: str, port: int | None) -> Address:
    url = f"{_SCHEMES.get(port, 'http')}://{host}:{port}" if port is not None else ""
    return Address(host=host, port=port, url=url)


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
    """What a cell has of the servers."""

    server: S
    shared: bool
    """Whether other cells use it too."""
    by_env: bool
    """Whether user, password and database are those of `env`."""


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
