"""Making what the cells of a run share, and seeing to it that all of it is stopped again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import SandboxError, UsageError
from keystone_action.evidence.masking import Masker
from keystone_action.runner.cell.shared_copies import FirstCopies, KeptSetups
from keystone_action.runner.journal.identification import script_folders
from keystone_action.runner.model_access import LazyGateways, LazyJudge, provider_keys
from keystone_action.runner.roots import Certificates, HostCheckouts, Roots, copy_certificates
from keystone_action.runner.secrets import SpecSecrets, keys_handed_out, resolve_secrets
from keystone_action.runner.shared_services import neighbours_of_specs
from keystone_action.runner.started_run import (
    AgentVersions,
    AuthorFiles,
    AuthorMaterial,
    PlannedRun,
    RunServers,
    SharedCopies,
    StartedRun,
    run_shielded,
)
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.spec.loading.loaded_spec import enclosing_root

if TYPE_CHECKING:
    from keystone_action.runner.model_access import Spending
    from keystone_action.runner.shared_services import Containers
    from keystone_action.sandbox.processes.client import Launching
    from keystone_action.spec.loading.loaded_spec import LoadedSpec


async def start_run(
    planned: PlannedRun,
    spending: Spending,
    may_start_agent: Callable[[], Awaitable[None]],
    stack: AsyncExitStack,
    early: Launching | None = None,
) -> StartedRun:
    """Start everything but services, which the first cell that needs them starts. `stack` stops it all, in reverse
    order. early: what was begun of the process sandbox.

    Raises SandboxError. A secret that can't be resolved is told by the cells of its spec.
    """
    options, progress = planned.options, planned.progress
    roots = _make_roots(planned, stack)
    # The engine's machine may see another directory of ours, but not the system's temporary one.
    elsewhere = planned.facilities.images and options.caller.scratch is not None
    container_roots = _make_roots(planned, stack, options.caller.scratch) if elsewhere else roots
    secrets = {
        loaded.spec.id: await anyio.to_thread.run_sync(resolve_secrets, loaded, options) for loaded in planned.wanted
    }
    values = tuple(value for entry in secrets.values() for value in entry.values.values())
    values += tuple(value for loaded in planned.wanted for value in keys_handed_out(loaded, options.caller.environ))
    values += provider_keys(planned.plan.cells, options)
    progress.secrets(values)
    masker = Masker(values)
    author = await _take_author_material(planned, secrets, roots, container_roots)
    hidden = [planned.directory, *_checkouts(planned.specs)]
    provider = await process.start(roots.sandboxes, hidden=hidden, early=early)
    stack.push_async_callback(run_shielded, provider.close)
    await _insist_on_closed_networks(planned, provider)
    containers = _open_containers(planned, container_roots, provider, masker)
    if containers is not None:
        stack.push_async_callback(run_shielded, containers.close)
        if options.images.docker_network is not None:
            await stack.enter_async_context(containers.networks.membership(options.images.docker_network))
    return StartedRun(
        planned=planned,
        may_start_agent=may_start_agent,
        roots=roots,
        container_roots=container_roots,
        provider=provider,
        containers=containers,
        servers=_open_servers(planned, provider, containers, stack),
        author=author,
        copies=SharedCopies(workspaces=FirstCopies(roots.private), setups=KeptSetups(roots.private)),
        versions=AgentVersions(),
        neighbours=neighbours_of_specs(options, planned.plan),
        judge=LazyJudge(options, progress, spending),
        masker=masker,
        spending=spending,
    )


_NO_WAY = (
    "it needs seccomp, agents that are isolated from us, and a network namespace (root with CAP_SYS_ADMIN, or user"
    " namespaces) or Landlock's rules for TCP (Linux 6.7)"
)


async def _insist_on_closed_networks(planned: PlannedRun, provider: process.ProcessSandboxes) -> None:
    """Where process sandboxes are to have one. Raises UsageError where this machine has no way to close it."""
    images = planned.facilities.images
    closed = [one for one in planned.wanted if one.spec.egress.default == "deny" and one.spec.id not in images]
    if closed and await provider.networks.find_way() is None:
        raise UsageError(
            f"{closed[0].path}: network.egress: deny can't be kept by the process sandbox on this machine: {_NO_WAY}",
            help="set base to run in a container, which has a network of its own, or leave network.egress out",
        )


KEPT_SCRIPT = 8 << 20
"""Bytes of an SQL script that is kept from before the first agent like other files; a larger one is read piece by
piece, where a fixture runs it."""


async def _take_author_material(
    planned: PlannedRun, secrets: Mapping[str, SpecSecrets], roots: Roots, container_roots: Roots
) -> AuthorMaterial:
    """Raises HarnessError."""
    files = AuthorFiles()
    for loaded in planned.wanted:
        scripts = {path for path in loaded.sql_files if path.stat().st_size > KEPT_SCRIPT}
        files.add_all([path for path in loaded.author_files if path not in scripts], loaded.withheld)
    certificates = await _find_certificates(planned, roots)
    host = HostCheckouts(roots.cells)
    left_out = [planned.directory, planned.options.caller.directory / ".keystone", roots.path, container_roots.path]
    folders = [one.directory for one in planned.wanted if script_folders(one)]
    await anyio.to_thread.run_sync(host.add_all, folders, left_out)
    return AuthorMaterial(secrets=secrets, files=files, host=host, certificates=certificates)


async def _find_certificates(planned: PlannedRun, roots: Roots) -> Certificates:
    """Raises SandboxError."""
    if not any(one.spec.setup.packages or one.spec.setup.commands for one in planned.wanted):
        return Certificates()
    folder = roots.path / "certificates"
    try:
        return await anyio.to_thread.run_sync(copy_certificates, planned.options.caller.environ, folder)
    except OSError as error:
        raise SandboxError(f"the host's certificates can't be copied to {folder}: {error.strerror}") from error


def _checkouts(specs: Sequence[LoadedSpec]) -> list[Path]:
    found = {enclosing_root(place) for one in specs for place in (one.directory, one.code_directory)}
    return sorted(found | {root for one in specs for root in one.further_roots})


def _make_roots(planned: PlannedRun, stack: AsyncExitStack, parent: Path | None = None) -> Roots:
    roots = Roots(planned.run_id, parent)
    if planned.options.running.keep:
        planned.progress.note(f"workspaces are kept in {roots.path}")
    else:
        stack.push_async_callback(_in_thread, roots.remove)
    return roots


def _open_servers(
    planned: PlannedRun, provider: process.ProcessSandboxes, containers: Containers | None, stack: AsyncExitStack
) -> RunServers:
    gateways = LazyGateways()
    if not any(loaded.spec.services for loaded in planned.specs):
        stack.push_async_callback(run_shielded, gateways.close)
        return RunServers(gateways=gateways)
    from keystone_action.runner.shared_services import ServicePool, ServicesStarter

    starter = ServicesStarter(provider, containers)
    stack.push_async_callback(run_shielded, starter.close)
    pool = ServicePool(starter)
    stack.push_async_callback(run_shielded, pool.close)
    stack.push_async_callback(run_shielded, gateways.close)
    return RunServers(gateways=gateways, pool=pool, defects=lambda: starter.defects)


def _open_containers(
    planned: PlannedRun, roots: Roots, provider: process.ProcessSandboxes, masker: Masker
) -> Containers | None:
    client = planned.facilities.client
    if client is None:
        return None
    from keystone_action.runner.shared_services import Containers

    return Containers(
        client,
        planned.run_id,
        root=roots.sandboxes / "containers",
        host=provider,
        options=planned.options,
        progress=planned.progress,
        logs=planned.directory / "services",
        mask=masker.text,
    )


async def _in_thread(function: Callable[[], None]) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await anyio.to_thread.run_sync(function)
        except RuntimeError:  # the machine has no thread left; what it does can be done again
            function()
