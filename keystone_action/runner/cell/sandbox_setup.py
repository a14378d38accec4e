"""The agent's sandbox, ready for it: `setup` done, and the network as the spec wants it (contract, 1.1 and 5.2).

As processes: Python packages in an environment of the cell (`python_packages.py`), commands as the agent's user. Where
setup does the same in several cells, the first runs it and the others get copies of what it left (`shared_copies.py`).
In containers: packages in a cached layer of the image, commands as root in the workspace; what both leave in the system
is there for the agent and for every check.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from keystone_action.agents.program import agent_environment
from keystone_action.errors import HarnessError
from keystone_action.files.copies import GitState, copy_exactly, git_state, put_copies
from keystone_action.runner.cell.clock import begin_time, lay_out_clock, require_effect
from keystone_action.runner.cell.fixtures import write_files
from keystone_action.runner.cell.python_packages import (
    PythonEnvironment,
    keep_environment,
    make_environment,
    put_environment,
)
from keystone_action.runner.cell.running_cell import verbose_provider, verbose_sandbox
from keystone_action.runner.cell.shared_copies import SetupSteps, fingerprint
from keystone_action.runner.preflight import readable_folders, with_search_path
from keystone_action.runner.roots import make_readable
from keystone_action.runner.started_run import run_shielded
from keystone_action.sandbox.processes.network import ClosedProvider
from keystone_action.sandbox.programs import started_program
from keystone_action.sandbox.protocol import Sandbox, SandboxProvider
from keystone_action.spec.expressions import leaves
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.spec.models.fields import ShellCommand
from keystone_action.system.command import Command, shown_command

if TYPE_CHECKING:
    from asyncio import Task
    from contextlib import AsyncExitStack

    from keystone_action.agents.program import Inputs
    from keystone_action.engine.images import Image
    from keystone_action.evidence.model import Address
    from keystone_action.runner.cell.connections import Connections
    from keystone_action.runner.cell.running_cell import Expressions, RunningCell
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.spec import Invariant
    from keystone_action.spec.models.task import Setup

WORTH_KEEPING = 1.0
"""Seconds that commands must take: what is quicker is run again sooner than it is copied."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What the agent is to do, and what it is given for that."""

    agent: AgentBase
    """Interpolated."""

    prompt: str
    inputs: Inputs
    """Files of ours that it may read."""

    directory: Path | None
    """Its own code; None without any."""

    turns: tuple[str, ...] = ()
    """What is said after the prompt."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """What commands can read of the cell's besides its workspace: the prompt, the agent's own code."""
        return (self.inputs.directory, *([self.directory] if self.directory is not None else []))


@dataclass(frozen=True, slots=True)
class CellVariables:
    """What every command in the cell's sandbox finds in its environment besides what the sandbox was opened with."""

    task: AgentTask
    addresses: Mapping[str, Address]
    seed: int | None
    setup_env: Mapping[str, str]
    clock: Mapping[str, str] = field(default_factory=dict)
    """For the agent and checks: setup runs in the machine's time, or no registry's certificate would be valid."""

    def of_command(self, workspace_inside: str) -> dict[str, str]:
        """For commands of `setup`. workspace_inside: as the sandbox sees it."""
        return self._variables(workspace_inside)

    def of_check(self, workspace_inside: str) -> dict[str, str]:
        """For commands of checks."""
        return {**self.clock, **self.of_command(workspace_inside)}

    def of_agent(
        self, workspace_inside: str, model_variables: Mapping[str, str] | None, turn: int | None = None
    ) -> dict[str, str]:
        """For the agent. turn: of a conversation. Raises HarnessError for a variable that no process can be given."""
        own = self._variables(
            workspace_inside,
            model_variables=model_variables,
            agent_directory=self.task.directory,
            agent_env=self.task.agent.env,
            turn=turn,
        )
        return {**self.clock, **own}

    def _variables(self, workspace_inside: str, **of_agent: Any) -> dict[str, str]:
        return agent_environment(
            prompt=self.task.prompt,
            prompt_file=self.task.inputs.prompt_file,
            workspace=workspace_inside,
            services=self.addresses,
            seed=self.seed,
            setup_env=self.setup_env,
            **of_agent,
        )


