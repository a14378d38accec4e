"""A check on a directory, given the very context that a cell gives it (`runner.context`), without the cell."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from keystone_action.command import Limits
from keystone_action.dialects.known import DIALECTS
from keystone_action.evidence.model import AgentRun, Database, Evidence, RequestLog
from keystone_action.invariants.base import Check, Outcome
from keystone_action.invariants.registry import CheckTypes
from keystone_action.runner.cell.context import CheckWorld, Context
from keystone_action.runner.cell.host import Host
from keystone_action.runner.world import AuthorFiles, CellRoots, Roots
from keystone_action.sandbox.base import Home, Sandbox
from keystone_action.sandbox.own_python import OwnPython
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.spec.loading.annotations import leaves
from keystone_action.spec.models.base import AuthorPath


@dataclass
class _Started:
    """The process sandboxes of the product, started by the first check that needs them: most only observe."""

    root: Path
    provider: ProcessSandboxes | None = None

    async def _running(self) -> ProcessSandboxes:
        if self.provider is None:
            self.provider = await process.start(self.root)
        return self.provider

    async def open(
        self,
        workspace: Path,
        *,
        limits: Limits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        home: Home | None = None,
    ) -> Sandbox:
        provider = await self._running()
        return await provider.open(workspace, limits=limits, readable=readable, environment=environment, home=home)

    async def open_host(self, directory: Path, **options: Any) -> Sandbox:
        return await (await self._running()).open_host(directory, **options)

    async def host_python(self) -> OwnPython:
        return await (await self._running()).host_python()

    async def close(self) -> None:
        if self.provider is not None:
            await self.provider.close()


@asynccontextmanager
async def context_of(
    check: Check,
    evidence: Evidence,
    directory: Path,
    *,
    name: str = "check",
    timeout: float = 30.0,
    limits: Limits | None = None,
    check_environment: Mapping[str, str] | None = None,
    missing_programs: Collection[str] = (),
    service_addresses: Mapping[str, Mapping[str, Any]] | None = None,
    judge: Any = None,
    originals: Path | None = None,
    agent_directory: Path | None = None,
    readable: tuple[Path, ...] = (),
) -> AsyncIterator[Context]:
    """The context of one check; its sandboxes are gone when it is left. directory: the spec's."""
    roots = Roots("test")
    provider = _Started(roots.sandboxes)
    area = roots.cells / "cell"
    area.mkdir(mode=0o711)
    area.chmod(0o711)
    world = CheckWorld(
        evidence=evidence,
        directory=directory,
        roots=CellRoots(roots.private, area, evidence.workspace),
        provider=cast(ProcessSandboxes, provider),
        limits=limits or Limits(),
        readable=readable,
        environment=check_environment or {},
        host_services=service_addresses or {},
        missing_programs=dict.fromkeys(missing_programs),
        judge=judge,
        author_files=_author_files(check, directory),
        host=_host(check, directory, roots),
        originals=originals,
        admit=lambda _sandbox: None,
        agent_directory=agent_directory,
        library=DIALECTS.library,
    )
    context = Context(world, name, timeout, check.run_phase)
    try:
        yield context
    finally:
        await context.close()
        await world.close()
        await provider.close()
        roots.remove()


def _host(check: Check, directory: Path, roots: Roots) -> Host:
    host = Host(roots.cells)
    if check.on_host:
        host.add_all([directory], [])
    return host


def _author_files(check: Check, directory: Path) -> AuthorFiles:
    """The files that the check's fields name, as the loader finds them."""
    named = [(leaf.marker(AuthorPath), directory / leaf.value) for leaf in leaves(check)]
    found = {path: marker.withheld for marker, path in named if marker is not None and path.exists()}
    files = AuthorFiles()
    files.add_all(found, [path for path, withheld in found.items() if withheld])
    return files


def make_evidence(
    workspace: Path,
    private: Path,
    *,
    databases: Mapping[str, Database] | None = None,
    request_logs: Mapping[str, RequestLog] | None = None,
    audit: str = "",
    **fields: Any,
) -> Evidence:
    """Evidence of a cell whose agent left `workspace`; logs go to `private`."""
    private.mkdir(parents=True, exist_ok=True)
    audit_log, trace = private / "audit.jsonl", private / "trace.jsonl"
    audit_log.write_text(audit)
    trace.write_text("")
    values: dict[str, Any] = {
        "cell_id": "cell-1",
        "task_prompt": "Do it.",
        "params": {"model": "small"},
        "agent": AgentRun(exit_code=0),
        "changes": (),
        "before": {},
        "after": {},
        "services": {},
    }
    return Evidence(
        workspace=workspace,
        databases=dict(databases or {}),
        request_logs=dict(request_logs or {}),
        audit_log=audit_log,
        trace=trace,
        **{**values, **fields},
    )


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
        async with context_of(check, seen, directory or workspace, **fields) as context:
            return await check.evaluate(context)

    with tempfile.TemporaryDirectory() as private:
        return anyio.run(run, Path(private))
