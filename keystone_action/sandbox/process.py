"""The process sandbox: commands run on this machine, as a user of their own where we are root, confined by Landlock
where the kernel has it, watched over and ended, with all their descendants, by a supervisor.

    us ── launcher ─┬─ supervisor ── command ── …
                    └─ supervisor ── command ── …

`launcher` forks the supervisors, `supervisor` looks after one command, `confine` is what a command's process gives up,
`killing` ends it all, `policy` says what may be touched.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from keystone_action.errors import SandboxError
from keystone_action.sandbox import policy, trees
from keystone_action.sandbox.base import CAPTURE_HEAD, CAPTURE_TAIL, Capture, Command, Completed, Limits
from keystone_action.sandbox.client import Channel, LauncherClient
from keystone_action.sandbox.service_process import ServiceProcess
from keystone_action.sandbox.users import Lease, Users
from keystone_action.sandbox.wire import Message, Request

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unenforced(limits: Limits) -> tuple[str, ...]:
    """Sentences for those of these limits that a process sandbox can't keep."""
    if limits.cpu is None:
        return ()
    return (f"resources.cpu: {limits.cpu:g} is not enforced: a process sandbox can't limit processor time",)


async def start(
    root: Path | None = None,
    *,
    uid_isolation: bool | None = None,
    landlock: bool | None = None,
    hidden: Sequence[Path] = (),
) -> ProcessSandboxes:
    """Start the sandboxes of a run.

    root: where HOME and TMPDIR of the sandboxes go; None makes (and in the end removes) a directory of its own. It
    is made passable, not listable, for everyone. uid_isolation, landlock: None takes what this machine has, True
    insists, False does without. hidden: directories that must stay unreadable even where they lie inside the system's
    (a checkout in /opt); the current directory and GITHUB_WORKSPACE always are.
    Raises SandboxError.
    """
    if sys.platform != "linux":
        raise SandboxError("the process sandbox needs Linux", help="use --sandbox docker")
    own_root = root is None
    place = Path(tempfile.mkdtemp(prefix="keystone-")) if root is None else root
    place.mkdir(parents=True, exist_ok=True)
    place = place.resolve()
    place.chmod(0o711)
    users = Users() if os.geteuid() == 0 and uid_isolation is not False else None
    numbers = range(users.first, users.first + users.count) if users else range(0)
    launcher = await LauncherClient.start(numbers, place if own_root else None)
    launcher.give_back(await launcher.supervisor())  # forked while the run gets ready, so that the first finds it warm
    try:
        _insist(uid_isolation, launcher.setuid, "a user of its own (it needs root)")
        _insist(landlock, launcher.landlock > 0, "Landlock (it needs Linux 5.13 or later with Landlock enabled)")
    except SandboxError:
        await launcher.close()
        raise
    return ProcessSandboxes(
        place,
        launcher,
        users if launcher.setuid else None,
        launcher.landlock if landlock is not False else 0,
        [Path.cwd(), *hidden, *([Path(os.environ["GITHUB_WORKSPACE"])] if os.environ.get("GITHUB_WORKSPACE") else [])],
    )


def _insist(wanted: bool | None, available: bool, what: str) -> None:
    if wanted and not available:
        raise SandboxError(f"this machine can't give sandboxes {what}")


