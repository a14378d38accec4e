"""The real process sandbox, for tests of what runs in it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from keystone_action.files.workspace import remove_tree
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.system.command import CommandLimits


@dataclass
class World:
    """provider: started. area: a directory whose entries the sandboxes' users can reach."""

    provider: ProcessSandboxes
    area: Path

    @property
    def workspace(self) -> Path:
        return self.area / "workspace"

    async def open(self, *readable: Path) -> Sandbox:
        self.workspace.mkdir(exist_ok=True)
        return await self.provider.open(self.workspace, limits=CommandLimits(), readable=readable)


@asynccontextmanager
async def process_world() -> AsyncIterator[World]:
    """A world of its own, gone when it is left."""
    root = _passable(tempfile.mkdtemp(prefix="keystone-test-"))
    try:
        provider = await process.start(root)
        try:
            async with world_of(provider) as world:
                yield world
        finally:
            await provider.close()
    finally:
        remove_tree(root)


@asynccontextmanager
async def world_of(provider: ProcessSandboxes) -> AsyncIterator[World]:
    """A world in sandboxes that run already. Not below pytest's directories, which other users can't enter."""
    area = _passable(tempfile.mkdtemp(prefix="keystone-area-"))
    try:
        yield World(provider, area)
    finally:
        remove_tree(area)


def _passable(directory: str | Path) -> Path:
    """Other users may pass through, not look around."""
    path = Path(directory).resolve()
    path.chmod(0o711)
    return path
