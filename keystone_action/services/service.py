"""What a kind of service is, what its services are to a run and to a cell, and how those of a spec are started.

A new kind is a model (`spec/models/services.py`) and one class, found by the name of its file: `KIND.py` in this
folder, or `KIND/service.py` where one file is not enough:

    class SqliteFile(ServiceKind[SqliteService]):
        @classmethod
        def build(cls, definition: SqliteService, surroundings: Surroundings) -> RunningService: ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from keystone_action.errors import KeystoneError, ServiceError, UsageError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import Address, CallLog, Database, RequestLog
from keystone_action.evidence.writes import WriteLog
from keystone_action.spec.models.services import Service
from keystone_action.spec.named_classes import class_of_file

if TYPE_CHECKING:
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.http_mock.server import MockServer
    from keystone_action.services.server_process import Provider
    from keystone_action.services.sql_script import SqlScript
    from keystone_action.spec.models.services import ServiceBase
    from keystone_action.system.command import CommandLimits, KeptWhole

CRASHED = "went away while it was in use: it crashed or was killed, and what was committed last may be lost"
"""What is said of a server that did not live on to the end, whether it is back or not."""


@dataclass(frozen=True, slots=True)
class CellScope:
    """What a service needs to know of the cell it serves."""

    cell_id: str
    private: Path
    """A directory of ours that no sandbox can read."""
    workspace: Path
    audit_log: AuditLog
    """Open as long as the cell is served."""
    exclusive: bool
    """Whether this is the only cell at a time. Then a database has exactly the user, password and name of the service's
    `env`."""
    allowed_users: set[int] | None = None
    """The numeric users whose connections belong to this cell; None where users don't tell cells apart."""
    network: ContainerNetwork | None = None
    """The cell's own network on the container engine, where there is one."""
    in_network: bool = False
    """Whether the agent runs in that network, and so reaches services by their names; else it reaches them by address,
    from this machine."""
    watches_writes: bool = False
    """Whether what is written between `seal` and `settle` is wanted (`Place.writes`)."""
    agent_limits: CommandLimits | None = None
    """What a container may use that is the agent itself; None for all others."""
    agent_output: KeptWhole | None = None
    """A file for all that it prints; None as above."""
    agent_authority: bytes | None = None
    """The certificate that its programs have to trust, as PEM, where mocks stand in for other hosts; None as above."""
    shared: Path | None = None
    """A directory of ours that commands of the cell's sandbox can read, under the same path; it may be made yet. None
    where there is no sandbox."""


