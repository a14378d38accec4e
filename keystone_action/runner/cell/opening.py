"""The agent's sandbox, ready for it: `setup` done, and the network as the spec wants it.

As processes: Python packages in an environment of the cell, commands as the agent's user. In containers: packages in a
cached layer of the image, commands as root in the workspace, and what both leave in the system is there for the agent
and for every check (contract, 1.1 and 5.2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.files.workspace import snapshot
from keystone_action.runner.cell.layout import apart, shielded
from keystone_action.runner.cell.setup import make_environment, run_commands, write_files
from keystone_action.runner.readable_folders import with_search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AsyncExitStack

    from keystone_action.command import Limits
    from keystone_action.sandbox.base import Sandbox, SandboxProvider
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.spec import Setup

OPEN_NETWORK = "bridge"
"""The engine's own: where installers find their registries, whatever the agent's policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be opened. readable: directories of ours that code inside may read. environment: makes the variables
    of setup's commands from the workspace's path inside. secrets: values that no image may keep. shown: folders
    of this machine that a process sandbox shows. directory: the spec's. packages_directory: a new one."""

    setup: Setup
    workspace: Path
    directory: Path
    packages_directory: Path
    withheld: Collection[Path]
    readable: Sequence[Path]
    limits: Limits
    secrets: Collection[str]
    shown: tuple[Path, ...]
    environment: Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Opened:
    """provider: opens the sandboxes of checks, as the agent's was. variables: under every command's environment."""

    provider: SandboxProvider
    sandbox: Sandbox
    readable: tuple[Path, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellNetwork:
    """How the containers of a cell are connected. network: its name on the engine. open: whether it leads outside.
    shared_state: setup's commands can see what differs from cell to cell (services, fixtures). variables: the proxy's,
    for the agent and checks."""

    network: str
    hosts: Mapping[str, str]
    dns: tuple[str, ...]
    open: bool
    shared_state: bool
    variables: Mapping[str, str]


async def open_process(request: Request, provider: SandboxProvider, stack: AsyncExitStack) -> Opened:
    """In the process sandbox. Raises HarnessError."""
    setup = request.setup
    packages = await make_environment(
        setup.packages,
        provider=provider,
        directory=request.packages_directory,
        limits=request.limits,
        environment=setup.env,
    )
    made = [packages.directory] if packages.directory is not None else []
    readable = (*request.readable, *made, *request.shown)
    base = with_search_path(packages.variables, request.shown)
    sandbox = await provider.open(request.workspace, limits=request.limits, readable=readable, environment=base)
    stack.push_async_callback(shielded, sandbox.close)
    await write_files(setup.files, request.workspace, request.directory, request.withheld)
    variables = {**request.environment(sandbox.workspace_inside), **setup.env}
    await run_commands(setup.commands, sandbox=sandbox, environment=variables)
    return Opened(provider, sandbox, readable, base)


async def open_container(
    request: Request, sandboxes: DockerSandboxes, network: CellNetwork, stack: AsyncExitStack
) -> Opened:
    """In a container of an image. Raises HarnessError."""
    setup, workspace = request.setup, request.workspace
    await write_files(setup.files, workspace, request.directory, request.withheld)
    provider = sandboxes
    if setup.packages:
        provider = await provider.with_packages(setup.packages, setup.env)
        stack.push_async_callback(shielded, provider.close)
    provider = provider.with_network(network.network, network.hosts, dns=network.dns)
    environment = dict(network.variables)
    sandbox = await provider.open(workspace, limits=request.limits, readable=request.readable, environment=environment)
    stack.push_async_callback(shielded, sandbox.close)
    if setup.commands:
        variables = request.environment(sandbox.workspace_inside)
        provider = await provider.with_commands(
            sandbox,
            setup.commands,
            {**variables, **setup.env},
            networks=(network.network,) if network.open else (OPEN_NETWORK, network.network),
            extra_hosts=network.hosts,
            fingerprint=None if network.shared_state else partial(fingerprint, workspace, variables, request.readable),
            secrets=request.secrets,
        )
        stack.push_async_callback(shielded, provider.close)
    return Opened(provider, sandbox, tuple(request.readable), environment)


def fingerprint(workspace: Path, variables: Mapping[str, str], readable: Sequence[Path] = ()) -> str:
    """Equal for cells in which a command finds the same: variables, and what is in the workspace and in the directories
    that it can read besides (the agent's own code, the prompt): entries with modes and contents, and the commit. Where
    the cell's directories lie is no difference."""
    digest = hashlib.sha256()
    for name, value in sorted(variables.items()):
        digest.update(repr((name, value.replace(str(workspace.parent), ""))).encode("utf-8", "surrogateescape"))
    for directory in (workspace, *readable):
        for line in _content(directory):
            digest.update(repr((directory.name, line)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content(directory: Path) -> Iterator[tuple[str, object]]:
    yield from sorted(snapshot(directory).items())
    git = directory / ".git"
    for file in [git / "HEAD", git / "packed-refs", *sorted((git / "refs").rglob("*"))]:
        if file.is_file() and not file.is_symlink():
            yield str(file.relative_to(git)), file.read_bytes()


async def missing_words(
    words: frozenset[str], sandbox: Sandbox, search_path: str | None, *, inline: bool
) -> Mapping[str, Path | None]:
    """Those of these programs that the sandbox has not, with the place where it hides them. search_path: PATH, where
    `setup.env` sets it."""

    def look() -> dict[str, Path | None]:
        missing = (word for word in words if sandbox.which(word, search_path) is None)
        return {word: sandbox.hidden(word) for word in missing}

    return await apart(look, inline=inline)
