"""What a check is given, made for one cell; see `invariants.base.CheckContext` for the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.invariants.base import Phase
from keystone_action.sandbox.base import Limits, Sandbox
from keystone_action.sandbox.workspace import copy_as_left

if TYPE_CHECKING:
    from keystone_action.evidence.model import Evidence
    from keystone_action.judge.base import Judge
    from keystone_action.runner.world import AuthorFiles, CellRoots
    from keystone_action.sandbox.base import SandboxProvider


@dataclass
class CheckWorld:
    """What the checks of one cell share: evidence, environments, and the copies they run on."""

    evidence: Evidence
    directory: Path
    roots: CellRoots
    provider: SandboxProvider
    limits: Limits
    readable: tuple[Path, ...]
    environment: Mapping[str, str]
    host_services: Mapping[str, Mapping[str, Any]]
    missing_programs: frozenset[str]
    judge: Judge
    author_files: AuthorFiles
    originals: Path | None
    admit: Any
    """Called with each new sandbox, so that its user may reach this cell's services."""
    agent_directory: Path | None = None
    _shared: Sandbox | None = None

    async def shared(self) -> Sandbox:
        """The one copy of `command_exit` and sandboxed `custom` checks."""
        if self._shared is None:
            self._shared = await self.fresh(self.shared_path)
        return self._shared

    @property
    def shared_path(self) -> Path:
        """Where the shared copy is, or will be."""
        return self.roots.area / "checks"

    async def fresh(self, path: Path) -> Sandbox:
        """A new copy of the workspace as left, in a new sandbox."""
        await self.copy(path, drop_outside_links=False)
        sandbox = await self.provider.open(
            path, limits=self.limits, readable=self.readable, environment=self.environment
        )
        self.admit(sandbox)
        return sandbox

    async def copy(self, path: Path, *, drop_outside_links: bool) -> tuple[str, ...]:
        """Make a new copy of the workspace as left; returns the links that were taken out of it."""

        def make() -> tuple[str, ...]:
            return tuple(copy_as_left(self.evidence.workspace, path, drop_outside_links=drop_outside_links))

        return await anyio.to_thread.run_sync(make)

    async def close(self) -> None:
        """End the shared sandbox."""
        if self._shared is not None:
            await self._shared.close()


@dataclass
class Context:
    """One invariant's view of `CheckWorld`."""

    world: CheckWorld
    name: str
    timeout: float
    phase: Phase
    host_removed_links: tuple[str, ...] = ()
    _own: list[Sandbox] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """The spec's directory."""
        return self.world.directory

    @property
    def evidence(self) -> Evidence:
        """What was observed."""
        return self.world.evidence

    @property
    def missing_programs(self) -> frozenset[str]:
        """First words that the sandbox did not have before the agent started."""
        return self.world.missing_programs

    @property
    def check_environment(self) -> Mapping[str, str]:
        """What commands get besides their own env. Their workspace is the copy that they run on: the agent's is out of
        their sight, and in a container it isn't even there."""
        return {**self.world.environment, "KEYSTONE_WORKSPACE": str(self.copy_path)}

    @property
    def service_addresses(self) -> Mapping[str, Mapping[str, Any]]:
        """As KeystoneContext has them, valid on the host."""
        return self.world.host_services

    @property
    def judge(self) -> Judge:
        """The run's judge."""
        return self.world.judge

    async def sandbox(self) -> Sandbox:
        """By the check's phase: the shared copy or one of its own."""
        if self.phase == "shared_copy":
            return await self.world.shared()
        sandbox = await self.world.fresh(self.copy_path)
        self._own.append(sandbox)
        return sandbox

    @property
    def copy_path(self) -> Path:
        """Where this check runs, or would: the workspace itself for one that only observes."""
        if self.phase == "observe":
            return self.evidence.workspace
        return self.world.shared_path if self.phase == "shared_copy" else self._path("check")

    def _path(self, kind: str) -> Path:
        return self.world.roots.area / f"{kind}-{self.name}"

    async def host(self) -> Sandbox:
        """Our own user on a throw-away copy without links that lead outside."""
        directory = self._path("host")
        self.host_removed_links = await self.world.copy(directory, drop_outside_links=True)
        sandbox = await self.world.provider.open_host(directory, limits=self.world.limits)
        self._own.append(sandbox)
        return sandbox

    @property
    def originals(self) -> Path | None:
        """The workspace before the agent."""
        return self.world.originals

    @property
    def agent_directory(self) -> Path | None:
        """The agent's own code."""
        return self.world.agent_directory

    def author_file(self, path: str) -> bytes:
        """The bytes of an author's file as they were before the agent ran."""
        return self.world.author_files.read(self.world.directory / path)

    def author_directory(self, path: str) -> Mapping[str, bytes]:
        """The files of an author's directory as they were before the agent ran."""
        return self.world.author_files.directory(self.world.directory / path)

    async def close(self) -> None:
        """End the sandboxes that this check alone used."""
        for sandbox in self._own:
            await sandbox.close()
