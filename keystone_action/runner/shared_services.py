"""The services that the cells of a run share, and the container engine where they run.

Services are started once for each distinct definition, all of a spec at once. A definition that names something of a
cell (`{{ cell.id }}`, `{{ workspace }}`) is distinct for each cell, so such services start and stop with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from keystone_action.errors import KeystoneError, SandboxError
from keystone_action.system import signals
from keystone_action.system.run_lock import keep_lock

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.networks import Networks
    from keystone_action.engine.pulling import Pulling
    from keystone_action.network.proxy import EgressProxy
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes

    # was an import of itself
    from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
    from keystone_action.sandbox.protocol import SandboxProvider
    from keystone_action.services.container.host import ContainerHost
    from keystone_action.services.http_mock.server import MockServer
    from keystone_action.services.service import RunningService
    from keystone_action.spec.models.services import Service
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What runs at the same time as a cell of a spec: it decides which cells share a database, and which a service."""

    same_spec: bool
    """Other cells of this spec: each needs a database of its own."""
    other_specs: bool
    """Cells of other specs, while those of this spec run one after the other. They use the names that `env` gives a
    service, so services are not shared with the other specs even where the definition is the same."""
    only_cell: bool
    """The spec has a single cell."""


def most_at_once(spec: Spec, options: Options) -> int:
    """Cells of a spec that may run at once."""
    return options.running.max_concurrency or spec.parallelism.max_concurrency or os.cpu_count() or 1


def neighbours_of_specs(options: Options, planned: Plan) -> dict[str, Neighbours]:
    """By spec id."""
    counts = Counter(cell.loaded.spec.id for cell in planned.cells)
    specs = {cell.loaded.spec.id: cell.loaded.spec for cell in planned.cells}
    most = {spec_id: most_at_once(spec, options) for spec_id, spec in specs.items()}
    several = len(specs) > 1 and max(most.values()) > 1
    found = {}
    for spec_id, count in counts.items():
        own = count > 1 and most[spec_id] > 1
        found[spec_id] = Neighbours(same_spec=own, other_specs=several and not own, only_cell=count == 1)
    return found


@dataclass(frozen=True, slots=True)
class ServiceGroup:
    """The running services of one definition; `stop` ends all that they have in common, after them."""

    services: Sequence[RunningService]
    stop: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServicesDefinition:
    """The services of a spec, interpolated."""

    services: Sequence[Service]
    directory: Path
    """The spec's."""
    internal: bool = False
    """They have no way out of their networks."""
    owner: str = ""
    """The spec that has them for itself, since it may be using the names of their `env` while others run; "" = specs
    that define them alike share them."""
    watches_writes: bool = False
    """Their logs of changes are on."""

    def key(self) -> str:
        """Equal for what can be shared."""
        dumped = [service.model_dump(mode="json") for service in self.services]
        return json.dumps(
            [str(self.directory), self.internal, self.owner, self.watches_writes, *dumped], sort_keys=True
        )


StartServices = Callable[[ServicesDefinition], Awaitable[ServiceGroup]]


@dataclass
class _Entry:
    ready: anyio.Event = field(default_factory=anyio.Event)
    group: ServiceGroup | None = None
    error: KeystoneError | None = None
    users: int = 0
    last: bool = False
    """Whether nobody else will ask for it."""


class ServicePool:
    """Hands out running services by definition.

    start: starts all services of a definition and returns when every one is ready; raises ServiceError.
    """

    def __init__(self, start: StartServices) -> None:
        self._start = start
        self._entries: dict[str, _Entry] = {}

    async def acquire(self, definition: ServicesDefinition) -> Sequence[RunningService]:
        """The services of this definition, started by the first who asks. Raises ServiceError, to everyone who
        waited; the next who asks starts them anew."""
        key = definition.key()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            entry.users += 1
            await self._start_entry(key, entry, definition)
        else:
            entry.users += 1
            try:
                await entry.ready.wait()
            except BaseException:
                # A waiter that is cancelled has nothing to release, and must not keep them in use for ever.
                with anyio.CancelScope(shield=True):
                    await self._leave(key, entry)
                raise
        if entry.error is not None:
            raise entry.error
        assert entry.group is not None
        return entry.group.services

    async def _start_entry(self, key: str, entry: _Entry, definition: ServicesDefinition) -> None:
        try:
            entry.group = await self._start(definition)
        except KeystoneError as error:
            entry.error = error
        except BaseException:
            entry.error = KeystoneError("starting the services was interrupted")
            raise
        finally:
            if entry.error is not None:
                self._entries.pop(key, None)
            entry.ready.set()

    async def release(self, definition: ServicesDefinition, *, last: bool) -> None:
        """A cell is done with these; `last`: no other cell can ask for this definition, so they stop now."""
        key = definition.key()
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.last = entry.last or last
        await self._leave(key, entry)

    async def _leave(self, key: str, entry: _Entry) -> None:
        entry.users -= 1
        if entry.last and entry.users <= 0 and self._entries.get(key) is entry:
            del self._entries[key]
            if entry.group is not None:
                await _stop(entry.group)

    async def close(self) -> None:
        """Stop all, at once."""
        groups = [entry.group for entry in self._entries.values() if entry.group is not None]
        self._entries.clear()
        async with anyio.create_task_group() as tasks:
            for group in groups:
                tasks.start_soon(_stop, group)


async def _stop(group: ServiceGroup) -> None:
    async with anyio.create_task_group() as tasks:
        for service in group.services:
            tasks.start_soon(service.stop)
    await group.stop()


