"""Making what the cells of a run share, and seeing to it that all of it is stopped again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import SandboxError
from keystone_action.evidence.masking import Masker
from keystone_action.runner.cell.shared_copies import FirstCopies, KeptSetups
from keystone_action.runner.journal.identification import script_folders
from keystone_action.runner.model_access import LazyGateways, LazyJudge, provider_keys
from keystone_action.runner.roots import HostCheckouts, Roots, copy_certificates
from keystone_action.runner.secrets import keys_handed_out, resolve_secrets
from keystone_action.runner.shared_services import neighbours_of_specs
from keystone_action.runner.started_run import RunUnderWay, run_shielded
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.spec.loading.loaded_spec import enclosing_root

if TYPE_CHECKING:
    from keystone_action.runner.shared_services import Containers
    from keystone_action.sandbox.processes.client import Launching
    from keystone_action.spec.loading.loaded_spec import LoadedSpec


async def start_run(run: RunUnderWay, stack: AsyncExitStack, early: Launching | None = None) -> None:
    """Everything but services, which the first cell that needs them starts. `stack` stops it all, in reverse order.
    early: what was begun of the process sandbox.

    Raises SandboxError. A secret that can't be resolved is told by the cells of its spec.
    """
    options, progress = run.options, run.progress
    run.roots = _roots(run, stack)
    # The engine's machine may see another directory of ours, but not the system's temporary one.
    elsewhere = run.facilities.images and options.caller.scratch is not None
    run.container_roots = _roots(run, stack, options.caller.scratch) if elsewhere else run.roots
    run.secrets = {
        loaded.spec.id: await anyio.to_thread.run_sync(resolve_secrets, loaded, options) for loaded in run.wanted
    }
    values = tuple(value for entry in run.secrets.values() for value in entry.values.values())
    values += tuple(value for loaded in run.wanted for value in keys_handed_out(loaded, options.caller.environ))
    values += provider_keys(run.planned.cells, options)
    progress.secrets(values)
    for loaded in run.wanted:
        run.author_files.add_all(loaded.author_files, loaded.withheld)
    run.host = HostCheckouts(run.roots.cells)
    run.kept_setups = KeptSetups(run.roots.private)
    run.first_copies = FirstCopies(run.roots.private)
    await _find_certificates(run)
    left_out = [run.directory, options.caller.directory / ".keystone", run.roots.path, run.container_roots.path]
    await anyio.to_thread.run_sync(
        run.host.add_all, [one.directory for one in run.wanted if script_folders(one)], left_out
    )
    hidden = [run.directory, *_checkouts(run.specs)]
    provider = await process.start(run.roots.sandboxes, hidden=hidden, early=early)
    stack.push_async_callback(run_shielded, provider.close)
    run.provider = provider
    run.masker = Masker(values)
    run.containers = _containers(run)
    if run.containers is not None:
        stack.push_async_callback(run_shielded, run.containers.close)
        if options.images.docker_network is not None:
            await stack.enter_async_context(run.containers.networks.membership(options.images.docker_network))
    if any(loaded.spec.services for loaded in run.specs):
        _open_service_pool(run, provider, stack)
    run.gateways = LazyGateways()
    stack.push_async_callback(run_shielded, run.gateways.close)
    run.judge = LazyJudge(options, progress, run.spending)
    run.neighbours = neighbours_of_specs(options, run.planned)


async def _find_certificates(run: RunUnderWay) -> None:
    """Raises SandboxError."""
    if any(one.spec.setup.packages or one.spec.setup.commands for one in run.wanted):
        folder = run.roots.path / "certificates"
        try:
            run.certificates = await anyio.to_thread.run_sync(copy_certificates, run.options.caller.environ, folder)
        except OSError as error:
            raise SandboxError(f"the host's certificates can't be copied to {folder}: {error.strerror}") from error


def _checkouts(specs: Sequence[LoadedSpec]) -> list[Path]:
    found = {enclosing_root(place) for one in specs for place in (one.directory, one.code_directory)}
    return sorted(found | {root for one in specs for root in one.further_roots})


def _roots(run: RunUnderWay, stack: AsyncExitStack, parent: Path | None = None) -> Roots:
    roots = Roots(run.run_id, parent)
    if run.options.running.keep:
        run.progress.note(f"workspaces are kept in {roots.path}")
    else:
        stack.push_async_callback(_in_thread, roots.remove)
    return roots


def _open_service_pool(run: RunUnderWay, provider: process.ProcessSandboxes, stack: AsyncExitStack) -> None:
    from keystone_action.runner.shared_services import ServicePool, ServicesStarter

    starter = ServicesStarter(provider, run.containers)
    stack.push_async_callback(run_shielded, starter.close)
    run.service_defects = lambda: starter.defects
    run.services = ServicePool(starter)
    stack.push_async_callback(run_shielded, run.services.close)


def _containers(run: RunUnderWay) -> Containers | None:
    client = run.facilities.client
    if client is None:
        return None
    from keystone_action.runner.shared_services import Containers

    return Containers(
        client,
        run.run_id,
        root=run.container_roots.sandboxes / "containers",
        host=run.provider,
        options=run.options,
        progress=run.progress,
        logs=run.directory / "services",
        mask=run.masker.text,
    )


async def _in_thread(function: Callable[[], None]) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await anyio.to_thread.run_sync(function)
        except RuntimeError:  # the machine has no thread left; what it does can be done again
            function()
