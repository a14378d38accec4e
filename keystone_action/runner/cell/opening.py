"""The agent's sandbox, ready for it: `setup` done, and the network as the spec wants it.

As processes: Python packages in an environment of the cell, commands as the agent's user; cells in which both would do
the same get copies of what they left in the first. In containers: packages in a cached layer of the image, commands as
root in the workspace, and what both leave in the system is there for the agent and for every check (contract, 1.1 and
5.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action.runner.cell.layout import first_words, run_shielded
from keystone_action.runner.cell.setup.commands import write_files
from keystone_action.runner.cell.setup.kept import fingerprint
from keystone_action.runner.cell.setup.processes import (
    make_environment_once,
    own_folders,
    run_commands_once,
    sees_others,
)
from keystone_action.runner.readable_folders import readable_folders, with_search_path
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.system.command import shown_command

if TYPE_CHECKING:
    from asyncio import Task

    from keystone_action.runner.cell.under_way import CellUnderWay
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.spec.models.task import Setup


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
    if under_way.run.options.verbose:
        from keystone_action.runner.cell.telling import telling_provider, telling_sandbox

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
