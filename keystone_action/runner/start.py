"""Making what the cells of a run share, and seeing to it that all of it is stopped again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.errors import SecretError
from keystone_action.evidence.masking import Masker
from keystone_action.invariants.base import Check
from keystone_action.runner.layout import shielded
from keystone_action.runner.secrets import Resolved, resolve
from keystone_action.runner.service_pool import ServicePool
from keystone_action.runner.world import AuthorFiles, Roots, SpecSecrets, World
from keystone_action.sandbox import process
from keystone_action.spec.annotations import leaves
from keystone_action.spec.expressions import references
from keystone_action.spec.loader import enclosing_root

if TYPE_CHECKING:
    from keystone_action.judge.base import Judge, Judgement, JudgeRequest
    from keystone_action.plan import Plan
    from keystone_action.runner.options import Progress, RunOptions
    from keystone_action.services.base import RunningService
    from keystone_action.services.http_server import MockServer
    from keystone_action.spec.fixtures import SecretEntry
    from keystone_action.spec.loader import LoadedSpec
    from keystone_action.spec.models import Spec
    from keystone_action.spec.services import Service


async def start_world(
    options: RunOptions,
    progress: Progress,
    specs: Sequence[LoadedSpec],
    planned: Plan,
    directory: Path,
    stack: AsyncExitStack,
) -> World:
    """Everything but services, which the first cell that needs them starts. `stack` stops it all, in reverse order.

    Raises SandboxError. A secret that can't be resolved is told by the cells of its spec.
    """
    wanted = {cell.loaded.spec.id for cell in planned.cells}
    roots = Roots()
    if options.keep:
        progress.note(f"workspaces are kept in {roots.path}")
    else:
        stack.push_async_callback(_in_thread, roots.remove)
    secrets = {
        loaded.spec.id: await anyio.to_thread.run_sync(resolve_secrets, loaded, options)
        for loaded in specs
        if loaded.spec.id in wanted
    }
    values = tuple(value for entry in secrets.values() for value in entry.values.values())
    progress.secrets(values)
    files = AuthorFiles()
    for loaded in specs:
        if loaded.spec.id in wanted:
            files.add_all(loaded.author_files)
    checkouts = {enclosing_root(loaded.directory) for loaded in specs}
    provider = await process.start(roots.sandboxes, hidden=[directory, *sorted(checkouts)])
    stack.push_async_callback(shielded, provider.close)
    starter = Starter(provider)
    stack.push_async_callback(shielded, starter.close)
    services = ServicePool(starter)
    stack.push_async_callback(shielded, services.close)
    return World(
        options=options,
        progress=progress,
        roots=roots,
        results=directory,
        provider=provider,
        services=services,
        service_defects=lambda: starter.defects,
        settle_services=starter.settle,
        judge=LazyJudge(options, progress),
        masker=Masker(values),
        secrets=secrets,
        concurrent=_concurrent(options, planned),
        light={loaded.spec.id: is_light(loaded) for loaded in specs},
        author_files=files,
    )


class LazyJudge:
    """The run's judge, made (and its modules imported) when the first check asks it."""

    def __init__(self, options: RunOptions, progress: Progress) -> None:
        self._options, self._progress = options, progress
        self._judge: Judge | None = None

    async def require(self, models: tuple[str, ...]) -> None:
        """See `judge.base.Judge`."""
        await self._made().require(models)

    async def judge(self, request: JudgeRequest) -> Judgement:
        """See `judge.base.Judge`."""
        return await self._made().judge(request)

    def _made(self) -> Judge:
        if self._judge is None:
            from keystone_action.judge.model_judge import ModelJudge

            options = self._options
            self._judge = ModelJudge(
                options.environ,
                fast=options.judge_fast,
                strong=options.judge_strong,
                cache_dir=options.cache_dir / "judge" if options.cache_dir else None,
                on_note=self._progress.note,
            )
        return self._judge


class Starter:
    """Starts the services of one definition, all at once. One server serves every mock of the run."""

    def __init__(self, provider: process.ProcessSandboxes) -> None:
        self._provider = provider
        self._mocks: MockServer | None = None

    async def __call__(self, definitions: Sequence[Service], directory: Path) -> list[RunningService]:
        from keystone_action.services.http_server import MockServer
        from keystone_action.services.start import start_services

        if not definitions:
            return []
        if self._mocks is None:
            self._mocks = MockServer()
            self._mocks.start()
        return await start_services(definitions, provider=self._provider, directory=directory, mocks=self._mocks)

    @property
    def defects(self) -> tuple[str, ...]:
        """What went wrong in the mock server itself: with any, what it recorded may be incomplete."""
        return tuple(self._mocks.defects) if self._mocks is not None else ()

    def settle(self) -> None:
        """Wait (blocking, bounded) until what has reached the mocks is on record."""
        if self._mocks is not None:
            self._mocks.settle()

    async def close(self) -> None:
        """Stop the mock server."""
        if self._mocks is not None:
            await anyio.to_thread.run_sync(self._mocks.stop)


def _concurrent(options: RunOptions, planned: Plan) -> Mapping[str, bool]:
    """By spec id: whether several cells of it may run at once, so that each needs a database of its own."""
    counts: dict[str, int] = {}
    for cell in planned.cells:
        counts[cell.loaded.spec.id] = counts.get(cell.loaded.spec.id, 0) + 1
    specs = {cell.loaded.spec.id: cell.loaded.spec for cell in planned.cells}
    return {
        spec_id: counts[spec_id] > 1
        and (options.max_concurrency or spec.parallelism.max_concurrency or os.cpu_count() or 1) > 1
        for spec_id, spec in specs.items()
    }


LIGHT_ENTRIES = 32
LIGHT_BYTES = 1 << 18


def is_light(loaded: LoadedSpec) -> bool:
    """Whether a spec's workspace has only a few small files and no git history."""
    if loaded.spec.workspace is None:
        return True
    entries = size = 0
    for folder, folders, files in os.walk(loaded.directory / loaded.spec.workspace):
        entries += len(folders) + len(files)
        if entries > LIGHT_ENTRIES or ".git" in folders or ".git" in files:
            return False
        size += sum((Path(folder) / name).lstat().st_size for name in files)
    return size <= LIGHT_BYTES


def resolve_secrets(loaded: LoadedSpec, options: RunOptions) -> SpecSecrets:
    """The secrets of a spec. One that only judges use and that can't be resolved lets those judges skip; any other is
    the error of every cell (contract, 5.1)."""
    judges_only = secrets_of_judges(loaded.spec)

    def values_of(secrets: Sequence[SecretEntry]) -> Resolved:
        return resolve(
            secrets,
            environ=options.environ,
            directory=loaded.directory,
            no_secrets_reason=options.no_secrets_reason,
        )

    try:
        needed, error = values_of([s for s in loaded.spec.secrets if s.name not in judges_only]), None
    except SecretError as problem:
        needed, error = Resolved(), problem
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
        await anyio.to_thread.run_sync(function)