class ProcessSandboxes:
    """Makes the process sandboxes of a run. root: below it, workspaces are reachable for the sandboxes' users."""

    kind = "process"
    limits = "watched"

    def __init__(
        self, root: Path, launcher: LauncherClient, users: Users | None, landlock_abi: int, hidden: Sequence[Path]
    ) -> None:
        self.root = root
        self.launcher = launcher
        self._users = users
        self._landlock_abi = landlock_abi
        self._rules: policy.Rules | None = None
        if landlock_abi:
            self._rules = policy.system_rules([*hidden, root]) + (policy.own_user_rules() if users else [])
        self._opened = 0
        self._sandboxes: set[ProcessSandbox] = set()
        self._services: set[ServiceProcess] = set()

    @property
    def isolation(self) -> tuple[str, ...]:
        """Of `user` and `landlock` what this run has, or `none`."""
        found = (("user",) if self._users else ()) + (("landlock",) if self._landlock_abi else ())
        return found or ("none",)

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """What the agent could do here that it should not, in sentences."""
        sentences = []
        if not self._users and not self._landlock_abi:
            sentences.append("nothing isolates the agent: it can read and write all that we can")
        elif not self._landlock_abi:
            sentences.append("what every user of this machine may read (often the checkout too), the agent may read")
        if self._landlock_abi and self._landlock_abi < 6:
            sentences.append("the agent can connect to abstract Unix sockets of other processes")
            if not self._users:
                sentences.append("the agent can send signals to our processes")
        sockets = policy.reachable_sockets(self._users.first if self._users else None)
        sentences.extend(
            f"the agent can connect to {socket}, which may give it this whole machine" for socket in sockets
        )
        return tuple(sentences)

    async def open(
        self,
        workspace: Path,
        *,
        limits: Limits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ProcessSandbox:
        """See `SandboxProvider.open`. The workspace's files are given to the sandbox's user."""
        workspace = workspace.resolve()
        lease = self._users.lease() if self._users else None
        try:
            if lease:
                for path in (workspace, *readable):
                    _must_be_reachable(path, lease.uid)
                await asyncio.to_thread(trees.give, workspace, lease.uid)
                workspace.chmod(0o700)
            home, temporary = self._make_private(lease)
        except OSError as error:
            if lease:
                lease.release()
            raise SandboxError(f"can't prepare the sandbox of {workspace}: {error}") from error
        except SandboxError:
            if lease:
                lease.release()
            raise
        rules = None
        if self._rules is not None:
            rules = self._rules + policy.own_rules((workspace, home, temporary), [path.resolve() for path in readable])
        sandbox = ProcessSandbox(self, workspace, home, temporary, limits, dict(environment or {}), lease, rules)
        self._sandboxes.add(sandbox)
        return sandbox

    async def open_host(self, directory: Path, *, limits: Limits) -> ProcessSandbox:
        """See `SandboxProvider.open_host`. PATH is our own there."""
        home, temporary = self._make_private(None)
        environment = {"PATH": os.environ.get("PATH", DEFAULT_PATH)}
        sandbox = ProcessSandbox(self, directory.resolve(), home, temporary, limits, environment, None, None)
        self._sandboxes.add(sandbox)
        return sandbox

    def _make_private(self, lease: Lease | None) -> tuple[Path, Path]:
        self._opened += 1
        place = self.root / str(self._opened)
        while place.exists():
            self._opened += 1
            place = self.root / str(self._opened)
        place.mkdir(mode=0o711)
        place.chmod(0o711)
        made = (place / "home", place / "tmp")
        for path in made:
            path.mkdir(mode=0o700)
            if lease:
                os.chown(path, lease.uid, lease.uid)
        return made

    async def spawn_service(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        uid: bool | int = False,
        writable: Sequence[Path] = (),
        name: str = "",
    ) -> ServiceProcess:
        """Start a program that runs on until it is stopped; it ends with us, however we end.

        env is complete. uid: True gives it a user of its own, a number that user; `writable` directories are given
        to it. Where we are not root, it runs as us. Not confined otherwise: services are the author's.
        Raises SandboxError when it can't be started.
        """
        lease = self._users.lease() if self._users and uid is True else None
        user = lease.uid if lease else (uid if self._users and uid is not False else None)
        try:
            if user is not None:
                for path in writable:
                    _must_be_reachable(path, user)
                    await asyncio.to_thread(trees.give, path, user)
            service = await ServiceProcess.start(
                self.launcher, argv, env, cwd, uid=user, lease=lease, log_directory=self.root, name=name or argv[0]
            )
        except BaseException:
            if lease:
                lease.release()
            raise
        self._services.add(service)
        return service

    def forget(self, sandbox: ProcessSandbox) -> None:
        """For our sandboxes: it has been closed."""
        self._sandboxes.discard(sandbox)

    async def close(self) -> None:
        """See `SandboxProvider.close`. Twice does no harm."""
        for sandbox in list(self._sandboxes):
            await sandbox.close()
        for service in list(self._services):
            await service.stop(0)
        self._services.clear()
        await self.launcher.close()


def _must_be_reachable(path: Path, uid: int) -> None:
    closed = policy.user_may_enter(path.resolve(), uid)
    if closed is not None:
        raise SandboxError(
            f"the sandbox's user can't reach {path}: {closed} has mode {closed.stat().st_mode & 0o7777:04o}",
            help=f"`chmod o+x {closed}`, or put it elsewhere",
        )


class ProcessSandbox:
    """See `Sandbox`. uid: the numeric user that everything inside runs as, None when that is our own."""

    def __init__(
        self,
        provider: ProcessSandboxes,
        workspace: Path,
        home: Path,
        temporary: Path,
        limits: Limits,
        environment: dict[str, str],
        lease: Lease | None,
        rules: policy.Rules | None,
    ) -> None:
        self.workspace = workspace
        self.workspace_inside = str(workspace)
        self.uid = lease.uid if lease else None
        self._provider = provider
        self._home = home
        self._temporary = temporary
        self._limits = limits
        self._lease = lease
        self._rules = rules
        self._running: set[Channel] = set()
        self._closed = False
        self._environment = {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "PATH": DEFAULT_PATH,
            "LANG": "C.UTF-8",
            **environment,
        }

    def which(self, program: str) -> str | None:
        """See `Sandbox.which`. A program with a slash is looked up from the workspace."""
        places = [""] if "/" in program else self._environment["PATH"].split(":")
        for place in places:
            path = self.workspace / place / program
            if path.is_file() and self._may_execute(path.resolve()):
                return str(path)
        return None

    def _may_execute(self, path: Path) -> bool:
        if self._rules is not None and not policy.may_execute(self._rules, path):
            return False
        return os.access(path, os.X_OK) if self.uid is None else policy.user_may_execute(path, self.uid)

    async def run(self, command: Command) -> Completed:
        """See `Sandbox.run`."""
        if self._closed:
            raise SandboxError("the sandbox has been closed")
        request = self._request(command)
        stdin = _standard_input(command.stdin)
        channel = await self._provider.launcher.supervisor()
        self._running.add(channel)
        again = False
        try:
            await channel.request(request, [stdin, *([self._lease.lock] if self._lease else [])])
            answer = await channel.receive()
            again = answer is not None and answer[0]["again"]
        except OSError as error:
            raise SandboxError("the sandbox's supervisor was killed") from error
        except BaseException:
            await _end(channel)
            raise
        finally:
            os.close(stdin)
            self._running.discard(channel)
            if again:
                self._provider.launcher.give_back(channel)
            else:
                channel.close()
        if answer is None:
            raise SandboxError("the sandbox's supervisor was killed")
        return completed(*answer)

    def _request(self, command: Command) -> Request:
        strings = [*command.argv, *command.env, *command.env.values()]
        if not command.argv or any("\0" in text for text in strings):
            raise SandboxError(f"not a command that can be run: {command.argv!r} (empty, or with a NUL character)")
        return Request(
            argv=list(command.argv),
            env={**self._environment, **command.env},
            cwd=str(self.workspace / command.cwd),
            inside=str(self.workspace),
            uid=self.uid,
            guard=self._lease.guard if self._lease else None,
            rules=self._rules,
            timeout=command.timeout,
            memory=self._limits.memory,
            disk=self._limits.disk,
            pids=self._limits.pids,
            disk_roots=[str(self.workspace), str(self._home), str(self._temporary)],
            head=CAPTURE_HEAD,
            tail=CAPTURE_TAIL,
            service=False,
        )

    async def close(self) -> None:
        """See `Sandbox.close`. Twice does no harm."""
        if self._closed:
            return
        self._closed = True
        for channel in list(self._running):
            channel.hang_up()
        while self._running:
            await asyncio.sleep(0.002)
        place = self._home.parent
        for path in (self._home, self._temporary):
            if not trees.remove_if_empty(path):
                await asyncio.to_thread(trees.remove, path)
        trees.remove_if_empty(place)
        if self._lease:
            trees.take_back(self.workspace, self._lease.uid)
            trees.remove_shared_memory(self._lease.uid)
            self._lease.release()
        self._provider.forget(self)


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


async def _end(channel: Channel) -> None:
    """Hang up and wait until everything is gone, cancelled or not."""
    import anyio

    channel.hang_up()
    with anyio.CancelScope(shield=True):
        await channel.receive()


def completed(report: Message, blob: bytes) -> Completed:
    """A supervisor's report as what callers get. Raises SandboxError when it tells of a failure of ours."""
    if "broken" in report:
        raise SandboxError(f"the sandbox's supervisor failed: {report['broken']}")
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
    )