class ServicesStarter:
    """Starts the services of one definition, all at once. One server serves every mock of the run."""

    def __init__(self, provider: ProcessSandboxes, containers: Containers | None) -> None:
        self._provider = provider
        self._containers = containers
        self._mocks: MockServer | None = None

    async def __call__(self, definition: ServicesDefinition) -> ServiceGroup:
        from keystone_action.services.http_mock.server import MockServer
        from keystone_action.services.service import Surroundings, start_services

        if self._mocks is None:
            self._mocks = MockServer()
            self._mocks.start()
        host = self._containers.service_host(internal=definition.internal) if self._containers is not None else None
        surroundings = Surroundings(
            self._provider, definition.directory, self._mocks, host, watches_writes=definition.watches_writes
        )
        running = await start_services(definition.services, surroundings)
        return ServiceGroup(running, host.close if host is not None else close_nothing)

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in the mock server itself: with any, what it recorded may be incomplete."""
        return tuple(self._mocks.defects) if self._mocks is not None else ()

    async def close(self) -> None:
        """Stop the mock server."""
        if self._mocks is not None:
            await anyio.to_thread.run_sync(self._mocks.stop)


async def close_nothing() -> None:
    """For services that have nothing in common that would have to end."""


_HURRIED_SECONDS = 3.0
"""For each request once the run is being cancelled."""
_CUT_SECONDS = 4.4
"""Until then all of it has to be done: what is left is told, and found again by its label."""
_CLEANUP_SECONDS = 40.0
"""For removing all that a run made, where nothing hurries."""


class Containers:
    """The engine as one run uses it. root: a directory of ours for sandboxes, made here. host: runs the author's own
    scripts. logs: a directory for what services printed, secrets taken out by `mask`. `close` removes all that the run
    made on the engine, even if its makers are gone."""

    def __init__(
        self,
        client: EngineClient,
        run_id: str,
        *,
        root: Path,
        host: SandboxProvider,
        options: Options,
        progress: Progress,
        logs: Path,
        mask: Callable[[str], str],
    ) -> None:
        from keystone_action.engine.networks import Networks

        self.client, self.run_id = client, run_id
        self.networks: Networks = Networks(client, run_id)
        self._logs, self._mask = logs, mask
        self._root, self._host, self._options, self._progress = root, host, options, progress
        self._egress: EgressProxy | None = None
        self._providers: dict[str, DockerSandboxes] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def sandboxes(self, image: str) -> DockerSandboxes:
        """The sandboxes of an image, which is pulled for the first who asks. Raises HarnessError."""
        from keystone_action.engine.pulling import ensure_image
        from keystone_action.sandbox.containers.sandboxes import start_docker

        async with self._locks.setdefault(image, asyncio.Lock()):
            if image not in self._providers:
                await ensure_image(self.client, image, self.pulling())
                self._providers[image] = await start_docker(
                    image=image, run_id=self.run_id, root=self._root, host=self._host, client=self.client
                )
            return self._providers[image]

    def pulling(self) -> Pulling:
        """Where images come from."""
        from keystone_action.engine.pulling import Login, Pulling

        options = self._options
        login = None
        if options.images.registry_username and options.images.registry_password:
            login = Login(options.images.registry_username, options.images.registry_password)
        return Pulling(
            mirror=options.images.registry_mirror,
            login=login,
            user_logins=options.images.user_logins,
            on_progress=self._progress.note,
        )

    def service_host(self, *, internal: bool) -> ContainerHost:
        """For the services of one definition. internal: they have no way out of their networks."""
        from keystone_action.services.container.host import make_host

        return make_host(
            client=self.client,
            run_id=self.run_id,
            networks=self.networks,
            pull=self.pulling(),
            internal=internal,
            logs=self._logs,
            mask=self._mask,
        )

    def not_enforced(self) -> tuple[str, ...]:
        """Sentences of all sandboxes so far."""
        return tuple(dict.fromkeys(s for provider in self._providers.values() for s in provider.not_enforced))

    def hurry(self) -> None:
        """The run is being cancelled: no request of the engine may take longer than the rest of the time allows."""
        self.client.hurry(_HURRIED_SECONDS, cut_after=signals.seconds_left(_CUT_SECONDS))

    async def egress(self) -> EgressProxy:
        """The proxies of cells that may not reach everything, started for the first who asks. Raises ServiceError."""
        if self._egress is None:
            from keystone_action.network.proxy import EgressProxy

            self._egress = EgressProxy()
            self._egress.start()
        return self._egress

    async def close(self) -> None:
        """See the class. Never raises: what can't be removed now is told, and found again by its label."""
        with self.client.cut_after(_CLEANUP_SECONDS):
            await self._remove_all()
        with contextlib.suppress(OSError):
            self.client.close()

    async def _remove_all(self) -> None:
        from keystone_action.engine.sweep import sweep

        await asyncio.gather(*(self._quietly(provider.close()) for provider in self._providers.values()))
        if self._egress is not None:
            await asyncio.to_thread(self._egress.stop)
        await self.networks.close_all()
        try:
            swept = await sweep(self.client, self.run_id)
        except SandboxError as error:
            self._tell([error.message])
        else:
            self._tell(swept.problems)

    async def _quietly(self, closing: Any) -> None:
        with contextlib.suppress(KeystoneError):
            await closing

    def _tell(self, problems: Iterable[str]) -> None:
        for problem in problems:
            keep_lock(self.run_id, on_engine=True)
            self._progress.note(f"left on the Docker engine: {problem} (`keystone clean --run {self.run_id}`)")
