"""The services of a run: started once for each distinct definition, all of a spec at once, and shared by its cells.

A definition that names something of a cell (`{{ cell.id }}`, `{{ workspace }}`) is distinct for each cell, so such
services start and stop with it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from keystone_action.errors import KeystoneError

if TYPE_CHECKING:
    from keystone_action.runner.sharing.containers import Containers
    from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
    from keystone_action.services.http_mock.server import MockServer
    from keystone_action.services.service import RunningService
    from keystone_action.spec.models.services import Service


@dataclass(frozen=True, slots=True)
class Group:
    """The running services of one definition; `stop` ends all that they have in common, after them."""

    services: Sequence[RunningService]
    stop: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Definition:
    """The services of a spec, interpolated. directory: the spec's. internal: they have no way out of their networks.
    owner: the spec that has them for itself, since it may be using the names of their `env` while others run; "" =
    specs that define them alike share them. watches_writes: their logs of changes are on."""

    services: Sequence[Service]
    directory: Path
    internal: bool = False
    owner: str = ""
    watches_writes: bool = False

    def key(self) -> str:
        """Equal for what can be shared."""
        dumped = [service.model_dump(mode="json") for service in self.services]
        return json.dumps(
            [str(self.directory), self.internal, self.owner, self.watches_writes, *dumped], sort_keys=True
        )


Start = Callable[[Definition], Awaitable[Group]]


@dataclass
class _Entry:
    ready: anyio.Event = field(default_factory=anyio.Event)
    group: Group | None = None
    error: KeystoneError | None = None
    users: int = 0
    last: bool = False
    """Whether nobody else will ask for it."""


class ServicePool:
    """Hands out running services by definition.

    start: starts all services of a definition and returns when every one is ready; raises ServiceError.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._entries: dict[str, _Entry] = {}

    async def acquire(self, definition: Definition) -> Sequence[RunningService]:
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

    async def _start_entry(self, key: str, entry: _Entry, definition: Definition) -> None:
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

    async def release(self, definition: Definition, *, last: bool) -> None:
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


async def _stop(group: Group) -> None:
    async with anyio.create_task_group() as tasks:
        for service in group.services:
            tasks.start_soon(service.stop)
    await group.stop()


class Starter:
    """Starts the services of one definition, all at once. One server serves every mock of the run."""

    def __init__(self, provider: ProcessSandboxes, containers: Containers | None) -> None:
        self._provider = provider
        self._containers = containers
        self._mocks: MockServer | None = None

    async def __call__(self, definition: Definition) -> Group:
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
        return Group(running, host.close if host is not None else nothing)

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in the mock server itself: with any, what it recorded may be incomplete."""
        return tuple(self._mocks.defects) if self._mocks is not None else ()

    async def close(self) -> None:
        """Stop the mock server."""
        if self._mocks is not None:
            await anyio.to_thread.run_sync(self._mocks.stop)


async def nothing() -> None:
    """For services that have nothing in common that would have to end."""
