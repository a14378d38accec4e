"""Making what the cells of a run share, and seeing to it that all of it is stopped again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import SandboxError, SecretError
from keystone_action.evidence.masking import Masker
from keystone_action.invariants.check import Check
from keystone_action.runner.cell.shared_copies import FirstCopies, KeptSetups
from keystone_action.runner.roots import Roots
from keystone_action.runner.script_helpers import Host, script_folders
from keystone_action.runner.secrets import SecretValues, keys_handed_out, resolve
from keystone_action.runner.sharing.certificates import copy_certificates
from keystone_action.runner.sharing.concurrency import company
from keystone_action.runner.sharing.gateways import LazyGateways, provider_keys
from keystone_action.runner.started_run import RunUnderWay, SpecSecrets, run_shielded
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.spec.expressions import leaves, references
from keystone_action.spec.loading.loaded_spec import enclosing_root

if TYPE_CHECKING:
    from keystone_action.judge.judgement import Judge, Judgement, JudgeRequest
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.runner.sharing.containers import Containers
    from keystone_action.runner.sharing.spending import Spending
    from keystone_action.sandbox.processes.client import Launching
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.models.task import SecretEntry


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
    run.host = Host(run.roots.cells)
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
    run.company = company(options, run.planned)


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
    from keystone_action.runner.sharing.service_pool import ServicePool, Starter

    starter = Starter(provider, run.containers)
    stack.push_async_callback(run_shielded, starter.close)
    run.service_defects = lambda: starter.defects
    run.services = ServicePool(starter)
    stack.push_async_callback(run_shielded, run.services.close)


def _containers(run: RunUnderWay) -> Containers | None:
    client = run.facilities.client
    if client is None:
        return None
    from keystone_action.runner.sharing.containers import Containers

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


class LazyJudge:
    """The run's judge, made (and its modules imported) when the first check asks it."""

    def __init__(self, options: Options, progress: Progress, spending: Spending) -> None:
        self._options, self._progress, self._spending = options, progress, spending
        self._judge: Judge | None = None

    async def require(self, models: tuple[str, ...]) -> None:
        """See `judge.base.Judge`."""
        await self._make_judge().require(models)

    async def judge(self, request: JudgeRequest) -> Judgement:
        """See `judge.base.Judge`."""
        return await self._make_judge().judge(request)

    def _make_judge(self) -> Judge:
        if self._judge is None:
            from keystone_action.judge.jury import ModelJudge

            options = self._options
            self._judge = ModelJudge(
                options.caller.environ,
                fast=options.running.judge_fast,
                strong=options.running.judge_strong,
                cache_dir=options.running.cache_dir / "judge" if options.running.cache_dir else None,
                purse=self._spending,
                on_note=self._progress.note,
            )
        return self._judge


def resolve_secrets(loaded: LoadedSpec, options: Options) -> SpecSecrets:
    """The secrets of a spec. One that only judges use and that can't be resolved lets those judges skip; any other is
    the error of every cell (contract, 5.1)."""
    judges_only = secrets_of_judges(loaded.spec) if loaded.has_expressions else frozenset()

    def values_of(secrets: Sequence[SecretEntry]) -> SecretValues:
        return resolve(
            secrets,
            environ=options.caller.environ,
            directory=loaded.directory,
            no_secrets_reason=options.caller.no_secrets_reason,
            otherwise=loaded.without_variable,
        )

    try:
        needed, error = values_of([s for s in loaded.spec.secrets if s.name not in judges_only]), None
    except SecretError as problem:
        needed, error = SecretValues(), problem
    values, missing = dict(needed.values), {}
    for secret in loaded.spec.secrets:
        if secret.name in judges_only:
            try:
                values.update(values_of([secret]).values)
            except SecretError as problem:
                missing[secret.name] = problem.message
    return SpecSecrets(values, needed.warnings, missing, error)


def secrets_of_judges(spec: Spec) -> frozenset[str]:
    """The secrets that are named by judges and by nothing else."""
    judges: set[str] = set()
    others: set[str] = set()
    for leaf in leaves(spec):
        used = {one.parts[1] for one in references(leaf.value, ("request",)) if one.parts[0] == "secrets"}
        by_judge = (
            leaf.path[0] == "invariants"
            and isinstance(check := spec.invariants[str(leaf.path[1])].check, Check)
            and check.skips_without_secrets
        )
        (judges if by_judge else others).update(used)
    return frozenset(judges - others)


async def _in_thread(function: Callable[[], None]) -> None:
    with anyio.CancelScope(shield=True):
        try:
            await anyio.to_thread.run_sync(function)
        except RuntimeError:  # the machine has no thread left; what it does can be done again
            function()
