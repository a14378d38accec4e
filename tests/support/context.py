"""A check on a directory, given the context that a cell gives it, without what boots the cell."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from keystone_action.dialects.known import DIALECTS
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.masking import Masker
from keystone_action.evidence.model import (
    Address,
    AuditEvidence,
    CallLog,
    Database,
    Evidence,
    FileEvidence,
    ObservedService,
    RequestLog,
)
from keystone_action.invariants.check import Check, Outcome
from keystone_action.invariants.registry import CheckTypes
from keystone_action.options.model import Options
from keystone_action.runner.cell.context import CheckSandboxes, Context, Copies
from keystone_action.runner.cell.judge import JudgedCell
from keystone_action.runner.cell.running_cell import CellFiles, CellProgress, Expressions, RunningCell
from keystone_action.runner.cell.shared_copies import FirstCopies, KeptSetups
from keystone_action.runner.model_access import LazyGateways, Spending
from keystone_action.runner.preflight import Facilities
from keystone_action.runner.roots import Certificates, HostCheckouts, Roots
from keystone_action.runner.secrets import SpecSecrets
from keystone_action.runner.shared_services import close_nothing
from keystone_action.runner.started_run import (
    AgentVersions,
    AuthorFiles,
    AuthorMaterial,
    PlannedRun,
    RunServers,
    SharedCopies,
    StartedRun,
)
from keystone_action.sandbox.own_programs import OwnPython
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.services.service import Place
from keystone_action.spec.expressions import leaves
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.fields import AuthorPath
from keystone_action.spec.models.policies import Resources
from keystone_action.spec.models.spec import Invariant
from keystone_action.spec.plan import Selection, plan
from keystone_action.system.command import CommandLimits

T = TypeVar("T")


class _Kept:
    """What the checks of this process that are graded one after another share: an event loop, and the process
    sandboxes. Their launcher has environment and directory of its start, so those of another start are another's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._provider: ProcessSandboxes | None = None
        self._started_in: object = None
        threading.Thread(target=self._loop.run_forever, name="checks of tests", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, or what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def sandboxes(self) -> ProcessSandboxes:
        """Those that were started here and now, or could have been."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        now = (environ, Path.cwd())
        if self._provider is None or self._started_in != now:
            await self._end()
            self._provider, self._started_in = await process.start(), now
        return self._provider

    async def _end(self) -> None:
        provider, self._provider = self._provider, None
        if provider is not None:
            await provider.close()

    def close(self) -> None:
        """End them; the next check starts others."""
        self.call(self._end())


@cache
def kept() -> _Kept:
    """Of this process; conftest.py closes it with the session."""
    return _Kept()


@dataclass
class _Started:
    """The process sandboxes of the product, started by the first check that needs them: most only observe.
    shared: where they are taken from in place of a start."""

    root: Path
    shared: _Kept | None = None
    provider: ProcessSandboxes | None = None

    async def _running(self) -> ProcessSandboxes:
        if self.shared is not None:
            return await self.shared.sandboxes()
        if self.provider is None:
            self.provider = await process.start(self.root)
        return self.provider

    async def open(self, workspace: Path, **options: Any) -> Sandbox:
        return await (await self._running()).open(workspace, **options)

    async def open_host(self, directory: Path, **options: Any) -> Sandbox:
        return await (await self._running()).open_host(directory, **options)

    async def host_python(self) -> OwnPython:
        return await (await self._running()).host_python()

    async def close(self) -> None:
        if self.provider is not None:
            await self.provider.close()


@asynccontextmanager
async def running_cell(
    directory: Path,
    *,
    limits: CommandLimits | None = None,
    invariants: Mapping[str, Invariant] | None = None,
    judge: Any = None,
    author_files: AuthorFiles | None = None,
    scripts: Collection[Path] = (),
    shared: _Kept | None = None,
) -> AsyncIterator[RunningCell]:
    """A cell of a small spec, before its first stage; all that it holds is gone when it is left. directory: the spec's.
    scripts: directories of specs with scripts for the host. shared: has the sandboxes."""
    limits = limits or CommandLimits()
    resources = Resources(memory=limits.memory, disk=limits.disk, pids=limits.pids, cpu=limits.cpu)
    small = _small_spec()
    changed = {"resources": resources, **({} if invariants is None else {"invariants": invariants})}
    loaded = replace(small, directory=directory, spec=small.spec.model_copy(update=changed))
    planned = PlannedRun(
        options=Options.of(specs=(), directory=directory),
        progress=cast(Any, None),
        specs=[loaded],
        plan=plan([loaded], Selection(params={})),
        run_id="test",
        directory=directory,
        facilities=Facilities(),
    )
    roots = Roots("test")
    host = HostCheckouts(roots.cells)
    host.add_all(scripts, [])
    provider = _Started(roots.sandboxes, shared)
    secrets = {loaded.spec.id: SpecSecrets({}, (), {}, None)}
    run = StartedRun(
        planned=planned,
        may_start_agent=close_nothing,
        roots=roots,
        container_roots=roots,
        provider=cast(ProcessSandboxes, provider),
        containers=None,
        servers=RunServers(gateways=LazyGateways()),
        author=AuthorMaterial(
            secrets=secrets, files=author_files or AuthorFiles(), host=host, certificates=Certificates()
        ),
        copies=SharedCopies(workspaces=FirstCopies(roots.private), setups=KeptSetups(roots.private)),
        versions=AgentVersions(),
        neighbours={},
        judge=judge,
        masker=Masker([]),
        spending=Spending(),
    )
    cell = planned.plan.cells[0]
    files = CellFiles(roots.private / "results", run.masker)
    try:
        yield RunningCell(
            cell, run, run.cell_roots(cell), files, CellProgress(cell.id, cast(Any, None), verbose=False), 0
        )
    finally:
        await provider.close()
        roots.remove()


def check_sandboxes(
    running: RunningCell,
    *,
    environment: Mapping[str, str] | None = None,
    missing_programs: Collection[str] = (),
    agent_directory: Path | None = None,
    readable: tuple[Path, ...] = (),
) -> CheckSandboxes:
    """Those of a cell in the process sandbox."""

    async def close() -> str:
        return ""

    return CheckSandboxes(
        provider=running.run.provider,
        limits=running.limits,
        readable=readable,
        environment=environment or {},
        area=running.roots.area,
        admit=lambda _: None,
        missing_programs=dict.fromkeys(missing_programs),
        agent_directory=agent_directory,
        close=close,
    )


@asynccontextmanager
async def judged_cell(
    directory: Path,
    private: Path,
    invariants: Mapping[str, Invariant],
    services: Mapping[str, ObservedService] | None = None,
) -> AsyncIterator[JudgedCell]:
    """A cell whose agent left `directory` as it was, to be judged by these invariants."""
    async with running_cell(directory, invariants=invariants) as running:
        evidence = replace(make_evidence(directory, private), services=services or {})
        expressions = Expressions({}, has_expressions=False)
        yield JudgedCell(running, running.cell.agent, evidence, check_sandboxes(running), expressions)


@cache
def _small_spec() -> LoadedSpec:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "keystone.yaml"
        path.write_text(
            "{version: 1, id: small, task: {prompt: Do it.}, agent: {type: none},"
            " invariants: {there: {check: {type: file_exists, path: x}}}}"
        )
        return load(path, CheckTypes(), dialects=DIALECTS)


@asynccontextmanager
async def context_of(
    check: Check,
    evidence: Evidence,
    directory: Path,
    *,
    name: str = "check",
    timeout: float = 30.0,
    limits: CommandLimits | None = None,
    check_environment: Mapping[str, str] | None = None,
    missing_programs: Collection[str] = (),
    service_addresses: Mapping[str, Mapping[str, Any]] | None = None,
    judge: Any = None,
    agent_directory: Path | None = None,
    readable: tuple[Path, ...] = (),
    shared: _Kept | None = None,
) -> AsyncIterator[Context]:
    """The context of one check; its sandboxes are gone when it is left. directory: the spec's."""
    for name, address in (service_addresses or {}).items():
        known = evidence.services.get(name)
        place = Place(name, Address() if known is None else known.for_agent, Address(**address))
        evidence = replace(evidence, services={**evidence.services, name: place})
    async with running_cell(
        directory,
        limits=limits,
        judge=judge,
        author_files=_author_files(check, directory),
        scripts=[directory] if check.on_host else [],
        shared=shared,
    ) as running:
        sandboxes = check_sandboxes(
            running,
            environment=check_environment,
            missing_programs=missing_programs,
            agent_directory=agent_directory,
            readable=readable,
        )
        copies = Copies(evidence.workspace, sandboxes)
        context = Context(running, evidence, sandboxes, copies, name, check, timeout)
        try:
            yield context
        finally:
            await context.close()
            await copies.close()


def _author_files(check: Check, directory: Path) -> AuthorFiles:
    """The files that the check's fields name, as the loader finds them."""
    named = [(leaf.marker(AuthorPath), directory / leaf.value) for leaf in leaves(check)]
    found = {path: marker.withheld for marker, path in named if marker is not None and path.exists()}
    files = AuthorFiles()
    files.add_all(found, [path for path, withheld in found.items() if withheld])
    return files


_OF_FILES = {one.name for one in fields(FileEvidence)}


def make_evidence(
    workspace: Path,
    private: Path,
    *,
    databases: Mapping[str, Database] | None = None,
    request_logs: Mapping[str, RequestLog] | None = None,
    call_logs: Mapping[str, CallLog] | None = None,
    services: Mapping[str, Address] | None = None,
    audit: str = "",
    **more: Any,
) -> Evidence:
    """Evidence of a cell whose agent left `workspace`; logs go to `private`. services: their addresses for the agent.
    more: fields of Evidence, and of FileEvidence."""
    private.mkdir(parents=True, exist_ok=True)
    audit_log, trace = private / "audit.jsonl", private / "trace.jsonl"
    audit_log.write_text(audit)
    trace.write_text("")
    known, logs, called, addresses = databases or {}, request_logs or {}, call_logs or {}, services or {}
    places = {
        name: Place(
            name,
            addresses.get(name, Address()),
            addresses.get(name, Address()),
            database=known.get(name),
            requests=logs.get(name),
            calls=called.get(name),
        )
        for name in dict.fromkeys([*addresses, *known, *logs, *called])
    }
    values: dict[str, Any] = {
        "cell_id": "cell-1",
        "task_prompt": "Do it.",
        "params": {"model": "small"},
        "agent": AgentRun(exit_code=0),
        "audit": AuditEvidence(log=audit_log),
        "services": places,
        "files": FileEvidence(**{name: more.pop(name) for name in _OF_FILES & more.keys()}),
    }
    return Evidence(workspace=workspace, trace=trace, **{**values, **more})


def make_check(document: Mapping[str, Any]) -> Check:
    """A check from what stands under `check:`, as the loader makes it."""
    found = CheckTypes()[document["type"]]
    return found.model_validate(found.upgrade(dict(document)))


def grade(
    document: Mapping[str, Any],
    workspace: Path,
    *,
    directory: Path | None = None,
    evidence: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Outcome:
    """The outcome of one check on a workspace. evidence: further fields of Evidence; fields: those of context_of."""
    return evaluate(make_check(document), workspace, directory=directory, evidence=evidence, **fields)


def evaluate(
    check: Check,
    workspace: Path,
    *,
    directory: Path | None = None,
    evidence: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Outcome:
    """The outcome of a check that was made."""

    async def run(private: Path) -> Outcome:
        seen = make_evidence(workspace, private, **(evidence or {}))
        async with context_of(check, seen, directory or workspace, shared=kept(), **fields) as context:
            return await check.evaluate(context)

    with tempfile.TemporaryDirectory() as private:
        return kept().call(run(Path(private)))
