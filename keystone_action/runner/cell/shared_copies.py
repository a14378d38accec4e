"""Copies that cells of a run share: what their workspaces hold at first, and what `setup` left (contract, 5.2).

The first cell that needs one has it made in a folder that no agent can reach, while the others wait. Each cell gets a
copy of that copy: nothing that one cell's agent can change is another cell's. Cells start alike also when the checkout
is changed while the run goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread

from keystone_action.errors import HarnessError, KeystoneError
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.removal import remove_tree
from keystone_action.files.workspace import CopyReport, Snapshot, copy_again, keep_originals, snapshot

Made = TypeVar("Made")
Details = TypeVar("Details")
KEPT_AT_MOST = 8
"""Each takes the disk space of a cell. Cells that share one are planned one after the other."""
IDLE_COPIES = 2
"""First copies that are kept while no cell uses them: the next cell of a spec may not have begun yet."""


@dataclass(frozen=True, slots=True)
class SetupSteps(Generic[Made, Details]):
    """How a cell comes by what its setup leaves.

    make: run the setup, here and now. keep: copy what it left to a new folder; the details that `put` needs, None where
    another cell can't be given it. put: give the copy in this folder to the cell, for what `make` returned. Both block,
    and raise OSError.
    """

    make: Callable[[], Awaitable[Made]]
    keep: Callable[[Path], Details | None]
    put: Callable[[Path, Details, Made], Made]


@dataclass(slots=True)
class _Kept:
    """made: what `make` returned. readers: cells that copy it at the moment."""

    folder: Path
    details: Any
    made: Any
    readers: int = 0


class KeptSetups:
    """One a run. folder: ours alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._hopeless: set[str] = set()

    async def once(self, group: str, inputs: Callable[[], str], steps: SetupSteps[Made, Details]) -> Made:
        """Make it, or give the cell what was kept.

        group: of setups that are alike. When one of them failed or could not be kept, each cell makes its own: it does
        not wait for the others in vain. inputs: equal for cells of a group in which `make` does the same; blocks.
        Raises what `make` does, and HarnessError for a copy that can't be made.
        """
        if group in self._hopeless:
            return await steps.make()
        digest = f"{group} {await anyio.to_thread.run_sync(inputs)}"
        async with self._locks.setdefault(digest, asyncio.Lock()):
            kept = self._kept.get(digest)
            if kept is None and group not in self._hopeless:
                return await self._first(group, digest, steps)
            if kept is not None:
                kept.readers += 1
        if kept is None:
            return await steps.make()
        try:
            return await anyio.to_thread.run_sync(steps.put, kept.folder, kept.details, kept.made)
        except OSError as error:
            raise HarnessError(f"setup: what another cell's left can't be copied: {error.strerror}") from error
        finally:
            kept.readers -= 1

    async def _first(self, group: str, digest: str, steps: SetupSteps[Made, Details]) -> Made:
        try:
            made = await steps.make()
        except Exception:
            self._hopeless.add(group)
            raise
        folder = self._folder / f"setup.{secrets.token_hex(8)}"
        details = await anyio.to_thread.run_sync(partial(_keep, steps.keep, folder))
        if details is None:
            self._hopeless.add(group)
        else:
            self._kept[digest] = _Kept(folder, details, made)
            await self._remove_oldest()
        return made

    async def _remove_oldest(self) -> None:
        idle = [digest for digest, kept in self._kept.items() if not kept.readers]
        for digest in idle[: max(0, len(self._kept) - KEPT_AT_MOST)]:
            await anyio.to_thread.run_sync(partial(remove_tree, self._kept.pop(digest).folder))


def _keep(keep: Callable[[Path], Details | None], folder: Path) -> Details | None:
    """What can't be kept, for want of space for example, is not a failure of the cell that made it."""
    details = None
    try:
        folder.mkdir(mode=0o700)
        details = keep(folder)
    except (OSError, KeystoneError):
        pass
    finally:
        if details is None:
            remove_tree(folder)
    return details


