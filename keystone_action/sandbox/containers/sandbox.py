"""One world of one cell in containers, a fresh one for each command: what `docker.DockerSandboxes` opens."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypedDict

from keystone_action.engine import archives
from keystone_action.engine.calls import Refused
from keystone_action.engine.client import EngineClient
from keystone_action.engine.container import ContainerPlan, ContainerRun, could_not_start, not_found
from keystone_action.engine.images import Image
from keystone_action.errors import SandboxError
from keystone_action.sandbox.containers.running_command import ContainerCommand
from keystone_action.sandbox.containers.transfer import HOME, TEMPORARY, ContainerPlaces, CopiedDirectory, Transfer
from keystone_action.sandbox.dialing import plain_address
from keystone_action.sandbox.protocol import Home, Supplies, stopping_at
from keystone_action.system.command import Command, CommandLimits, Completed

if TYPE_CHECKING:
    from keystone_action.sandbox.protocol import ServedConnection

STANDARD_INPUT = "/.keystone-stdin"
WORKSPACE_LINK = "/workspace"
_FROM_FILE = f'exec "$@" <{STANDARD_INPUT}'
_MOST_LINKS = 40
_IDLE = Command(("/bin/sh", "-c", "while sleep 3600; do :; done"))


class DockerSandbox:
    """See `Sandbox`. execute: runs a container's life in a thread and ends it when cancelled."""

    uid: int | None = None

    def __init__(
        self,
        image: Image,
        places: ContainerPlaces,
        transfer: Transfer,
        execute: Callable[[ContainerRun], Awaitable[Completed]],
        forget: Callable[[DockerSandbox], None],
        *,
        limits: CommandLimits,
        environment: Mapping[str, str],
        labels: Mapping[str, str],
        network: str,
        extra_hosts: Mapping[str, str],
        dns: tuple[str, ...],
        link: bool,
    ) -> None:
        self.workspace = places.workspace
        self.workspace_inside = str(places.workspace)
        self.image = image
        self.places = places
        self.transfer = transfer
        self.limits = limits
        self.link = link
        """Whether there is a link to the workspace in its containers."""
        self._execute = execute
        self._forget = forget
        self._labels = labels
        self._network = network
        self._extra_hosts = extra_hosts
        self._dns = dns
        self._closed = False
        self._runs: set[ContainerRun] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        # Copies of one workspace can't be brought together again: there, commands wait for each other.
        self.turn: AbstractAsyncContextManager[None] = (
            asyncio.Lock() if isinstance(transfer, CopiedDirectory) else contextlib.nullcontext()
        )
        self.environment = {
            "HOME": str(places.private / HOME),
            "TMPDIR": str(places.private / TEMPORARY),
            "PATH": image.search_path,
            "LANG": "C.UTF-8",
            **environment,
        }

    @property
    def loss(self) -> str:
        """See `Sandbox`."""
        return self.transfer.loss

    def which(self, program: str, search_path: str | None = None) -> str | None:
        """See `Sandbox.which`. A program with a slash is looked up from the workspace."""
        return self._find(program, self.environment["PATH"] if search_path is None else search_path)

    def find_hidden(self, program: str) -> Path | None:  # noqa: ARG002 - as the protocol has it
        """See `Sandbox.find_hidden`: what this machine has is nothing to an image."""
        return None

    def _find(self, program: str, search_path: str, *, only_ours: bool = False) -> str | None:
        """only_ours: not in the image, which no command changes, and which may have to be asked."""
        places = [""] if "/" in program else search_path.split(":")
        for place in places:
            path = os.path.normpath(self.workspace / place / program)
            if program and (not only_ours or self._is_ours(path)) and self._is_program(path):
                return path
        return None

    def _is_program(self, path: str) -> bool:
        """Links are followed as they would be inside: from our directories into the image and back."""
        for _ in range(_MOST_LINKS):
            folder, _, name = path.rpartition("/")
            if not self._is_ours(path):
                return self.image.has_program(path)
            real = os.path.realpath(folder)
            if real != folder:
                path = f"{real}/{name}"
                continue
            try:
                status = os.lstat(path)
                if not stat.S_ISLNK(status.st_mode):
                    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)
                path = os.path.normpath(Path(folder) / Path(path).readlink())
            except OSError:
                return False
        return False

    def _is_ours(self, path: str) -> bool:
        return any(PurePosixPath(path).is_relative_to(place) for place in self.places.all)

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        """See `Sandbox.run`. A command in a sandbox that copies waits until the one before has ended."""
        supplies = Supplies([str(self.workspace)])
        async with self.turn:
            run, seen = self._container(command)

            async def end() -> None:
                run.finish()

            async with stopping_at(stop, end):
                completed = await self._run(command, run, seen)
        supplies.check(completed)
        return completed

    @contextlib.asynccontextmanager
    async def serve(self, command: Command) -> AsyncIterator[ContainerCommand]:
        """See `Sandbox.serve`. In a sandbox that copies, the workspace is as the command left it after its end."""
        import anyio

        async with self.turn:
            run, seen = self._container(command)
            completed = asyncio.ensure_future(self._run(command, run, seen))
            serving = ContainerCommand(completed, self.image.client, self.transfer.user, self.image.search_path, run)
            try:
                yield serving
            finally:
                run.finish()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([completed])
                completed.exception()  # the caller that waited for it has been told

    @contextlib.asynccontextmanager
    async def dial(self, host: str, port: int) -> AsyncIterator[ServedConnection]:
        """See `Sandbox.dial`: from a container that does nothing else."""
        async with self.serve(_IDLE) as running:
            connection = await running.dial(plain_address(host), port)
            try:
                yield connection
            finally:
                connection[1].transport.abort()

    async def _run(self, command: Command, run: ContainerRun, seen: ContainerProcesses | None) -> Completed:
        if not self._has_directory(command.cwd):
            # An engine would make it, as root.
            return could_not_start(f"keystone: {command.cwd}: there is no such directory in the workspace\n", 126)
        if self.loss:
            return could_not_start(f"keystone: {self.loss}\n", 126)
        program, path = command.argv[0], command.env.get("PATH", self.environment["PATH"])
        # A program that takes itself away was there: only a look before can tell.
        was_ours = await asyncio.to_thread(self._find, program, path, only_ours=True) is not None
        done = await self.run_container(run)
        if seen is not None:
            done = seen.told(done)
        if command.as_root:
            await self.run_container(self._chown_run())
        unclear = done.exit_code in (126, 127) and not done.not_found and not was_ours
        if unclear and await asyncio.to_thread(self._find, program, path) is None:
            return not_found(done, program)
        return done

    async def run_container(self, run: ContainerRun) -> Completed:
        """A container's life as one of this sandbox's: it is over when the sandbox is closed. Raises SandboxError."""
        if self._closed:
            raise SandboxError("the sandbox has been closed")
        self._runs.add(run)
        self._quiet.clear()
        try:
            return await self._execute(run)
        finally:
            self._runs.discard(run)
            if not self._runs:
                self._quiet.set()

    def _has_directory(self, relative: str) -> bool:
        return os.path.lexists(self.workspace / relative)

    def _container(self, command: Command) -> tuple[ContainerRun, ContainerProcesses | None]:
        """The container of a command, and the list of its processes where that is wanted."""
        environment = {**self.environment, **command.env}
        must_be_text(command.argv, environment)
        # The shell by its place: the PATH that a spec gives is for what it runs.
        argv = command.argv if not command.stdin else ("/bin/sh", "-c", _FROM_FILE, "sh", *command.argv)
        plan = ContainerPlan(
            image=self.image.identifier,
            argv=argv,
            user=0 if command.as_root else self.transfer.user,
            directory=os.path.normpath(f"{self.workspace_inside}/{command.cwd}"),
            labels=self._labels,
            environment=environment,
            limits=self.limits,
            mounts=self.transfer.mounts,
            network=self._network,
            extra_hosts=self._extra_hosts,
            dns=self._dns,
            init=self.image.init,
        )
        extras = self.extras()
        if command.stdin:
            extras.append(archives.small_file(STANDARD_INPUT.lstrip("/"), command.stdin, 0o444))
        seen = ContainerProcesses(self.image.client, argv, plan.init) if command.lists_processes else None
        watches_disk = self.limits.disk is not None

        def look(container: str) -> str | None:
            if seen is not None:
                seen.look(container)
            return self.transfer.look(container) if watches_disk else None

        run = ContainerRun(
            self.image.client,
            plan,
            timeout=command.timeout,
            prepare=lambda container: self.transfer.prepare(container, extras),
            collect=self.transfer.collect,
            on_stop=self.transfer.stop,
            look=look if watches_disk or seen is not None else None,
            kept_whole=command.kept_whole,
        )
        return run, seen

    def extras(self) -> list[Iterable[bytes]]:
        """What each container gets besides the workspace and its like, as pieces of an archive."""
        if not self.link:
            return []
        return [[archives.link(WORKSPACE_LINK.lstrip("/"), self.workspace_inside)]]

    def move(self, image: Image) -> Image:
        """Run what comes next in this image, which was made of the one before. Returns it."""
        self.image = image
        return image

    async def give_back(self) -> None:
        """After root's commands were broken off: what they made is the user's, where we can't take it ourselves.
        Raises SandboxError."""
        if self.transfer.mounts and os.geteuid() != 0:
            await self.run_container(self._chown_run())

    def _chown_run(self) -> ContainerRun:
        """What root made belongs to the sandbox's user again."""
        user = self.transfer.user
        # Not the directory that holds HOME and TMPDIR: its owner may put other directories in their place.
        places = (str(self.workspace), *map(str, self.places.of_user))
        plan = ContainerPlan(
            image=self.image.identifier,
            argv=("chown", "-hR", f"{user}:{user}", *places),
            user=0,
            directory="/",
            labels=self._labels,
            mounts=self.transfer.mounts,
            init=self.image.init,
        )
        return ContainerRun(
            self.image.client,
            plan,
            prepare=lambda container: self.transfer.prepare(container, []),
            collect=self.transfer.collect,
            on_stop=self.transfer.stop,
        )

    def written_folders(self) -> tuple[Path, ...] | None:
        """See `Sandbox.written_folders`: what commands leave in the image is there for the next."""
        return None

    async def close(self) -> None:
        """See `Sandbox.close`. Twice does no harm."""
        if await self._end():
            await asyncio.to_thread(self.transfer.close)
            self._forget(self)

    async def close_but_home(self) -> Home:
        """See `Sandbox.close_but_home`."""
        if not await self._end():
            raise SandboxError("the sandbox has been closed")
        home = await asyncio.to_thread(self.transfer.close_but_home)
        self._forget(self)
        return home

    async def _end(self) -> bool:
        """Whether there was something to end."""
        if self._closed:
            return False
        self._closed = True
        for run in list(self._runs):
            run.stop()
        await self._quiet.wait()
        return True


