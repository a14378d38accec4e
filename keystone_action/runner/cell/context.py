"""What a check is given, made for one cell, and where its code runs; see `invariants.check.CheckContext`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.files.copies import copy_entries
from keystone_action.files.git.history import disarm_tree
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import copy_as_left, remove_tree
from keystone_action.invariants.check import Check, HostWorld
from keystone_action.runner.roots import make_readable
from keystone_action.sandbox.protocol import Home, Sandbox, SandboxProvider

if TYPE_CHECKING:
    from keystone_action.evidence.model import Evidence
    from keystone_action.judge.judgement import Judge
    from keystone_action.runner.cell.running_cell import RunningCell
    from keystone_action.system.command import CommandLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSandboxes:
    """Opens the sandboxes of a cell's checks."""

    provider: SandboxProvider
    limits: CommandLimits

    readable: tuple[Path, ...]
    """Directories of ours that code in these may read."""

    environment: Mapping[str, str]
    """What commands of checks get besides their own `env`."""

    area: Path
    """A directory of ours for copies of the workspace, which the cell's users may enter and not list."""

    admit: Callable[[Sandbox], None]
    """Lets the user of a sandbox reach the cell's services."""

    missing_programs: Mapping[str, Path | None]
    """First words of checks' commands that the sandbox did not have before the agent started, with the place where it
    hides them."""

    agent_directory: Path | None
    """The agent's own code; None without any."""

    close: Callable[[], Awaitable[str]]
    """All checks have ended: closes what they could reach. Returns why the record of that is not whole; empty when it
    is."""

    async def open(self, path: Path, readable: Sequence[Path], home: Home | None = None) -> Sandbox:
        """A sandbox on a copy of the workspace. readable: directories besides those of all checks. home: to go on in.
        Raises SandboxError."""
        sandbox = await self.provider.open(
            path,
            limits=self.limits,
            readable=(*self.readable, *readable),
            environment=self.environment,
            home=home,
            areas=(self.area,),
        )
        self.admit(sandbox)
        return sandbox


@dataclass
class Copies:
    """The copies of a cell's workspace that its checks run on, and the sandboxes on them. workspace: as left."""

    workspace: Path
    sandboxes: CheckSandboxes
    _is_copied: bool = False
    _loss: str = ""
    _home: Home | None = None

    async def open_shared(
        self, readable: Sequence[Path], *, in_kept_home: bool, without_programs_of_git: bool
    ) -> Sandbox:
        """A sandbox of a check's own on the one copy that `command_exit` and sandboxed `custom` share. Each gets the
        copy's files given, and nothing else of those before it but HOME, where it asks for that. Raises PathUnreadable
        where a check before it left the copy so that not all of it could be had."""
        if self._loss:
            raise PathUnreadable(f"an earlier check left the shared copy of the workspace unreadable: {self._loss}")
        if not self._is_copied:
            await self.copy(self.shared_path, drop_outside_links=False)
            self._is_copied = True
        if without_programs_of_git:
            await anyio.to_thread.run_sync(disarm_tree, self.shared_path)
        sandbox = await self.sandboxes.open(self.shared_path, readable, home=self._home if in_kept_home else None)
        if in_kept_home:
            self._home = None
        return sandbox

    @property
    def shared_path(self) -> Path:
        """Where the shared copy is, or will be."""
        return self.sandboxes.area / "checks"

    async def open_fresh(self, path: Path, readable: Sequence[Path]) -> Sandbox:
        """A new copy of the workspace as left, in a new sandbox."""
        await self.copy(path, drop_outside_links=False)
        return await self.sandboxes.open(path, readable)

    def note_loss(self, sandbox: Sandbox) -> None:
        """A check has ended in a sandbox on the shared copy."""
        self._loss = self._loss or sandbox.loss

    async def keep_home(self, sandbox: Sandbox) -> None:
        """Close a sandbox, its HOME kept for the check that goes on in it."""
        await self.close()
        self._home = await sandbox.close_but_home()

    async def copy(self, path: Path, *, drop_outside_links: bool) -> tuple[str, ...]:
        """Make a new copy of the workspace as left; returns the links that were taken out of it."""
        copy = partial(copy_as_left, self.workspace, path, drop_outside_links=drop_outside_links)
        return tuple(await anyio.to_thread.run_sync(copy))

    async def close(self) -> None:
        """Remove a HOME that was kept for nobody."""
        home, self._home = self._home, None
        if home is not None:
            await anyio.to_thread.run_sync(home.remove)