@dataclass(frozen=True, slots=True)
class OpenedSandbox:
    """The agent's sandbox."""

    sandbox: Sandbox

    provider: SandboxProvider
    """Opens the sandboxes of checks as this one was opened."""

    readable: tuple[Path, ...]
    """Directories of ours that code in these may read."""

    variables: CellVariables

    check_environment: Mapping[str, str]
    """What commands of checks get besides their own `env`."""


async def open_sandbox(
    running: RunningCell,
    task: AgentTask,
    expressions: Expressions,
    connections: Connections,
    images: Task[DockerSandboxes] | None,
    stack: AsyncExitStack,
) -> OpenedSandbox:
    """With files, packages and commands of `setup`. images: the sandboxes of the cell's image, None for the process
    sandbox. stack: closes it. Raises HarnessError."""
    setup = expressions.fill(running.spec.setup)
    progress, mask = running.progress, running.run.masker.text
    for command in setup.commands:
        progress.tell(f"setup $ {shown_command(mask(command))}")
    wanted = running.spec.determinism.clock
    folder = await anyio.to_thread.run_sync(lay_out_clock, running.roots.area) if wanted is not None else None
    making = _SandboxMaking(running, task, setup, expressions, connections, stack, folder)
    opened = await (making.as_process() if images is None else making.in_container(await images))
    if wanted is not None and folder is not None:
        clock, inside = begin_time(wanted, folder), opened.sandbox.workspace_inside
        variables = replace(opened.variables, clock=clock.environment)
        check_environment = {**opened.check_environment, **variables.of_check(inside)}
        opened = replace(opened, variables=variables, check_environment=check_environment)
        await require_effect(clock, opened.sandbox, variables.of_agent(inside, None), running.image)
    connections.users.admit(opened.sandbox)
    if not running.options.caller.verbose:
        return opened
    return replace(
        opened,
        provider=verbose_provider(opened.provider, progress.tell, mask),
        sandbox=verbose_sandbox(opened.sandbox, progress.tell, mask),
    )


