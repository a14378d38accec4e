"""Where untrusted code runs, as the rest of the house sees it: nobody asks which kind of sandbox it is.

A run has one `SandboxProvider`. A `Sandbox` is the world of one cell: a user, a HOME, a TMPDIR and a workspace. When
`Sandbox.run` returns, every process that it started is gone, daemons and orphans too; where the machine ran out of
something meanwhile, it raises `ShortageError`, since a failure then says nothing about the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keystone_action.errors import SandboxError
from keystone_action.files.disk_usage import TooDeep, human, tree_size
from keystone_action.system.command import Command, CommandLimits, Completed
from keystone_action.system.shortage import refused_processes, smallest_cap

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.system.command import Completed


Wanted = Callable[[str, int | None], bool]
"""Asked for an entry of a tree by its relative path and its size; None is the size of a folder, which is not entered
unless it is wanted."""


@dataclass(frozen=True, slots=True)
class Home:
    """The HOME of a sandbox that was closed, for another sandbox of the same provider."""

    place: Path
    """Where the provider finds it."""
    remove: Callable[[], None]
    """For a HOME that no sandbox was opened with. Blocks, never raises."""
    copy: Callable[[Path, Wanted], tuple[str, ...]]
    """Copies its folders and regular files that are wanted to a directory that exists, never a link. Returns the paths
    of what could not be had, the empty one for HOME itself. Blocks. Raises OSError for the destination, SandboxError
    and what `Wanted` raises."""


ServedConnection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RunningCommand(ABC):
    """A command that is talked to while it runs. completed: how it ended, once it has."""

    def __init__(self, completed: asyncio.Future[Completed]) -> None:
        self._completed = completed

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, by itself or at a limit."""
        return self._completed.done()

    async def stop(self) -> Completed:
        """End it with every descendant: how it ended and what it printed. Twice does no harm. Raises SandboxError."""
        await self._end()
        return await asyncio.shield(self._completed)

    @abstractmethod
    async def _end(self) -> None:
        """Have it ended, without waiting for that."""

    @abstractmethod
    async def addresses(self, port: int) -> tuple[str, ...]:
        """Where a process of the command's is reached on this TCP port, the likeliest address first; none while nothing
        listens there. Raises SandboxError."""

    @abstractmethod
    async def connect(self, address: str, port: int) -> ServedConnection:
        """A connection to one of `addresses`. What is refused may show as one that is closed before its first byte.
        Raises OSError, SandboxError."""


