"""The sandbox of one cell as processes of this machine.

`ProcessSandboxes` opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keystone_action.errors import SandboxError, raise_unless_agent
from keystone_action.files.descent import is_small
from keystone_action.files.kept_output import PipeToFile
from keystone_action.files.paths import display_path, real_path
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox import trees
from keystone_action.sandbox.processes import policy
from keystone_action.sandbox.processes.client import Channel, LauncherClient
from keystone_action.sandbox.processes.network import ClosedNetwork
from keystone_action.sandbox.processes.running_command import Stopper, SupervisedCommand, dialed
from keystone_action.sandbox.processes.wire import CommandRequest, WireMessage
from keystone_action.sandbox.programs import listing_of_root
from keystone_action.sandbox.protocol import Home, Supplies, stopping_at
from keystone_action.sandbox.trees import find_held_file
from keystone_action.sandbox.users import Lease
from keystone_action.system.command import (
    CAPTURE_HEAD,
    CAPTURE_TAIL,
    DEFAULT_PIDS,
    Capture,
    Command,
    CommandLimits,
    Completed,
)
from keystone_action.system.environment import DEFAULT_PATH, own_search_path

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.protocol import ServedConnection


_LAST_WORDS = 4000
_FEW = 32
"""Entries of a workspace that are looked at without a thread."""


class Private(NamedTuple):
    """HOME and TMPDIR of a sandbox, in a directory of ours that only its user can enter."""

    place: Path

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def temporary(self) -> Path:
        return self.place / "tmp"

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.home, self.temporary

    def remove(self) -> None:
        """Remove all of it. Blocks."""
        remove_tree(self.place)


class ProcessSandbox:
    """See `Sandbox`."""

    def __init__(
        self,
        launcher: LauncherClient,
        forget: Callable[[ProcessSandbox], None],
        workspace: Path,
        private: Private,
        limits: CommandLimits,
        environment: dict[str, str],
        lease: Lease | None,
        rules: policy.Rules | None,
        lasting_rules: policy.Rules | None = None,
        groups: Sequence[int] = (),
        *,
        unix_sockets: bool = True,
        areas: Sequence[Path] = (),
        others: Path | None = None,
        may_share_files: Callable[[ProcessSandbox], bool] = lambda _: False,
        network: ClosedNetwork | None = None,
        python: Callable[[], Awaitable[OwnPython]],
    ) -> None:
        self.loss = ""
        self.network = network
        """How it is closed; None while it is this machine's."""
        self.workspace = workspace
        self.workspace_inside = str(workspace)
        self.uid = lease.uid if lease else None
        self._launcher = launcher
        self._forget = forget
        self._private = private
        self._areas = (private.place, *areas)
        self._limits = limits
        self._lease = lease
        self._rules = rules
        self._lasting_rules = lasting_rules or []
        self._groups = list(groups)
        self._unix_sockets = unix_sockets
        self._others = others
        self._may_share_files = may_share_files
        self._python = python
        self._disk_roots = [str(workspace), *map(str, private.folders)]
        self._channels: set[Channel] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closed = False
        self._shared = trees.SHARED if rules is None else trees.SHARED_MEMORY
        self._stamps = trees.stamps(self._shared) if lease else {}
        self.environment = {
            "HOME": str(private.home),
            "TMPDIR": str(private.temporary),
            "PATH": DEFAULT_PATH,
            "LANG": "C.UTF-8",
            **environment,
        }

    def _enter_areas(self) -> None:
        """Another sandbox of the cell may have been in there since."""
        if self._lease and not self._closed:
            for area in self._areas:
                trees.admit_only(self._lease.uid, area)

    def which(self, program: str, search_path: str | None = None) -> str | None:
        """See `Sandbox.which`. A program with a slash is looked up from the workspace."""
        self._enter_areas()  # a program of the workspace may be looked for
        path = self.environment["PATH"] if search_path is None else search_path
        places = [""] if "/" in program else path.split(":")
        found = (self.workspace / place / program for place in places)
        return next((str(path) for path in found if program and self._is_program(path)), None)

    def _is_program(self, path: Path) -> bool:
        """Raises HarnessError."""
        try:
            return path.is_file() and self._may_execute(path.resolve())
        except OSError as error:  # a directory of PATH may be closed to us: a shell passes over it, too
            raise_unless_agent(error, f"looking for {path.name}")
            return False

    def find_hidden(self, program: str) -> Path | None:
        """See `Sandbox.find_hidden`: looked for as we would find it ourselves."""
        if not program or self.which(program) is not None:
            return None
        places = [str(self.workspace)] if "/" in program else own_search_path().split(":")
        found = (Path(place) / program for place in places)
        return next((path for path in found if _is_ours_to_run(path)), None)

    def _may_execute(self, path: Path) -> bool:
        if self._rules is not None and not policy.may_execute(self._rules + self._lasting_rules, path):
            return False
        return os.access(path, os.X_OK) if self.uid is None else policy.user_may_execute(path, self.uid)

    @contextlib.asynccontextmanager
    async def serve(self, command: Command) -> AsyncIterator[SupervisedCommand]:
        """See `Sandbox.serve`."""
        import anyio

        stopper = Stopper()
        completed = asyncio.ensure_future(self._run(command, stopper))
        try:
            yield SupervisedCommand(completed, stopper, self.uid)
        finally:
            with anyio.CancelScope(shield=True):
                await stopper.stop()
                await asyncio.wait([completed])
            completed.exception()  # the caller that waited for it has been told

    @contextlib.asynccontextmanager
    async def dial(self, host: str, port: int) -> AsyncIterator[ServedConnection]:
        """See `Sandbox.dial`."""
        python = await self._python()
        run = partial(self._run, shown=python.readable)
        async with dialed(host, port, python=python, folder=self._private.temporary, run=run) as connection:
            yield connection

    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        """See `Sandbox.run`."""
        supplies = Supplies(self._disk_roots)
        stopper = Stopper()
        async with stopping_at(stop, stopper.stop):
            completed = await self._run(command, stopper)
        if completed.exit_code and self._rules is not None:
            stderr = completed.stderr.tail or completed.stderr.head
            completed = replace(completed, advice=listing_of_root(stderr[-_LAST_WORDS:]))
        supplies.check(completed)
        return completed

    async def _run(self, command: Command, stopper: Stopper, shown: Sequence[Path] | None = None) -> Completed:
        """shown: what a program of our own may read besides, which meets us at a Unix socket; None for others."""
        if self._closed:
            raise SandboxError("the sandbox has been closed")
        request = self._request(command)
        if shown is not None:
            request["unix_sockets"] = True
        if shown and self._rules is not None:
            request["rules"] = [*self._rules, *policy.own_rules((), [real_path(path) for path in shown])]
        self._enter_areas()
        with contextlib.ExitStack() as ours:
            passed = [_standard_input(command.stdin), *([self._lease.lock] if self._lease else [])]
            ours.callback(os.close, passed[0])
            if self.network is not None and (relay := self.network.relay()) is not None:
                stopper.relay = relay
                passed.append(relay.passed)
            whole = [ours.enter_context(PipeToFile(one.path)) for one in command.kept_whole if one is not None]
            passed += [one.writer for one in whole]
            answer = await self._run_supervisor(request, passed, stopper)
        if answer is None:
            raise SandboxError("the sandbox's supervisor was killed")
        for one in whole:
            await one.written()
        if self._rules is not None or self._lease:
            await self._seal()
        return completed_of(*answer)

    async def _seal(self) -> None:
        """Make sure that no process of another sandbox can go on writing what the last command left."""
        if self._channels:  # another command of this one still runs
            return
        look = partial(find_held_file, self.workspace, renews=self._may_share_files(self))
        try:
            held = look() if is_small(self.workspace, most_entries=_FEW) else await asyncio.to_thread(look)
        except OSError as error:
            raise SandboxError(f"looking for open files in the workspace failed: {error}") from error
        if held:
            self.loss = (
                f"{display_path(held)} is still open for writing in a process outside of its sandbox, which can go on "
                "changing it"
            )

    @property
    def is_running(self) -> bool:
        """Whether a command of it runs."""
        return bool(self._channels)

    async def _run_supervisor(
        self, request: CommandRequest, passed: list[int], stopper: Stopper
    ) -> tuple[WireMessage, bytes] | None:
        """The report of a supervisor, and the streams' bytes; None when it was killed."""
        import anyio

        channel = await self._launcher.supervisor(request)
        self._channels.add(channel)
        self._quiet.clear()
        again = False
        try:
            await channel.request(request, passed)
            if stopper.relay is not None:
                stopper.relay.begin(stopper.stop)
            await stopper.begin(channel)
            answer = await channel.receive()
            # One that was asked to stop may find that in its channel after its report.
            again = answer is not None and answer[0]["again"] and not stopper.has_sent
        except OSError as error:
            raise SandboxError("the sandbox's supervisor was killed") from error
        except BaseException:
            await self._launcher.end(channel)
            raise
        finally:
            stopper.finish()
            if stopper.relay is not None:
                with anyio.CancelScope(shield=True):
                    await stopper.relay.close()
            self._channels.discard(channel)
            if not self._channels:
                self._quiet.set()
            if again:
                self._launcher.give_back(channel)
            else:
                channel.close()
        return answer

    def _request(self, command: Command) -> CommandRequest:
        strings = [*command.argv, *command.env, *command.env.values()]
        if not command.argv or any("\0" in text for text in strings):
            raise SandboxError(f"not a command that can be run: {command.argv!r} (empty, or with a NUL character)")
        return CommandRequest(
            argv=list(command.argv),
            env={**self.environment, **command.env},
            cwd=str(self.workspace / command.cwd),
            inside=str(self.workspace),
            uid=self.uid,
            groups=self._groups,
            guard=self._lease.guard if self._lease else None,
            rules=self._rules,
            lasting_rules=self._lasting_rules,
            timeout=command.timeout,
            memory=self._limits.memory,
            disk=self._limits.disk,
            pids=self._limits.pids or DEFAULT_PIDS,
            disk_roots=self._disk_roots,
            head=CAPTURE_HEAD,
            tail=CAPTURE_TAIL,
            whole=[None if one is None else (one.above, one.limit) for one in command.kept_whole],
            unix_sockets=self._unix_sockets and self.network is None,
            service=False,
            lists_processes=command.lists_processes,
            others=None if self._others is None else str(self._others),
            closed=None if self.network is None else self.network.way,
            reachable=[] if self.network is None else list(self.network.addresses),
        )

    def written_folders(self) -> tuple[Path, ...] | None:
        """See `Sandbox.written_folders`."""
        if self._rules is None or (self._lease and trees.has_shared(self._lease.user, trees.SHARED_MEMORY)):
            return None
        return self.workspace, *self._private.folders

    async def close(self) -> None:
        """See `Sandbox.close`. Twice does no harm."""
        await self._close(self._private.folders)

    async def close_but_home(self) -> Home:
        """See `Sandbox.close_but_home`."""
        if self._closed:
            raise SandboxError("the sandbox has been closed")
        await self._close((self._private.temporary,))
        if self._lease:
            trees.take_back(self._private.home, self._lease.uid)
        return Home(self._private.home, self._private.remove, partial(trees.copy_wanted, self._private.home))

    async def _close(self, gone: Sequence[Path]) -> None:
        if self._closed:
            return
        self._closed = True
        if self._channels:
            self._launcher.wake()
        for channel in list(self._channels):
            channel.hang_up()
        await self._quiet.wait()
        for path in gone:
            if not trees.remove_if_empty(path):
                await asyncio.to_thread(remove_tree, path)
        trees.remove_if_empty(self._private.place)
        if self._lease:
            for area in self._areas:
                trees.admit_nobody(area)
            trees.take_back(self.workspace, self._lease.uid)
            trees.remove_shared(self._lease.user, self._shared, self._stamps)
            self._lease.release()
        self._forget(self)


