"""What a check is given, made for one cell; see `invariants.base.CheckContext` for the contract."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.command import Limits
from keystone_action.files.git.disarm import disarm_tree
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import copy_as_left, remove_tree
from keystone_action.invariants.base import HostWorld, Phase
from keystone_action.runner.cell.layout import make_readable
from keystone_action.sandbox.base import Home, Sandbox

if TYPE_CHECKING:
    from keystone_action.evidence.model import Evidence
    from keystone_action.judge.base import Judge
    from keystone_action.runner.cell.host import Host
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
    missing_programs: Mapping[str, Path | None]
    judge: Judge
    author_files: AuthorFiles
    originals: Path | None
    host: Host
    admit: Any
    """Called with each new sandbox, so that its user may reach this cell's services."""
    agent_directory: Path | None = None
    library: Callable[[], bytes] = bytes
    _is_copied: bool = False
    _lost: str = ""
    _home: Home | None = None

    async def shared(self, readable: Sequence[Path], *, in_kept_home: bool, without_programs_of_git: bool) -> Sandbox:
        """A sandbox of a check's own on the one copy that `command_exit` and sandboxed `custom` share. Each gets the
        copy's files given, and nothing else of those before it but HOME, where it asks for that. Raises PathUnreadable
        where a check before it left the copy so that not all of it could be had."""
        if self._lost:
            raise PathUnreadable(f"an earlier check left the shared copy of the workspace unreadable: {self._lost}")
        if not self._is_copied:
            await self.copy(self.shared_path, drop_outside_links=False)
            self._is_copied = True
        if without_programs_of_git:
            await anyio.to_thread.run_sync(disarm_tree, self.shared_path)
        sandbox = await self._open(self.shared_path, readable, home=self._home if in_kept_home else None)
        if in_kept_home:
            self._home = None
        return sandbox

    @property
    def shared_path(self) -> Path:
        """Where the shared copy is, or will be."""
        return self.roots.area / "checks"

    async def fresh(self, path: Path, readable: Sequence[Path]) -> Sandbox:
        """A new copy of the workspace as left, in a new sandbox."""
        await self.copy(path, drop_outside_links=False)
        return await self._open(path, readable)

    async def _open(self, path: Path, readable: Sequence[Path], home: Home | None = None) -> Sandbox:
        sandbox = await self.provider.open(
            path, limits=self.limits, readable=(*self.readable, *readable), environment=self.environment, home=home
        )
        self.admit(sandbox)
        return sandbox

    def left(self, sandbox: Sandbox) -> None:
        """A check has ended in a sandbox on the shared copy."""
        self._lost = self._lost or getattr(sandbox, "lost", "")

    async def keep_home(self, sandbox: Sandbox) -> None:
        """Close a sandbox, its HOME kept for the check that goes on in it."""
        await self.close()
        self._home = await sandbox.close_but_home()

    async def copy(self, path: Path, *, drop_outside_links: bool) -> tuple[str, ...]:
        """Make a new copy of the workspace as left; returns the links that were taken out of it."""

        def make() -> tuple[str, ...]:
            return tuple(copy_as_left(self.evidence.workspace, path, drop_outside_links=drop_outside_links))

        return await anyio.to_thread.run_sync(make)

    async def close(self) -> None:
        """Remove a HOME that was kept for nobody."""
        home, self._home = self._home, None
        if home is not None:
            await anyio.to_thread.run_sync(home.remove)


@dataclass
class Context:
    """One invariant's view of `CheckWorld`."""

    world: CheckWorld
    name: str
    timeout: float
    phase: Phase
    in_kept_home: bool = False
    keeps_home: bool = False
    """Whether it goes on in the HOME of the check before it, and whether one after it goes on in its own."""
    host_removed_links: tuple[str, ...] = ()
    _own: list[Sandbox] = field(default_factory=list)
    _given: list[Path] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """The spec's directory."""
        return self.world.directory

    @property
    def evidence(self) -> Evidence:
        """What was observed."""
        return self.world.evidence

    @property
    def missing_programs(self) -> Mapping[str, Path | None]:
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

    async def sandbox(self, *, without_programs_of_git: bool = False) -> Sandbox:
        """A sandbox of its own, by the check's phase on the shared copy or on a fresh one."""
        if self.phase == "shared_copy":
            sandbox = await self.world.shared(
                self._given, in_kept_home=self.in_kept_home, without_programs_of_git=without_programs_of_git
            )
        else:
            sandbox = await self.world.fresh(self.copy_path, self._given)
        self._own.append(sandbox)
        return sandbox

    def give(self, files: Mapping[str, bytes]) -> Path:
        """Files of ours in a directory that its sandbox may read and not change."""
        # Nobody else can guess the name, nor list the directory that it is in.
        place = self.world.roots.area.resolve() / f"given-{secrets.token_hex(16)}"
        self._given.append(place)
        _write_files(place, files)
        return place

    @property
    def copy_path(self) -> Path:
        """Where this check runs, or would: the workspace itself for one that only observes."""
        if self.phase == "observe":
            return self.evidence.workspace
        return self.world.shared_path if self.phase == "shared_copy" else self._path("check")

    def _path(self, kind: str) -> Path:
        return self.world.roots.area / f"{kind}-{self.name}"

    async def host(self, files: Mapping[str, bytes]) -> HostWorld:
        """A world for a script of the author's, on a throw-away copy without links that lead outside."""
        world, host = self.world, self.world.host
        checkout = host.checkout(world.directory)
        area = host.new_directory()
        self._given.append(area)
        _write_files(area / "given", files)
        self.host_removed_links = await world.copy(area / "workspace", drop_outside_links=True)
        sandbox = await world.provider.open_host(
            area / "workspace",
            limits=world.limits,
            own=[area / "given"],
            shared=[checkout.place],
            readable=[*world.readable, *host.readable(world.directory)],
        )
        self._own.append(sandbox)
        world.admit(sandbox)
        return HostWorld(sandbox, area / "given", checkout, await world.provider.host_python())

    @property
    def originals(self) -> Path | None:
        """The workspace before the agent."""
        return self.world.originals

    @property
    def agent_directory(self) -> Path | None:
        """The agent's own code."""
        return self.world.agent_directory

    @property
    def library(self) -> bytes:
        """Modules at the end of the search path."""
        return self.world.library()

    def author_file(self, path: str) -> bytes:
        """The bytes of an author's file as they were before the agent ran."""
        return self.world.author_files.read(self.world.directory / path)

    def author_directory(self, path: str) -> Mapping[str, bytes]:
        """The files of an author's directory as they were before the agent ran."""
        return self.world.author_files.directory(self.world.directory / path)

    async def close(self) -> None:
        """End its sandboxes, and remove what they were given."""
        for sandbox in self._own:
            if self.phase == "shared_copy":
                self.world.left(sandbox)
            if self.keeps_home:
                await self.world.keep_home(sandbox)
            else:
                await sandbox.close()
        for place in self._given:
            await anyio.to_thread.run_sync(remove_tree, place)


def _write_files(place: Path, files: Mapping[str, bytes]) -> None:
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    make_readable(place)
