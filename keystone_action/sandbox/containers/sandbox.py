"""One world of one cell in containers, a fresh one for each command: what `docker.DockerSandboxes` opens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath

from keystone_action.engine import archives
from keystone_action.engine.container import ContainerPlan, ContainerRun, could_not_start, not_found
from keystone_action.engine.images import Image
from keystone_action.errors import SandboxError
from keystone_action.sandbox.containers.running_command import ContainerCommand
from keystone_action.sandbox.containers.transfer import HOME, TEMPORARY, ContainerPlaces, CopiedDirectory, Transfer
from keystone_action.sandbox.protocol import Home, Supplies, stopping_at
from keystone_action.system.command import Command, CommandLimits, Completed

STANDARD_INPUT = "/.keystone-stdin"
WORKSPACE_LINK = "/workspace"
_FROM_FILE = f'exec "$@" <{STANDARD_INPUT}'
_MOST_LINKS = 40


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
            run = self._container(command)

            async def end() -> None:
                run.finish()

            async with stopping_at(stop, end):
                completed = await self._run(command, run)
        supplies.check(completed)
        return completed

    @contextlib.asynccontextmanager
    async def serve(self, command: Command) -> AsyncIterator[ContainerCommand]:
        """See `Sandbox.serve`. In a sandbox that copies, the workspace is as the command left it after its end."""
        import anyio

        async with self.turn:
            run = self._container(command)
            completed = asyncio.ensure_future(self._run(command, run))
            serving = ContainerCommand(completed, self.image.client, self.transfer.user, self.image.search_path, run)
            try:
                yield serving
            finally:
                run.finish()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([completed])
                completed.exception()  # the caller that waited for it has been told

    async def _run(self, command: Command, run: ContainerRun) -> Completed:
        if not self._has_directory(command.cwd):
            # An engine would make it, as root.
            return could_not_start(f"keystone: {command.cwd}: there is no such directory in the workspace\n", 126)
        if self.loss:
            return could_not_start(f"keystone: {self.loss}\n", 126)
        program, path = command.argv[0], command.env.get("PATH", self.environment["PATH"])
        # A program that takes itself away was there: only a look before can tell.
        was_ours = await asyncio.to_thread(self._find, program, path, only_ours=True) is not None
        done = await self.run_container(run)
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

    def _container(self, command: Command) -> ContainerRun:
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
        return ContainerRun(
            self.image.client,
            plan,
            timeout=command.timeout,
            prepare=lambda container: self.transfer.prepare(container, extras),
            collect=self.transfer.collect,
            on_stop=self.transfer.stop,
            look=self.transfer.look if self.limits.disk is not None else None,
            kept_whole=command.kept_whole,
        )

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