def _is_ours_to_run(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError as error:
        raise_unless_agent(error, f"looking for {path.name}")
        return False


def _standard_input(data: bytes) -> int:
    """A descriptor to read `data` from: a sealed file in memory, so that nothing can be stored there."""
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    import fcntl

    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(
        descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    return descriptor


def completed_of(report: WireMessage, blob: bytes) -> Completed:
    """A supervisor's report as what callers get. Raises SandboxError when it tells of a failure of ours."""
    if "broken" in report:
        raise SandboxError(report["broken"])
    refusal = report["refusal"] or {}
    if not report["gone"]:
        raise SandboxError("some of the command's processes could not be killed: they hang in the kernel")
    parts = []
    for size in report["parts"]:
        parts.append(blob[:size])
        blob = blob[size:]
    out = Capture(parts[0], parts[1], report["totals"][0])
    err = Capture(parts[2], parts[3], report["totals"][1])
    exit_code, number = report["exit_code"], report["signal"]
    if refusal:
        sentence = f"keystone: {refusal['refused']}\n".encode("utf-8", "replace")
        err = Capture(sentence + err.head, err.tail, err.total + len(sentence))
        exit_code, number = refusal["code"], None
    return Completed(
        exit_code=exit_code,
        signal=number,
        timed_out=report["timed_out"],
        limit=report["limit"],
        not_found=bool(refusal.get("not_found")),
        duration_s=report["duration"],
        stdout=out,
        stderr=err,
        leftovers=report["leftovers"],
        processes=tuple(report.get("processes", ())),
        processes_left_out=report.get("processes_left_out", 0),
    )