class Place:
    """A service as one cell has it, for as long as the block of `RunningService.attach` lasts.

    for_agent, for_host: the addresses valid there. database: what checks ask by sql, where it is one. requests and
    calls: what it recorded of this cell, where it records. writes: what was written into it, where that is a database
    and the scope asks for it; whole once it was settled. notices: what a report should say of it.

    A kind of service with more to it has a class of its own and overrides what it does otherwise.
    """

    noun = "a service"
    """What it is called where somebody takes it for a database."""

    def __init__(
        self,
        name: str,
        for_agent: Address,
        for_host: Address,
        *,
        database: Database | None = None,
        requests: RequestLog | None = None,
        calls: CallLog | None = None,
        writes: WriteLog | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.for_agent = for_agent
        self.for_host = for_host
        self.database = database
        self.requests = requests
        self.calls = calls
        self.writes = writes
        self.notices = notices

    async def run_sql(self, script: SqlScript) -> tuple[str, ...]:  # noqa: ARG002
        """For sql fixtures: run a script with the rights of the database's owner; returns notices. Raises
        ServiceError, in which no row of it stands."""
        raise ServiceError(f"service {self.name} is {self.noun}; sql needs a database")

    async def seal(self) -> None:
        """Just before the agent starts: what stands now (by fixtures and setup) stood before it. Raises
        ServiceError."""

    def notices_once_sealed(self) -> tuple[str, ...]:
        """What a report should say of it besides `notices`, known once it was sealed."""
        return ()

    def require_whole_record(self) -> None:
        """Raises OutputError where something that clients sent is not on record."""

    def settle(self) -> None:
        """Called when the agent has ended, before anything is observed: what its clients left running on the server
        ends too, and what they have sent is on record. Blocking; raises KeystoneError."""

    def require_unbroken(self) -> None:
        """Raises ServiceError where the server has crashed since it was handed to the cell, also where it has come back
        by itself: what was committed may be lost, and whoever was connected was cut off. Blocking."""


class RunningService(Protocol):
    """A service that was started for a run. All services of a spec start at once, before the first cell needs them, but
    for containers that use the addresses of others, which are each cell's own."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Start and wait for readiness (a real query or request). Raises ServiceError that says which service, what
        it printed last and how long it was given."""

    def attach(self, scope: CellScope) -> AbstractAsyncContextManager[Place]:
        """Ready for one cell, with reset or fresh state. Leave the block when the cell has been graded, in any task;
        nothing else remembers the place. Entering raises ServiceError."""

    async def stop(self) -> None:
        """End it and remove what it kept. Never raises."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the services of a spec are made with."""

    provider: Provider
    """Runs servers and programs of ours."""
    directory: Path
    """The spec's; files of mock responses are read from there."""
    mocks: MockServer
    """The run's server for mocks, which its maker stops; its thread serves relays too."""
    containers: ContainerHost | None = None
    """The engine on which images are started, and how; None where there is none."""
    watches_writes: bool = False
    """Whether a cell wants to know what is written into its databases: then servers start with their logs on."""

    def require_containers(self, definition: ServiceBase) -> ContainerHost:
        """The engine, for a service that can't do without one. Raises UsageError."""
        if self.containers is None:
            raise UsageError(
                f"service {definition.name} needs a container engine",
                help="Start Docker, or set DOCKER_HOST to where it is.",
            )
        return self.containers


Model = TypeVar("Model", bound="ServiceBase")


class ServiceKind(ABC, Generic[Model]):
    """Base of the classes of kinds; a file has one. Model: of the definitions that it serves."""

    @classmethod
    @abstractmethod
    def build(cls, definition: Model, surroundings: Surroundings) -> RunningService:
        """A service that is not started. Raises UsageError for a definition that can't be started here."""

    @classmethod
    def refuse_unsupported(cls, definition: Model, *, engine: bool) -> None:
        """Raises UsageError for what can't be done here. engine: one for containers is there. For use before the first
        cell: the definition may still hold expressions, and nothing is started."""


def class_of(kind: str) -> type[ServiceKind[Any]]:
    """The class in the file of a kind: `KIND.py` beside this one, or `KIND/service.py`."""
    module = f"{__package__}.{kind}"
    found = find_spec(module)
    is_folder = found is not None and found.submodule_search_locations is not None
    return class_of_file(f"{module}.service" if is_folder else module, ServiceKind)  # type: ignore[type-abstract]


def refuse_unsupported(definitions: Sequence[Service], *, engine: bool = False) -> None:
    """See `ServiceKind.refuse_unsupported`, for all services of a spec."""
    for definition in definitions:
        class_of(definition.kind).refuse_unsupported(definition, engine=engine)


async def start_services(definitions: Sequence[Service], surroundings: Surroundings) -> list[RunningService]:
    """Start all services of a spec at once and return them when every one is ready, in the order of the spec.

    Raises UsageError for a definition that can't be started here, and the ServiceError of the first service that
    fails, after all others were stopped.
    """
    import anyio

    refuse_unsupported(definitions, engine=surroundings.containers is not None)
    services = [build_service(definition, surroundings) for definition in definitions]
    failures: list[KeystoneError] = []

    async def start(service: RunningService) -> None:
        try:
            await service.start()
        except KeystoneError as error:
            failures.append(error)
            group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - a defect of a kind must name its service too
            failures.append(ServiceError(f"service {service.name} can't be started: {type(error).__name__}: {error}"))
            group.cancel_scope.cancel()

    ready = False
    try:
        async with anyio.create_task_group() as group:
            for service in services:
                group.start_soon(start, service)
        ready = not failures
    finally:
        if not ready:
            with anyio.CancelScope(shield=True):
                await stop_services(services)
    if failures:
        raise failures[0]
    return services


async def stop_services(services: Sequence[RunningService]) -> None:
    """Stop all at once. Never raises."""
    import anyio

    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(service.stop)


def build_service(definition: Service, surroundings: Surroundings) -> RunningService:
    """A service that is not started; see `ServiceKind.build`. Raises UsageError."""
    return class_of(definition.kind).build(definition, surroundings)


def one_line(error: BaseException) -> str:
    """The error on one line. Drivers of MySQL, and the system, put a number in front of the text: it is left out."""
    text = str(error.args[1]) if len(error.args) > 1 and isinstance(error.args[0], int) else str(error)
    return " ".join(text.split()) or type(error).__name__