@dataclass
class Context:
    """What one check sees of the cell. keeps_home: whether a check after it goes on in its HOME."""

    running: RunningCell
    evidence: Evidence
    sandboxes: CheckSandboxes
    copies: Copies
    name: str
    check: Check
    timeout: float
    keeps_home: bool = False
    host_removed_links: tuple[str, ...] = ()
    _own: list[Sandbox] = field(default_factory=list)
    _given: list[Path] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """The spec's directory."""
        return self.running.loaded.directory

    @property
    def missing_programs(self) -> Mapping[str, Path | None]:
        """First words that the sandbox did not have before the agent started."""
        return self.sandboxes.missing_programs

    @property
    def check_environment(self) -> Mapping[str, str]:
        """What commands get besides their own env. Their workspace is the copy that they run on: the agent's is out of
        their sight, and in a container it isn't even there."""
        return {**self.sandboxes.environment, "KEYSTONE_WORKSPACE": str(self.copy_path)}

    @property
    def judge(self) -> Judge:
        """The run's judge."""
        return self.running.run.judge

    @property
    def agent_directory(self) -> Path | None:
        """The agent's own code."""
        return self.sandboxes.agent_directory

    @property
    def library(self) -> bytes:
        """Modules at the end of the search path."""
        return self.running.loaded.library()

    def author_file(self, path: str) -> bytes:
        """The bytes of an author's file as they were before the agent ran."""
        return self.running.run.author.files.read(self.directory / path)

    def author_directory(self, path: str) -> Mapping[str, bytes]:
        """The files of an author's directory as they were before the agent ran."""
        return self.running.run.author.files.directory(self.directory / path)

    @property
    def copy_path(self) -> Path:
        """Where this check runs, or would: the workspace itself for one that only observes."""
        phase = self.check.run_phase
        if phase == "observe":
            return self.evidence.workspace
        return self.copies.shared_path if phase == "shared_copy" else self.sandboxes.area / f"check-{self.name}"

    async def sandbox(self, *, without_programs_of_git: bool = False) -> Sandbox:
        """A sandbox of its own, by the check's phase on the shared copy or on a fresh one."""
        if self.check.run_phase == "shared_copy":
            sandbox = await self.copies.open_shared(
                self._given,
                in_kept_home=bool(self.check.in_kept_home),
                without_programs_of_git=without_programs_of_git,
            )
        else:
            sandbox = await self.copies.open_fresh(self.copy_path, self._given)
        self._own.append(sandbox)
        return sandbox

    def give(self, files: Mapping[str, bytes], tree: Path | None = None) -> Path:
        """Files of ours, and a tree, in a directory that its sandbox may read and not change."""
        # Nobody else can guess the name, nor list the directory that it is in.
        place = self.sandboxes.area.resolve() / f"given-{secrets.token_hex(16)}"
        self._given.append(place)
        _write_files(place, files, tree)
        return place

    async def host(self, files: Mapping[str, bytes]) -> HostWorld:
        """A world for a script of the author's, on a throw-away copy without links that lead outside."""
        sandboxes, host = self.sandboxes, self.running.run.author.host
        checkout = host.checkout(self.directory)
        area = host.new_directory()
        self._given.append(area)
        _write_files(area / "given", files)
        self.host_removed_links = await self.copies.copy(area / "workspace", drop_outside_links=True)
        sandbox = await sandboxes.provider.open_host(
            area / "workspace",
            limits=sandboxes.limits,
            own=[area / "given"],
            shared=[checkout.place],
            readable=[*sandboxes.readable, *host.readable(self.directory)],
            areas=(area, sandboxes.area),
        )
        self._own.append(sandbox)
        sandboxes.admit(sandbox)
        return HostWorld(sandbox, area / "given", checkout, await sandboxes.provider.host_python())

    @property
    def others_can_write(self) -> str:
        """Which file of a fresh copy, such as a report, a process outside of its sandbox can still write; else empty.
        In a container none can."""
        if self.running.image is not None or self.check.run_phase != "fresh_copy":
            return ""
        return next((sandbox.loss for sandbox in self._own if sandbox.loss), "")

    async def close(self) -> None:
        """End its sandboxes, and remove what they were given."""
        for sandbox in self._own:
            if self.check.run_phase == "shared_copy":
                self.copies.note_loss(sandbox)
            if self.keeps_home:
                await self.copies.keep_home(sandbox)
            else:
                await sandbox.close()
        for place in self._given:
            await anyio.to_thread.run_sync(remove_tree, place)


def _write_files(place: Path, files: Mapping[str, bytes], tree: Path | None = None) -> None:
    place.mkdir(parents=True)
    if tree is not None:
        (place / "tree").mkdir()
        copy_entries(tree, place / "tree")
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    make_readable(place)
