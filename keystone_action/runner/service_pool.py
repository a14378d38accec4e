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

from keystone_action.errors import KeystoneError

if TYPE_CHECKING:
    from keystone_action.services.base import RunningService
    from keystone_action.spec.services import Service

Start = Callable[[Sequence["Service"], Path], Awaitable[list["RunningService"]]]


@dataclass
class _Entry:
    ready: anyio.Event = field(default_factory=anyio.Event)
    running: list[RunningService] = field(default_factory=list)
    error: KeystoneError | None = None
    users: int = 0


class ServicePool:
    """Hands out running services by definition.

    start: starts all services of a definition, whose files are in a spec's directory, and returns when every one is
    ready; raises ServiceError.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._entries: dict[str, _Entry] = {}

    async def acquire(self, definitions: Sequence[Service], directory: Path) -> list[RunningService]:
        """The services of this definition, started by the first who asks. Raises ServiceError, to everyone who
        waited; the next who asks starts them anew."""
        key = _key(definitions, directory)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            entry.users += 1
            await self._start_entry(key, entry, definitions, directory)
        else:
            entry.users += 1
            await entry.ready.wait()
        if entry.error is not None:
            raise entry.error
        return entry.running

    async def _start_entry(self, key: str, entry: _Entry, definitions: Sequence[Service], directory: Path) -> None:
        try:
            entry.running = await self._start(definitions, directory)
        except KeystoneError as error:
            entry.error = error
        except BaseException:
            entry.error = KeystoneError("starting the services was interrupted")
            raise
        finally:
            if entry.error is not None:
                self._entries.pop(key, None)
            entry.ready.set()

    async def release(self, definitions: Sequence[Service], directory: Path, *, last: bool) -> None:
        """A cell is done with these; `last`: no other cell can ask for this definition, so they stop now."""
        key = _key(definitions, directory)
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.users -= 1
        if last and entry.users <= 0:
            self._entries.pop(key, None)
            await _stop(entry.running)

    async def close(self) -> None:
        """Stop all, at once."""
        running = [service for entry in self._entries.values() for service in entry.running]
        self._entries.clear()
        await _stop(running)


async def _stop(services: Sequence[RunningService]) -> None:
    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(service.stop)


def _key(definitions: Sequence[Service], directory: Path) -> str:
    dumped = [definition.model_dump(mode="json") for definition in definitions]
    return json.dumps([str(directory), *dumped], sort_keys=True)