@asynccontextmanager
async def stopping_at(stop: asyncio.Event | None, end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Within the block, `end` is called once `stop` is set."""

    async def wait() -> None:
        assert stop is not None
        await stop.wait()
        await end()

    task = None if stop is None else asyncio.create_task(wait())
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


class Sandbox(Protocol):
    """One world of one cell."""

    @property
    def uid(self) -> int | None:
        """The numeric user of this machine that everything inside runs as; None when that is our own, and for a
        container, whose network tells whose connections are its own."""

    @property
    def workspace(self) -> Path:
        """The workspace, where *we* read it."""

    @property
    def workspace_inside(self) -> str:
        """The workspace, as code inside sees it."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What every command in it finds: HOME, TMPDIR, PATH, LANG and what it was opened with."""

    @property
    def loss(self) -> str:
        """Why `workspace` is not what the last command left there, or may not stay so; empty when it is and will."""

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        """Run to its end, its time limit or a resource limit. stop: once it is set, the command is killed. Every
        descendant is gone when this returns, also when it is cancelled. Raises SandboxError when the sandbox itself
        broke, ShortageError when the command failed while the machine ran out of something."""

    def serve(self, command: Command) -> AbstractAsyncContextManager[RunningCommand]:
        """Start a command and go on while it runs. When the context ends, the command has been stopped."""

    def dial(self, host: str, port: int) -> AbstractAsyncContextManager[ServedConnection]:
        """A connection that a process in it makes, as its user, from its network. Never to a link-local address, also
        not by a name. Raises CannotDial (`dialing.py`), SandboxError."""

    def which(self, program: str, search_path: str | None = None) -> str | None:
        """Where PATH has this program inside the sandbox for its user, or None. search_path: the PATH of the command
        that would start it, where that has one of its own."""

    def find_hidden(self, program: str) -> Path | None:
        """Where this machine has a program that the sandbox has not because it hides that place, or None."""

    def written_folders(self) -> tuple[Path, ...] | None:
        """The folders that hold all that its commands have written so far, the workspace first; None when they may
        have left something elsewhere. Always the same for sandboxes that no command has run in."""

    async def close(self) -> None:
        """End all processes that are left and remove HOME and TMPDIR; the workspace stays."""

    async def close_but_home(self) -> Home:
        """`close`, but HOME is kept: the caller hands it to another sandbox, or removes it."""


class SandboxProvider(Protocol):
    """Makes the sandboxes of a run.

    kind: `process` or `docker`. isolation: what really isolates here, e.g. ("user", "landlock"). limits: `enforced`
    or `watched`. not_enforced: sentences for the report's head, for what this machine can't do.
    """

    @property
    def kind(self) -> str: ...
    @property
    def isolation(self) -> tuple[str, ...]: ...
    @property
    def limits(self) -> str: ...
    @property
    def not_enforced(self) -> tuple[str, ...]: ...

    async def open(
        self,
        workspace: Path,
        *,
        limits: CommandLimits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        home: Home | None = None,
        areas: Sequence[Path] = (),
    ) -> Sandbox:
        """A new world on this workspace directory (given to the sandbox's user). `readable` are further directories
        that code inside may read (an agent's own code). `environment` is added under every command's env. home: of a
        sandbox of this provider, to go on in; otherwise HOME is new. areas: directories of ours
        around the workspace and what is readable; of all users, only that of the sandbox whose command was started last
        can enter them. Raises SandboxError."""

    async def open_host(
        self,
        directory: Path,
        *,
        limits: CommandLimits,
        own: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        areas: Sequence[Path] = (),
    ) -> Sandbox:
        """A world for the author's own scripts: isolated as an agent's processes are, with our network, our PATH, our
        interpreter, and switches that keep interpreters from loading what lies in the working directory. `directory`,
        and `own` to read, are given to its user; `shared` are directories of ours that are opened to all such users and
        to nobody else; `readable` is what it may read besides, as far as modes let its user. areas: as for `open`.
        Raises SandboxError."""

    def host_not_enforced(self) -> tuple[str, ...]:
        """Sentences for what this machine can't keep a script in such a world from."""

    async def host_python(self) -> OwnPython:
        """Our interpreter, as code in such a world finds it. Raises SandboxError."""

    async def close(self) -> None:
        """End everything that is still running."""


TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_ANY = {"0.0.0.0": ("127.0.0.1",), "::": ("127.0.0.1", "::1")}  # noqa: S104 - compared with, never bound to
"""Where a server that listens everywhere is reached; one of IPv6 takes IPv4 too, unless it said otherwise."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens."""

    addresses: tuple[str, ...]
    """Where it is reached from the same machine, the likeliest first."""
    uid: int
    """Whose it is."""


def listeners(rows: Iterable[str], port: int) -> Iterator[Listener]:
    """Those of a port among the rows of these tables; other rows are left out."""
    for row in rows:
        columns = row.split()
        if len(columns) < 8 or columns[3] != _LISTEN:
            continue
        number, _, digits = columns[1].partition(":")
        try:
            if int(digits, 16) != port:
                continue
            address = _address(number)
            uid = int(columns[7])
        except (ValueError, struct.error, OSError):
            continue
        yield Listener(_ANY.get(address, (address,)), uid)


def _address(digits: str) -> str:
    """The kernel prints each 32 bits as a number of its own byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


_FULL = 1 << 20
"""Bytes: with less left on a file system, programs fail to write."""
_FEW_FILES = 16


class ShortageError(SandboxError):
    """A command failed while the machine ran out of something. completed: how it ended."""

    def __init__(self, message: str, completed: Completed) -> None:
        how = f"exit code {completed.exit_code}" if completed.exit_code is not None else f"signal {completed.signal}"
        super().__init__(f"{message}, and the command failed ({how}): that may be why")
        self.completed = completed


class Supplies:
    """What the machine had when a command started. roots: the directories that are the command's own."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._free = [_free(root) for root in roots]
        self._refused = refused_processes()

    def check(self, completed: Completed) -> None:
        """Raise ShortageError when the command failed, and what was lacking is not its own doing."""
        ended_by_itself = not (completed.timed_out or completed.limit or completed.not_found)
        if not ended_by_itself or completed.exit_code == 0:
            return
        lacking = self._space() or self._processes(completed)
        if lacking:
            raise ShortageError(lacking, completed)

    def _space(self) -> str:
        for root, before in zip(self._roots, self._free, strict=True):
            now = _free(root)
            if now is None or before is None or now >= _FULL:
                continue
            if before < _FULL or _size(self._roots) < before:  # else the command may have filled it by itself
                return f"there is no space left on this machine for {root} ({human(now)})"
        return ""

    def _processes(self, completed: Completed) -> str:
        refused = refused_processes() - self._refused
        most = smallest_cap()
        if refused <= 0 or most is None or completed.leftovers > most / 2:  # the last is a bomb
            return ""
        return f"the machine caps processes (pids.max is {most}) and refused {refused} more meanwhile"


def _free(root: str) -> int | None:
    """Bytes that users may still write there; 0 where no more files can be made."""
    with contextlib.suppress(OSError):
        found = os.statvfs(root)
        out_of_files = found.f_files > 0 and found.f_favail < _FEW_FILES
        return 0 if out_of_files else found.f_bavail * found.f_frsize
    return None


def _size(roots: Sequence[str]) -> int:
    try:
        return next((size for size in tree_size(list(roots)) if size is not None), 0)
    except TooDeep:
        return 0
