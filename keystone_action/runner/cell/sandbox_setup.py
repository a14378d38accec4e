"""The agent's sandbox, ready for it: `setup` done, and the network as the spec wants it.

As processes: Python packages in an environment of the cell, commands as the agent's user; cells in which both would do
the same get copies of what they left in the first. In containers: packages in a cached layer of the image, commands as
root in the workspace, and what both leave in the system is there for the agent and for every check (contract, 1.1 and
5.2).

`setup` in the process sandbox: once for the cells of a run in which it would do the same.

Packages and commands are each run in the first such cell, and what they left there is copied to the others (see
`kept.py`). Where a copy would not be what the commands would have made, each cell runs them.

`setup`: files, Python packages and commands, before the agent starts (spec 1.1 and 5.2).

Packages come first of all, in a world of their own: a virtual environment is made by the sandbox's python3 as the
agent's user, then closed to it and handed to agent and checks as a readable directory. So neither the agent can change
what its checks import, nor does the environment go away with the agent's HOME.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import HarnessError
from keystone_action.files.copies import (
    GitState,
    copy_all,
    copy_exactly,
    file_holds,
    git_state,
    give_to_owner,
    put_copies,
)
from keystone_action.files.descent import walk_down
from keystone_action.files.paths import PathProblem, make_directories_inside, resolve_inside, write_inside
from keystone_action.files.workspace import copy_tree
from keystone_action.runner.cell.shared_copies import SetupSteps, fingerprint
from keystone_action.runner.preflight import readable_folders, with_search_path
from keystone_action.runner.started_run import run_shielded
from keystone_action.sandbox.programs import started_program
from keystone_action.sandbox.protocol import Sandbox, SandboxProvider
from keystone_action.spec.expressions import leaves
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.spec.models.fields import ShellCommand
from keystone_action.spec.models.task import SetupFile
from keystone_action.system.command import Command, CommandLimits, shown_command

if TYPE_CHECKING:
    from asyncio import Task

    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.spec import Invariant
    from keystone_action.spec.models.task import Setup

_DEBIAN = "on Debian and Ubuntu: apt-get install python3-venv; or set `base:` to an image that has it"


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """Where `setup.packages` are. directory: to be given to every sandbox of the cell as `readable`; None without
    packages. variables: PATH with its `bin` first, and VIRTUAL_ENV, for agent and checks."""

    directory: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


async def make_environment(
    packages: Sequence[str],
    *,
    provider: SandboxProvider,
    directory: Path,
    limits: CommandLimits,
    readable: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> PythonEnvironment:
    """Install packages (requirement specifiers as pip takes them) into a new virtual environment in `directory`.

    environment: `setup.env`, where PIP_INDEX_URL and the like belong. readable: folders that its values name. Without
    packages nothing is made or run.
    Raises HarnessError: no python3, no venv module, a package that can't be installed, with what pip said.
    """
    if not packages:
        return PythonEnvironment()
    await anyio.to_thread.run_sync(lambda: directory.mkdir(parents=True, exist_ok=True))
    sandbox = await provider.open(directory, limits=limits, readable=readable, environment=dict(environment or {}))
    try:
        path = await _make(sandbox)
        argv = ("venv/bin/python", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--")
        done = await sandbox.run(Command((*argv, *packages)))
        if not done.succeeded:
            raise HarnessError(f"setup.packages: pip could not install {', '.join(packages)}: {done.failure()}")
    finally:
        with anyio.CancelScope(shield=True):
            await sandbox.close()
    await anyio.to_thread.run_sync(_close_to_others, directory)
    home = f"{sandbox.workspace_inside}/venv"
    return PythonEnvironment(directory, {"PATH": f"{home}/bin:{path}", "VIRTUAL_ENV": home})


async def _make(sandbox: Sandbox) -> str:
    """Make the virtual environment; returns the PATH of the sandbox."""
    if sandbox.which("python3") is None:
        raise HarnessError("setup.packages: python3 is not in this sandbox", help=_DEBIAN)
    done = await sandbox.run(Command(("python3", "-m", "venv", "venv")))
    if not done.succeeded:
        raise HarnessError(
            f"setup.packages: python3 -m venv failed in this sandbox: {done.failure()}",
            help=f"it needs the modules venv and ensurepip; {_DEBIAN}",
        )
    done = await sandbox.run(Command(("sh", "-c", 'printf %s "$PATH"')))
    return done.stdout.text()


def keep_environment(directory: Path, copy: Path) -> tuple[str, ...]:
    """Copy what `make_environment` made in `directory`, which lies in the cell's area, to the folder `copy`.

    Returns the files that name that area: a program says in its first line which interpreter runs it. Raises OSError.
    """
    copy_all(directory, copy)
    area = re.compile(re.escape(os.fsencode(directory.parent.name)))
    files = (path for path in copy.rglob("*") if path.is_file() and not path.is_symlink())
    return tuple(str(path.relative_to(copy)) for path in files if file_holds(str(path), area))


def put_environment(
    copy: Path, naming: Sequence[str], made: PythonEnvironment, *, directory: Path
) -> PythonEnvironment:
    """Put such a copy into the area of another cell, whose name is as long as that of the first. Raises OSError."""
    assert made.directory is not None
    old, new = (os.fsencode(place.parent.name) for place in (made.directory, directory))
    assert len(old) == len(new)  # it stands in compiled code, too, where lengths are told
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    copy_all(copy, directory)
    for name in naming:
        _replace_bytes(directory / name, old, new)
    variables = {name: value.replace(str(made.directory), str(directory)) for name, value in made.variables.items()}
    return PythonEnvironment(directory, variables)


def _replace_bytes(file: Path, old: bytes, new: bytes) -> None:
    status, content = file.stat(), file.read_bytes()
    file.unlink()
    file.write_bytes(content.replace(old, new))
    file.chmod(stat.S_IMODE(status.st_mode))
    # Compiled Python counts only beside a source of the time that it was made from.
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


async def write_files(
    files: Sequence[SetupFile], workspace: Path, directory: Path, withheld: Collection[Path] = ()
) -> None:
    """Write the files of `setup` into the workspace. directory: the spec's. Raises HarnessError."""
    for index, file in enumerate(files):
        try:
            await anyio.to_thread.run_sync(_write, file, workspace, directory, withheld)
        except (PathProblem, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise HarnessError(f"setup.files[{index}] ({file.path}) can't be written: {reason}") from error


async def run_commands(
    commands: Sequence[str], *, sandbox: Sandbox, environment: Mapping[str, str], timeout: float | None = None
) -> None:
    """Run the commands of `setup` in order, as the agent's user. timeout: seconds for each of them.

    Raises HarnessError for the first that does not end with 0, with the tail of both its streams.
    """
    for index, command in enumerate(commands):
        done = await sandbox.run(Command(("sh", "-c", command), env=environment, timeout=timeout))
        if not done.succeeded:
            raise HarnessError(f"setup.commands[{index}] (`{shown_command(command)}`) failed: {done.failure()}")


def _write(file: SetupFile, workspace: Path, directory: Path, withheld: Collection[Path]) -> None:
    if file.from_ is None:
        write_inside(workspace, file.path, (file.content or "").encode(), file.mode or 0o644)
        return
    source = directory / file.from_
    if source.is_dir():
        make_directories_inside(workspace, file.path)
        target = resolve_inside(workspace, file.path)
        copy_tree(source, target, withheld=withheld)
        give_to_owner(workspace, target)
        return
    mode = stat.S_IMODE(source.stat().st_mode) & 0o777 if file.mode is None else file.mode
    write_inside(workspace, file.path, source.read_bytes(), mode)


def _close_to_others(directory: Path) -> None:
    """Nobody but us may write in it, everybody may read."""
    status = directory.lstat()
    owner = status.st_uid
    _close_one(str(directory), status, owner, None)
    for _, folder, entries in walk_down(directory):
        for entry in entries:
            _close_one(entry.name, entry.stat(follow_symlinks=False), owner, folder)


def _close_one(name: str, status: os.stat_result, owner: int, folder: int | None) -> None:
    # What an installer linked in from elsewhere is not its user's, and keeps its modes.
    if status.st_uid != owner:
        return
    if os.geteuid() == 0:
        os.chown(name, 0, 0, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        mode = status.st_mode & 0o755 | (0o555 if stat.S_ISDIR(status.st_mode) else 0o444)
        os.chmod(name, mode, dir_fd=folder)


WORTH_KEEPING = 1.0
"""Seconds that commands must take: what is quicker is run again sooner than it is copied."""


async def make_environment_once(under_way: CellUnderWay) -> PythonEnvironment:
    """The packages of `setup`, in an environment of this cell's own. Raises HarnessError."""
    setup, run, area = under_way.setup, under_way.run, under_way.roots.area
    variables = {**run.certificates.variables, **setup.env}
    directory = area / "packages"
    make = partial(
        make_environment,
        setup.packages,
        provider=run.provider,
        directory=directory,
        limits=under_way.limits,
        readable=run.certificates.folders,
        environment=variables,
    )
    if not setup.packages or not _may_share(under_way):
        return await make()
    told = sorted((name, value.replace(str(area), "")) for name, value in variables.items())
    group = repr(("packages", list(setup.packages), told, under_way.limits))
    steps = SetupSteps(make, partial(keep_environment, directory), partial(put_environment, directory=directory))
    return await run.kept_setups.once(group, str, steps)


async def run_commands_once(under_way: CellUnderWay, base: Mapping[str, str]) -> None:
    """The commands of `setup`, in the cell's sandbox. base: what they find in their environment, below what `setup.env`
    says. Raises HarnessError."""
    setup, run = under_way.setup, under_way.run
    if not setup.commands:
        return
    folders = under_way.sandbox.written_folders()
    steps = _Commands(under_way, {**base, **under_way.environment(), **setup.env}, folders or ())
    alike = run.has_alike(under_way.cell) and not sees_others(under_way)
    if folders is None or not alike or not _may_share(under_way):
        await steps.make()
        return
    group = repr(("commands", under_way.spec.id, list(setup.packages), list(setup.commands), under_way.limits))
    await run.kept_setups.once(group, steps.inputs, SetupSteps(steps.make, steps.keep, steps.put))


def own_folders(under_way: CellUnderWay) -> tuple[Path, ...]:
    """What commands can read of the cell's, besides its workspace: the prompt, the agent's own code."""
    given = (under_way.inputs.directory, under_way.agent_directory)
    return tuple(path for path in given if path is not None)


def sees_others(under_way: CellUnderWay) -> bool:
    """Whether commands can see what differs from cell to cell, whatever they are told."""
    return bool(under_way.spec.services or under_way.spec.fixtures)


def _may_share(under_way: CellUnderWay) -> bool:
    """Where nothing isolates agents, they reach all that could be kept."""
    run = under_way.run
    return run.provider.isolation != ("none",) and not run.neighbours[under_way.spec.id].only_cell


class _Commands:
    """See `SetupSteps`. folders: all that the commands can write."""

    def __init__(self, under_way: CellUnderWay, environment: Mapping[str, str], folders: tuple[Path, ...]) -> None:
        self._under_way = under_way
        self._environment = environment
        self._folders = folders
        self._seconds = 0.0
        self._git: GitState | None = None

    def inputs(self) -> str:
        under_way = self._under_way
        return fingerprint(under_way.roots.workspace, self._environment, own_folders(under_way))

    async def make(self) -> None:
        under_way = self._under_way
        with contextlib.suppress(OSError):  # what can't be read can't be kept either
            self._git = await anyio.to_thread.run_sync(git_state, self._folders)
        started = time.monotonic()
        await run_commands(under_way.setup.commands, sandbox=under_way.sandbox, environment=self._environment)
        self._seconds = time.monotonic() - started

    def keep(self, copy: Path) -> tuple[int, ...] | None:
        run, sandbox = self._under_way.run, self._under_way.sandbox
        if sandbox.written_folders() is None or self._seconds < WORTH_KEEPING or git_state(self._folders) != self._git:
            return None
        # All folders of the cell lie in the run's, and the user is no other cell's.
        names = [run.roots.path.name, *([str(sandbox.uid)] if sandbox.uid is not None else [])]
        return copy_exactly(self._folders, copy, names=[os.fsencode(name) for name in names])

    def put(self, copy: Path, modes: tuple[int, ...], _: None) -> None:
        put_copies(copy, modes, self._folders)


async def open_sandbox(under_way: CellUnderWay, sandboxes: Task[DockerSandboxes] | None) -> None:
    """With files, packages and commands of `setup`. sandboxes: those of the image, None for the process sandbox.
    Raises HarnessError."""
    under_way.setup = under_way.fill(under_way.spec.setup)
    under_way.readable = own_folders(under_way)
    mask = under_way.run.masker.text
    for command in under_way.setup.commands:
        under_way.tell(f"setup $ {shown_command(mask(command))}")
    if sandboxes is None:
        variables = await _open_process(under_way)
    else:
        variables = await _open_container(under_way, await sandboxes)
    under_way.admit(under_way.sandbox)
    if under_way.run.options.caller.verbose:
        from keystone_action.runner.cell.running_cell import telling_provider, telling_sandbox

        under_way.provider = telling_provider(under_way.provider, under_way.tell, mask)
        under_way.sandbox = telling_sandbox(under_way.sandbox, under_way.tell, mask)
    under_way.check_environment = {**variables, **under_way.environment()}


async def _open_process(under_way: CellUnderWay) -> Mapping[str, str]:
    """Returns what is under every command's environment."""
    roots, provider, certificates = under_way.roots, under_way.run.provider, under_way.run.certificates
    shown = readable_folders(under_way.loaded, under_way.run.options)
    packages = await make_environment_once(under_way)
    made = [packages.directory] if packages.directory is not None else []
    readable = under_way.readable = (*under_way.readable, *made, *shown)
    base = with_search_path(packages.variables, shown)
    sandbox = await provider.open(
        roots.workspace,
        limits=under_way.limits,
        readable=(*readable, *certificates.folders),
        environment=base,
        areas=(roots.area,),
    )
    under_way.stack.push_async_callback(run_shielded, sandbox.close)
    under_way.provider, under_way.sandbox = provider, sandbox
    await _write_files(under_way)
    await run_commands_once(under_way, {**base, **certificates.variables})
    return base


async def _open_container(under_way: CellUnderWay, provider: DockerSandboxes) -> Mapping[str, str]:
    """Returns what is under every command's environment: how the proxy is reached."""
    under_way.setup = setup = _with_program(under_way)
    workspace, readable, stack = under_way.roots.workspace, under_way.readable, under_way.stack
    await _write_files(under_way)
    if setup.packages:
        provider = await provider.with_packages(setup.packages, setup.env)
        stack.push_async_callback(run_shielded, provider.close)
    network, proxy = under_way.network, under_way.proxy
    name, hosts = (network.name, dict(network.hosts)) if network is not None else ("none", {})
    provider = provider.with_network(name, hosts, dns=network.dns if network is not None else ())
    variables = dict(proxy.environment) if proxy is not None else {}
    sandbox = await provider.open(workspace, limits=under_way.limits, readable=readable, environment=variables)
    stack.push_async_callback(run_shielded, sandbox.close)
    under_way.sandbox = sandbox
    if setup.commands:
        from keystone_action.sandbox.containers.setup import OPEN_NETWORK

        found = under_way.environment()
        is_open = under_way.spec.egress.default != "deny"
        provider = await provider.with_commands(
            sandbox,
            setup.commands,
            {**found, **setup.env},
            networks=(name,) if is_open else (OPEN_NETWORK, name),
            extra_hosts=hosts,
            fingerprint=None if sees_others(under_way) else partial(fingerprint, workspace, found, readable),
            secrets=tuple(under_way.names["secrets"].values()),
        )
        stack.push_async_callback(run_shielded, provider.close)
    under_way.provider = provider
    return variables


def _with_program(under_way: CellUnderWay) -> Setup:
    """The setup in an image: a known agent whose version the spec names is installed after all else."""
    agent, setup = under_way.agent, under_way.setup
    if not isinstance(agent, PresetAgent) or agent.version is None:
        return setup
    from keystone_action.agents.presets.preset import LATEST, load_preset

    if agent.version == LATEST:
        under_way.notices.append(
            f"agent.version: {LATEST} is the newest of when it was installed; an exact version is always the same"
        )
    install = load_preset(agent.type).install_command(agent.version)
    return setup.model_copy(update={"commands": [*setup.commands, install]})


async def _write_files(under_way: CellUnderWay) -> None:
    directory, withheld = under_way.loaded.directory, under_way.withheld
    await write_files(under_way.setup.files, under_way.roots.workspace, directory, withheld)


async def missing_words(under_way: CellUnderWay) -> None:
    """The programs that commands of checks start with and the sandbox has not, with the place where it hides them."""
    sandbox, search_path = under_way.sandbox, under_way.check_environment.get("PATH")

    def look() -> None:
        missing = (one for one in first_words(under_way.invariants) if sandbox.which(one, search_path) is None)
        under_way.missing_programs = {word: sandbox.find_hidden(word) for word in missing}

    await anyio.to_thread.run_sync(look)


def first_words(invariants: Mapping[str, Invariant]) -> frozenset[str]:
    """The programs that the string commands of checks start with."""
    words = (
        started_program(leaf.value)
        for invariant in invariants.values()
        for leaf in leaves(invariant.check)
        if leaf.marker(ShellCommand) is not None
    )
    return frozenset(word for word in words if word is not None and "{{" not in word)