def must_be_text(argv: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raises SandboxError for what no program can be given."""
    strings = [*argv, *environment, *environment.values()]
    if not argv or any("\0" in text for text in strings):
        raise SandboxError(f"not a command that can be run: {argv!r} (empty, or with a NUL character)")
    if any("=" in name or not name for name in environment):
        raise SandboxError("not an environment that a command can have: a name is empty or has `=` in it")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError as error:
        raise SandboxError(f"the Docker engine takes only text in commands and their environment: {error}") from error


_MOST = 5_000
"""Processes of a command that are kept."""
_ARGUMENTS = 2_000
"""Characters of one's arguments."""
_GONE = (404, 409)
_LATE = 10.0
"""Seconds for which an engine may not know yet that a container has ended."""


class ContainerProcess(TypedDict):
    """See `SeenProcess` of the process sandbox."""

    pid: int | None
    """As the engine's machine counts; None for the command itself where no look came in time."""
    argv: list[str]
    started: float
    ended: float | None
    status: int | None
    is_first: bool


@dataclass
class ContainerProcesses:
    """The processes of one command, as looks at its container find them. argv: the command's own. init: whether process
    1 is an init of the engine's.

    The first process is known for sure: we started it. Others are there at a look, or are missed. The engine tells a
    process's arguments as one text, which is taken apart at blanks here.
    """

    client: EngineClient
    argv: tuple[str, ...]
    init: bool
    found: list[ContainerProcess] = field(default_factory=list)
    left_out: int = 0
    refusal: str = ""
    """What the engine said when it could not list them."""
    missed: str = ""
    """The same of a look after which the container ran on: what ran at that time is not known."""
    _unclear: str = ""
    """The same of the last looks, in a row: the container may have ended, which an engine knows only later."""
    _unclear_since: float = 0.0
    _alive: dict[tuple[int | None, str], ContainerProcess] = field(default_factory=dict)
    _first: ContainerProcess | None = None
    _began: float = field(default_factory=time.time)

    def look(self, container: str) -> None:
        """Find those that are there now. Blocks. Raises what the client raises, but for a container that has ended."""
        rows: list[list[str]] = []
        said = "it names none"
        try:
            rows = self.client.processes(container)
        except Refused as error:
            if error.status in _GONE:
                return
            self.refusal = said = error.sentence
        now = time.time()
        there = {(int(row[0]), row[2]): int(row[1]) for row in rows if len(row) == 3 and row[0].isdigit()}
        if not there and not self._unclear:
            self._unclear, self._unclear_since = said, now
        if there or now > self._unclear_since + _LATE:
            self.missed, self._unclear = self.missed or self._unclear, ""
        if not there:
            return
        numbers = {pid for pid, _ in there}
        top = next((pid for (pid, _), parent in there.items() if parent not in numbers), None)
        for (pid, text), parent in there.items():
            if (self.init and pid == top) or (pid, text) in self._alive:
                continue
            self._add(pid, text, now, is_first=parent == top if self.init else pid == top)
        for key in self._alive.keys() - there.keys():
            self._alive.pop(key)["ended"] = now

    def _add(self, pid: int | None, text: str, now: float, *, is_first: bool) -> None:
        if len(self.found) >= _MOST:
            self.left_out += 1
            return
        is_first = is_first and self._first is None
        argv = list(self.argv) if is_first else text[:_ARGUMENTS].split()
        started = self._began if is_first else now
        seen = ContainerProcess(pid=pid, argv=argv, started=started, ended=None, status=None, is_first=is_first)
        if is_first:
            self._first = seen
        self._alive[pid, text] = seen
        self.found.append(seen)

    def told(self, completed: Completed) -> Completed:
        """The end of the command with its processes. Raises SandboxError where the engine could not list them, at
        whichever look: what ran then is not known."""
        refusal = self.missed or ("" if self.found else self.refusal)
        if refusal:
            raise SandboxError(
                f"audit.processes: the engine can't list what runs in a container: {refusal}",
                help="it needs `ps` on its machine; leave audit.processes out where it has none",
            )
        now = time.time()
        if self._first is None and not completed.not_found:
            self._add(None, "", now, is_first=True)
        for seen in self.found:
            if seen["ended"] is None:
                seen["ended"] = now
        if self._first is not None:
            self._first["ended"], self._first["status"] = now, _wait_status(completed)
        listed: tuple[dict[str, Any], ...] = tuple(dict(seen) for seen in self.found)
        return dataclasses.replace(completed, processes=listed, processes_left_out=self.left_out)


def _wait_status(completed: Completed) -> int | None:
    """As of `waitpid`."""
    if completed.exit_code is not None:
        return completed.exit_code << 8
    return completed.signal if completed.signal in set(signal.valid_signals()) else None