@dataclass(frozen=True, slots=True)
class _SandboxMaking:
    """See `open_sandbox`."""

    running: RunningCell
    task: AgentTask
    setup: Setup
    expressions: Expressions
    connections: Connections
    stack: AsyncExitStack
    clock_folder: Path | None
    """Of `determinism.clock`."""

    @property
    def _folders(self) -> tuple[Path, ...]:
        """What code in the sandbox may read of ours."""
        return (*self.task.folders, *([self.clock_folder] if self.clock_folder is not None else []))

    async def as_process(self) -> OpenedSandbox:
        running, setup = self.running, self.setup
        roots, run = running.roots, running.run
        certificates = run.author.certificates
        shown = readable_folders(running.loaded, running.options)
        packages = await _make_environment_once(running, setup)
        made = (packages.directory,) if packages.directory is not None else ()
        readable = (*self._folders, *made, *shown)
        base = with_search_path(packages.variables, shown)
        sandbox = await run.provider.open(
            roots.workspace,
            limits=running.limits,
            readable=(*readable, *certificates.folders),
            environment=base,
            areas=(roots.area,),
        )
        self.stack.push_async_callback(run_shielded, sandbox.close)
        await self._write_files()
        variables = self._variables(setup)
        if setup.commands:
            found = variables.of_command(sandbox.workspace_inside)
            environment = {**base, **certificates.variables, **found, **setup.env}
            await _run_commands_once(_SetupCommands(running, setup, sandbox, self.task.folders, environment))
        if running.spec.egress.default != "deny":
            return self._opened(sandbox, run.provider, readable, variables, base)
        sandbox.network = run.provider.networks.closed(self.connections.ways_out())
        provider = ClosedProvider(run.provider, sandbox.network)
        return self._opened(sandbox, cast("SandboxProvider", provider), readable, variables, base)

    async def in_container(self, provider: DockerSandboxes) -> OpenedSandbox:
        running, stack = self.running, self.stack
        setup = self._with_program()
        await self._write_files()
        if setup.packages:
            provider = await provider.with_packages(setup.packages, setup.env)
            stack.push_async_callback(run_shielded, provider.close)
        network, proxy = self.connections.network.own, self.connections.network.proxy
        name, hosts = (network.name, dict(network.hosts)) if network is not None else ("none", {})
        provider = provider.with_network(name, hosts, dns=network.dns if network is not None else ())
        base = dict(proxy.environment) if proxy is not None else {}
        workspace, readable = running.roots.workspace, self._folders
        if self.connections.authority is not None:
            folder = running.roots.area / "trust"
            base |= await anyio.to_thread.run_sync(_lay_out_trust, self.connections.authority, provider.image, folder)
            readable = (*readable, folder)
        sandbox = await provider.open(workspace, limits=running.limits, readable=readable, environment=base)
        stack.push_async_callback(run_shielded, sandbox.close)
        variables = self._variables(setup)
        if setup.commands:
            from keystone_action.sandbox.containers.setup import OPEN_NETWORK

            found = variables.of_command(sandbox.workspace_inside)
            is_open = running.spec.egress.default != "deny"
            provider = await provider.with_commands(
                sandbox,
                setup.commands,
                {**found, **setup.env},
                networks=(name,) if is_open else (OPEN_NETWORK, name),
                extra_hosts=hosts,
                fingerprint=None
                if _sees_others(running)
                else partial(fingerprint, workspace, found, self.task.folders),
                secrets=tuple(self.expressions.names["secrets"].values()),
            )
            stack.push_async_callback(run_shielded, provider.close)
        return self._opened(sandbox, provider, readable, variables, base)

    def _variables(self, setup: Setup) -> CellVariables:
        seed = self.running.spec.determinism.seed
        return CellVariables(self.task, self.connections.addresses, seed, dict(setup.env))

    def _opened(
        self,
        sandbox: Sandbox,
        provider: SandboxProvider,
        readable: tuple[Path, ...],
        variables: CellVariables,
        base: Mapping[str, str],
    ) -> OpenedSandbox:
        check_environment = {**base, **variables.of_check(sandbox.workspace_inside)}
        return OpenedSandbox(sandbox, provider, readable, variables, check_environment)

    def _with_program(self) -> Setup:
        """The setup in an image: a known agent whose version the spec names is installed after all else."""
        agent, setup = self.task.agent, self.setup
        if not isinstance(agent, PresetAgent) or agent.version is None:
            return setup
        from keystone_action.agents.presets.preset import LATEST, load_preset

        if agent.version == LATEST:
            self.running.progress.note(
                f"agent.version: {LATEST} is the newest of when it was installed; an exact version is always the same"
            )
        install = load_preset(agent.type).install_command(agent.version)
        return setup.model_copy(update={"commands": [*setup.commands, install]})

    async def _write_files(self) -> None:
        running = self.running
        await write_files(self.setup.files, running.roots.workspace, running.loaded.directory, running.withheld)


def _lay_out_trust(authority: bytes, image: Image, folder: Path) -> Mapping[str, str]:
    """The variables by which programs in containers of this image trust the cell's mocks. Raises HarnessError."""
    from keystone_action.network.authority import lay_out_trust

    variables = lay_out_trust(authority, image.certificates(), folder, image.environment.get("JAVA_TOOL_OPTIONS", ""))
    make_readable(folder)
    return variables


def find_missing_programs(running: RunningCell, opened: OpenedSandbox) -> Mapping[str, Path | None]:
    """The programs that commands of checks start with and the sandbox has not, with the place where it hides them.
    Blocking."""
    sandbox, search_path = opened.sandbox, opened.check_environment.get("PATH")
    missing = (one for one in first_words(running.invariants) if sandbox.which(one, search_path) is None)
    return {word: sandbox.find_hidden(word) for word in missing}