def fingerprint(workspace: Path, variables: Mapping[str, str], readable: Sequence[Path] = ()) -> str:
    """Equal for cells in which a command finds the same: variables, and what is in the workspace and in the directories
    that it can read besides (the agent's own code, the prompt): entries with modes and contents, and the commit. Where
    the cell's directories lie is not a difference. Raises HarnessError."""
    digest = hashlib.sha256()
    for name, value in sorted(variables.items()):
        digest.update(repr((name, value.replace(str(workspace.parent), ""))).encode("utf-8", "surrogateescape"))
    for directory in (workspace, *readable):
        for line in _content(directory):
            digest.update(repr((directory.name, line)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content(directory: Path) -> Iterator[tuple[str, object]]:
    try:
        yield from sorted(snapshot(directory).items())
    except PathUnreadable as error:
        raise HarnessError(f"setup can't start from this workspace: {error}") from error
    git = directory / ".git"
    for file in [git / "HEAD", git / "packed-refs", *sorted((git / "refs").rglob("*"))]:
        if file.is_file() and not file.is_symlink():
            yield str(file.relative_to(git)), file.read_bytes()


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """A workspace before anything was done in it."""

    directory: Path
    """Ours alone."""

    originals: Path | None
    """What changes are told from: the files without `.git`; None when there are none."""

    content: Snapshot
    notices: tuple[str, ...]
    """What people should know of the copy, in every cell."""

    def is_still(self, workspace: Snapshot) -> bool:
        """Whether a workspace holds this and nothing else."""
        return not workspace.unreadable and dict(workspace) == dict(self.content)


@dataclass(slots=True)
class _SharedCopy:
    copy: FirstCopy

    readers: int = 0
    """Cells that start from it or are still compared with it."""


class FirstCopies:
    """The first copies of a run. place: a directory of ours alone."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[Hashable, _SharedCopy] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    @asynccontextmanager
    async def lay_out(
        self, key: Hashable, copy: Callable[[Path], CopyReport], workspace: Path
    ) -> AsyncIterator[FirstCopy]:
        """Copy the first copy of this key to a workspace; the first cell that asks has it made, and others wait. It
        stays at least until the block is left.

        copy: makes the directory. What it raises is that cell's error, and the next one tries again. Raises
        HarnessError.
        """
        async with self._locks.setdefault(key, anyio.Lock()):
            shared = self._made.pop(key, None) or _SharedCopy(await anyio.to_thread.run_sync(self._make, copy))
            self._made[key] = shared  # the last: it was used last
            shared.readers += 1
        try:
            await anyio.to_thread.run_sync(copy_again, shared.copy.directory, workspace)
            yield shared.copy
        finally:
            shared.readers -= 1
            with anyio.CancelScope(shield=True):
                await self._remove_oldest()

    async def _remove_oldest(self) -> None:
        idle = [key for key, shared in self._made.items() if not shared.readers]
        for key in idle[:-IDLE_COPIES]:
            copy = self._made.pop(key).copy
            for folder in {copy.directory, copy.originals or copy.directory}:
                await anyio.to_thread.run_sync(partial(remove_tree, folder))

    def _make(self, copy: Callable[[Path], CopyReport]) -> FirstCopy:
        name = secrets.token_hex(8)
        directory, kept = self._place / f"first-{name}", self._place / f"originals-{name}"
        try:
            report = copy(directory)
            content = snapshot(directory)
            has_git = any(path.rpartition("/")[2] == ".git" for path in content)
            originals = directory if content else None
            if has_git:
                originals = keep_originals(directory, kept)
        except BaseException as error:
            for folder in (directory, kept):
                remove_tree(folder)
            if isinstance(error, PathUnreadable):
                raise HarnessError(f"the agent can't start from this workspace: {error}") from error
            raise
        return FirstCopy(directory, originals, content, report.notices)
