"""The process sandbox: commands run on this machine, as a user of their own where we are root, confined by Landlock
where the kernel has it, watched over and ended, with all their descendants, by a supervisor.

    us ── launcher ─┬─ supervisor ── command ── …
                    └─ supervisor ── command ── …

`launcher` forks the supervisors, `supervisor` looks after one command, `confine` is what a command's process gives up,
`killing` ends it all, `policy` says what may be touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from keystone_action.errors import SandboxError
from keystone_action.files.descent import is_small
from keystone_action.files.paths import is_within, real_path
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox import trees
from keystone_action.sandbox.own_programs import OwnPython, own_python
from keystone_action.sandbox.processes import policy, system_v
from keystone_action.sandbox.processes.client import LauncherClient, Launching, ServiceProcess, hide_memory
from keystone_action.sandbox.processes.network import ProcessNetworks
from keystone_action.sandbox.processes.sandbox import Private, ProcessSandbox
from keystone_action.sandbox.protocol import Home
from keystone_action.sandbox.users import Lease, Users, remove_left_behind, user_numbers
from keystone_action.system.command import CommandLimits

_WITH_SCOPES = 6
"""The version of Landlock that keeps off signals to others and their abstract sockets."""
_OWN_FILES = (
    "the agent can change modes and times of its user's files, and hand open files to agents that run at the same "
    "time: this machine gives plain users no mount namespace"
)
_FEW = 32
"""Entries of a tree whose owner is changed without a thread."""


def explain_unenforced(limits: CommandLimits) -> tuple[str, ...]:
    """Sentences for those of these limits that a process sandbox can't keep."""
    if limits.cpu is None:
        return ()
    return (f"resources.cpu: {limits.cpu:g} is not enforced: a process sandbox can't limit processor time",)


@contextmanager
def starting_early() -> Iterator[Launching | None]:
    """The launcher gets ready while its caller does something else; it ends here if no `start` has taken it. None
    where there is no process sandbox."""
    if sys.platform != "linux":
        yield None
        return
    launching = Launching(user_numbers() if os.geteuid() == 0 else range(0), None)
    try:
        yield launching
    finally:
        launching.end()


async def start(
    root: Path | None = None,
    *,
    uid_isolation: bool | None = None,
    landlock: bool | None = None,
    hidden: Sequence[Path] = (),
    early: Launching | None = None,
) -> ProcessSandboxes:
    """Start the sandboxes of a run.

    root: where HOME and TMPDIR of the sandboxes go; None makes (and in the end removes) a directory of its own. It
    is made passable, not listable, for everyone. uid_isolation, landlock: None takes what this machine has, True
    insists, False does without. hidden: directories that must stay unreadable even where they lie inside the system's
    (a checkout in /opt); the current directory and GITHUB_WORKSPACE always are. early: what was begun already, by a
    caller who names a root and takes the isolation that this machine has.
    Raises SandboxError.
    """
    if sys.platform != "linux":
        raise SandboxError("the process sandbox needs Linux", help="use --sandbox docker")
    own_root = root is None
    place = Path(tempfile.mkdtemp(prefix="keystone-sandboxes-")) if root is None else root
    place.mkdir(parents=True, exist_ok=True)
    place = place.resolve()
    place.chmod(0o711)
    users = Users() if os.geteuid() == 0 and uid_isolation is not False else None
    launching = early or Launching(users.numbers if users else range(0), place if own_root else None)
    try:
        launcher = await launching.ready()
    except SandboxError:
        if own_root:
            remove_tree(place)
        raise
    launcher.give_back(await launcher.supervisor())  # forked while the run gets ready, so that the first finds it warm
    try:
        _insist(uid_isolation, launcher.setuid, "a user of its own (it needs root)")
        _insist(landlock, launcher.landlock > 0, "Landlock (it needs Linux 5.13 or later with Landlock enabled)")
    except SandboxError:
        await launcher.close()
        raise
    if users is not None and launcher.setuid:
        await asyncio.to_thread(remove_left_behind, users)
    found_landlock = launcher.landlock if landlock is not False else 0
    hide_memory()
    return ProcessSandboxes(
        place,
        launcher,
        users if launcher.setuid else None,
        found_landlock,
        hidden=[*_checkouts(), *hidden],
        own_root=own_root,
    )


def _checkouts() -> list[Path]:
    workspace = os.environ.get("GITHUB_WORKSPACE")
    return [Path.cwd(), Path(workspace)] if workspace else [Path.cwd()]


def _insist(wanted: bool | None, available: bool, what: str) -> None:
    if wanted and not available:
        raise SandboxError(f"this machine can't give sandboxes {what}")