def first_words(invariants: Mapping[str, Invariant]) -> frozenset[str]:
    """The programs that the string commands of checks start with."""
    words = (
        started_program(leaf.value)
        for invariant in invariants.values()
        for leaf in leaves(invariant.check)
        if leaf.marker(ShellCommand) is not None
    )
    return frozenset(word for word in words if word is not None and "{{" not in word)


async def _make_environment_once(running: RunningCell, setup: Setup) -> PythonEnvironment:
    """The packages of `setup`, in an environment of this cell's own. Raises HarnessError."""
    area, certificates = running.roots.area, running.run.author.certificates
    variables = {**certificates.variables, **setup.env}
    directory = area / "packages"
    make = partial(
        make_environment,
        setup.packages,
        provider=running.run.provider,
        directory=directory,
        limits=running.limits,
        readable=certificates.folders,
        environment=variables,
    )
    if not setup.packages or not _may_share(running):
        return await make()
    told = sorted((name, value.replace(str(area), "")) for name, value in variables.items())
    group = repr(("packages", list(setup.packages), told, running.limits))
    steps = SetupSteps(make, partial(keep_environment, directory), partial(put_environment, directory=directory))
    return await running.run.copies.setups.once(group, str, steps)


async def _run_commands_once(commands: _SetupCommands) -> None:
    """Raises HarnessError."""
    running, setup = commands.running, commands.setup
    alike = running.run.planned.has_alike(running.cell) and not _sees_others(running)
    if commands.sandbox.written_folders() is None or not alike or not _may_share(running):
        await commands.make()
        return
    group = repr(("commands", running.spec.id, list(setup.packages), list(setup.commands), running.limits))
    await running.run.copies.setups.once(group, commands.inputs, SetupSteps(commands.make, commands.keep, commands.put))


def _sees_others(running: RunningCell) -> bool:
    """Whether commands can see what differs from cell to cell, whatever they are told."""
    return bool(running.spec.services or running.spec.fixtures)


def _may_share(running: RunningCell) -> bool:
    """Where nothing isolates agents, they reach all that could be kept."""
    return running.run.provider.isolation != ("none",) and not running.run.neighbours[running.spec.id].only_cell


class _SetupCommands:
    """The commands of `setup` in the sandbox of one cell; see `SetupSteps`. given: what they can read of the cell's
    besides its workspace."""

    def __init__(
        self,
        running: RunningCell,
        setup: Setup,
        sandbox: Sandbox,
        given: Sequence[Path],
        environment: Mapping[str, str],
    ) -> None:
        self.running, self.setup, self.sandbox = running, setup, sandbox
        self._given, self._environment = given, environment
        self._folders = sandbox.written_folders() or ()
        self._seconds = 0.0
        self._git: GitState | None = None

    def inputs(self) -> str:
        return fingerprint(self.running.roots.workspace, self._environment, self._given)

    async def make(self) -> None:
        with contextlib.suppress(OSError):  # what can't be read can't be kept either
            self._git = await anyio.to_thread.run_sync(git_state, self._folders)
        started = time.monotonic()
        await run_commands(self.setup.commands, sandbox=self.sandbox, environment=self._environment)
        self._seconds = time.monotonic() - started

    def keep(self, copy: Path) -> tuple[int, ...] | None:
        sandbox = self.sandbox
        if sandbox.written_folders() is None or self._seconds < WORTH_KEEPING or git_state(self._folders) != self._git:
            return None
        # All folders of the cell lie in the run's, and no other cell has this user.
        names = [self.running.run.roots.path.name, *([str(sandbox.uid)] if sandbox.uid is not None else [])]
        return copy_exactly(self._folders, copy, names=[os.fsencode(name) for name in names])

    def put(self, copy: Path, modes: tuple[int, ...], _: None) -> None:
        put_copies(copy, modes, self._folders)


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