class ProcessSandboxes:
    """Makes the process sandboxes of a run. root: below it, workspaces are reachable for the sandboxes' users."""

    kind = "process"
    limits = "watched"

    def __init__(
        self,
        root: Path,
        launcher: LauncherClient,
        users: Users | None,
        landlock_abi: int,
        *,
        hidden: Sequence[Path],
        own_root: bool,
    ) -> None:
        self._own_root = own_root
        self.root = root
        self.launcher = launcher
        self._users = users
        self._landlock_abi = landlock_abi
        self._rules: policy.Rules | None = None
        if landlock_abi:
            self._rules = policy.system_rules([*hidden, root]) + (policy.own_user_rules() if users else [])
        isolates = users is not None or landlock_abi > 0
        self.networks = ProcessNetworks(launcher, has_isolation=isolates, has_landlock=landlock_abi > 0)
        self._has_mounts = bool(landlock_abi) and launcher.mounts and users is None
        self._sandbox_count = 0
        self._readers: Lease | None = None
        self._python: OwnPython | None = None
        self._sandboxes: set[ProcessSandbox] = set()
        self._services: set[ServiceProcess] = set()

    @property
    def isolation(self) -> tuple[str, ...]:
        """Of `user` and `landlock` what this run has, or `none`."""
        found = (("user",) if self._users else ()) + (("landlock",) if self._landlock_abi else ())
        return found or ("none",)

    @functools.cached_property
    def not_enforced(self) -> tuple[str, ...]:
        """What the agent could do here that it should not, in sentences. Found out once: every cell asks."""
        sentences = []
        if not self._users and not self._landlock_abi:
            sentences.append("nothing isolates the agent: it can read and write all that we can")
        elif not self._landlock_abi:
            sentences.append("what every user of this machine may read (often the checkout too), the agent may read")
            sentences.append("the agent can hand open folders to agents that run at the same time")
        if self._landlock_abi and self._landlock_abi < _WITH_SCOPES:
            sentences.append("the agent can connect to abstract Unix sockets of other processes")
            if not self._users:
                sentences.append("the agent can send signals to our processes")
        if self._landlock_abi and not self._users and not self._has_mounts:
            sentences.append(_OWN_FILES)
        if not self.launcher.seccomp and self.isolation != ("none",):
            what = "keys" if self._users else "keys and System V objects"
            sentences.append(f"the agent can use {what} of its user in the kernel: there is no seccomp here")
        if self._users and (count := system_v.count_open_to_all(besides=self._users.numbers)):
            sentences.append(f"the agent can use {count} System V objects (`ipcs`) that are open to every user")
        sentences.extend(
            f"the agent can connect to {socket}, which may give it this whole machine"
            for socket in self._undoing_sockets()
        )
        return tuple(sentences)

    async def open(
        self,
        workspace: Path,
        *,
        limits: CommandLimits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        home: Home | None = None,
        areas: Sequence[Path] = (),
    ) -> ProcessSandbox:
        """See `SandboxProvider.open`. The workspace's files are given to the sandbox's user."""
        workspace = real_path(workspace)
        with self._lease_for(workspace) as lease:
            if lease:
                _admit_only(lease.uid, *areas)
                for path in readable:
                    _must_be_reachable(path, real_path(path) / "anything", lease.uid)
            return await self._world(
                workspace,
                lease,
                limits,
                readable,
                environment or {},
                home=home,
                areas=areas,
                others=self._temporary_files(),
            )

    async def open_host(
        self,
        directory: Path,
        *,
        limits: CommandLimits,
        own: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        areas: Sequence[Path] = (),
    ) -> ProcessSandbox:
        """See `SandboxProvider.open_host`. PATH is our own there, as far as it is absolute."""
        directory = real_path(directory)
        python = await self.host_python()
        found = (*own, *shared, *readable, *python.readable, *policy.script_programs())
        with self._lease_for(directory) as lease:
            groups = [self._share(shared)] if lease else []
            if lease:
                _admit_only(lease.uid, *areas)
            return await self._world(
                directory,
                lease,
                limits,
                found,
                policy.script_environment(),
                own=own,
                groups=groups,
                unix_sockets=not self._undoing_sockets(),
                areas=areas,
                others=self._own_files(),
            )

    def _temporary_files(self) -> Path:
        """The directory for temporary files, where other runs have theirs too; else that of this run."""
        above = real_path(Path(tempfile.gettempdir()))
        return above if is_within(self.root, above) and not policy.is_system(above) else self._own_files()

    def _own_files(self) -> Path:
        """What only this run has its files in."""
        above = self.root if self._own_root else self.root.parent
        return self.root if policy.is_system(above) else above

    def _undoing_sockets(self) -> list[str]:
        return policy.reachable_sockets(self._users.first if self._users else None)

    def host_not_enforced(self) -> tuple[str, ...]:
        """See `SandboxProvider.host_not_enforced`."""
        sentences = []
        if self.isolation == ("none",):
            sentences.append("scripts on the host: isolation none, they can read and write all that we can")
        if not self.launcher.seccomp:
            sentences += [f"scripts on the host can connect to {socket}" for socket in self._undoing_sockets()]
        return tuple(sentences)

    async def host_python(self) -> OwnPython:
        """See `SandboxProvider.host_python`."""
        if self._python is None:
            user = self._users.first if self._users else None
            try:
                self._python = await asyncio.to_thread(own_python, user, self.root)
            except OSError as error:
                raise SandboxError(
                    f"our interpreter can't be made readable for scripts on the host: {error}"
                ) from error
        return self._python

    @contextlib.contextmanager
    def _lease_for(self, workspace: Path) -> Iterator[Lease | None]:
        """A user, where there are some; released again when the sandbox can't be opened."""
        lease = self._users.lease() if self._users else None
        try:
            yield lease
        except BaseException as error:
            if lease:
                lease.release()
            if isinstance(error, OSError):
                raise SandboxError(f"can't prepare the sandbox of {workspace}: {error}") from error
            raise

    def _share(self, places: Sequence[Path]) -> int:
        """Open directories of ours to the users of scripts on the host, by a group that nobody else is in."""
        if self._readers is None and self._users:
            self._readers = self._users.lease()
        group = self._readers.uid if self._readers else -1
        for place in places:
            os.chown(place, -1, group)
            place.chmod(0o750)
        return group

    async def _world(
        self,
        workspace: Path,
        lease: Lease | None,
        limits: CommandLimits,
        readable: Sequence[Path],
        environment: Mapping[str, str],
        *,
        home: Home | None = None,
        own: Sequence[Path] = (),
        groups: Sequence[int] = (),
        unix_sockets: bool = True,
        areas: Sequence[Path] = (),
        others: Path,
    ) -> ProcessSandbox:
        if lease:
            _must_be_reachable(workspace, workspace, lease.uid)
            await _give(workspace, lease.uid, *own, *([home.place] if home else []))
            for path in (workspace, *own):
                path.chmod(0o700)
        private = self._make_private(lease, home)
        rules = None
        if self._rules is not None:
            rules = policy.own_rules((workspace, *private.folders), [real_path(path) for path in readable])
        sandbox = ProcessSandbox(
            self.launcher,
            self._sandboxes.discard,
            workspace,
            private,
            limits,
            dict(environment),
            lease,
            rules,
            self._rules,
            groups,
            unix_sockets=unix_sockets,
            areas=areas,
            others=others if self._has_mounts else None,
            may_share_files=self._may_share_files,
            python=self.host_python,
        )
        self._sandboxes.add(sandbox)
        return sandbox

    def _may_share_files(self, sandbox: ProcessSandbox) -> bool:
        """Whether another sandbox runs a command that may have got an open file from this one."""
        apart = self._landlock_abi >= _WITH_SCOPES and (self._users or self._has_mounts)
        return not apart and any(one.is_running for one in self._sandboxes if one is not sandbox)

    def _make_private(self, lease: Lease | None, kept: Home | None = None) -> Private:
        """HOME, which may be one that was kept and is the user's already, and a new TMPDIR."""
        if kept:
            private = Private(kept.place.parent)
        else:
            self._sandbox_count += 1
            while (place := self.root / f"private-{self._sandbox_count}").exists():
                self._sandbox_count += 1
            private = Private(place)
            place.mkdir(mode=0o700)
        for path in (private.temporary,) if kept else private.folders:
            path.mkdir(mode=0o700)
            if lease:
                os.chown(path, lease.uid, lease.uid)
        if lease:
            _admit_only(lease.uid, private.place)
        return private

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
                    _must_be_reachable(path, real_path(path), user)
                    await _give(path, user)
            service = await ServiceProcess.start(
                self.launcher, argv, env, cwd, uid=user, lease=lease, log_directory=self.root, name=name or argv[0]
            )
        except BaseException:
            if lease:
                lease.release()
            raise
        self._services.add(service)
        return service

    async def close(self) -> None:
        """See `SandboxProvider.close`. Twice does no harm."""
        for sandbox in list(self._sandboxes):
            await sandbox.close()
        for service in list(self._services):
            await service.stop(0)
        self._services.clear()
        await asyncio.to_thread(self.networks.stop)
        await self.launcher.close()
        if self._readers:
            self._readers.release()
        if self._own_root:
            await asyncio.to_thread(remove_tree, self.root)


async def _give(tree: Path, uid: int, *more: Path) -> None:
    # A thread for a few files would cost more than they do.
    if not more and is_small(tree, most_entries=_FEW):
        trees.give(tree, uid)
    else:
        await asyncio.to_thread(trees.give, tree, uid, *more)


def _admit_only(uid: int, *areas: Path) -> None:
    for area in areas:
        trees.admit_only(uid, area)


def _must_be_reachable(path: Path, real: Path, uid: int) -> None:
    closed = policy.user_may_enter(real, uid)
    if closed is not None:
        raise SandboxError(
            f"the sandbox's user can't reach {path}: {closed} has mode {closed.stat().st_mode & 0o7777:04o}",
            help=f"`chmod o+x {closed}`, or put it elsewhere",
        )
