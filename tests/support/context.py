"""A CheckContext on a directory, with real process sandboxes: what `runner/` makes for a cell, without the cell."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio

from keystone_action.evidence.model import AgentRun, Database, Evidence, RequestLog
from keystone_action.invariants.base import Check, CheckContext, Outcome, Phase
from keystone_action.invariants.registry import CheckTypes
from keystone_action.runner.layout import make_readable
from keystone_action.sandbox import process
from keystone_action.sandbox.base import Limits, Sandbox
from keystone_action.sandbox.disarm import disarm_tree
from keystone_action.sandbox.workspace import copy_as_left
from keystone_action.spec.author_directory import read_below


@dataclass
class Context:
    """See CheckContext. The process sandbox is started by the first who needs it; `close` ends it."""

    evidence: Evidence
    directory: Path
    phase: Phase = "observe"
    name: str = "check"
    timeout: float = 30.0
    limits: Limits = field(default_factory=Limits)
    check_environment: Mapping[str, str] = field(default_factory=dict)
    missing_programs: frozenset[str] = frozenset()
    service_addresses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    host_removed_links: tuple[str, ...] = ()
    judge: Any = None
    originals: Path | None = None
    agent_directory: Path | None = None
    readable: tuple[Path, ...] = ()
    sandboxes: list[Sandbox] = field(default_factory=list)
    given: list[Path] = field(default_factory=list)
    provider: process.ProcessSandboxes | None = None
    _numbers: Any = field(default_factory=itertools.count)

    async def _copy(self, *, drop_outside_links: bool) -> tuple[process.ProcessSandboxes, Path, tuple[str, ...]]:
        if self.provider is None:
            self.provider = await process.start()
        target = self.provider.root / f"copy-{next(self._numbers)}"
        links = copy_as_left(self.evidence.workspace, target, drop_outside_links=drop_outside_links)
        return self.provider, target, tuple(links)

    async def sandbox(self, *, without_programs_of_git: bool = False) -> Sandbox:
        provider, target, _ = await self._copy(drop_outside_links=False)
        if without_programs_of_git:
            disarm_tree(target)
        readable = (*self.readable, *self.given)
        self.sandboxes.append(await provider.open(target, limits=self.limits, readable=readable))
        return self.sandboxes[-1]

    def give(self, files: Mapping[str, bytes]) -> Path:
        place = Path(tempfile.mkdtemp(prefix="given-"))
        self.given.append(place)
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        make_readable(place)
        return place

    async def host(self) -> Sandbox:
        provider, target, self.host_removed_links = await self._copy(drop_outside_links=True)
        self.sandboxes.append(await provider.open_host(target, limits=self.limits))
        return self.sandboxes[-1]

    async def close(self) -> None:
        """End its sandboxes and the process sandbox."""
        for sandbox in self.sandboxes:
            await sandbox.close()
        for place in self.given:
            shutil.rmtree(place)
        if self.provider is not None:
            await self.provider.close()

    def author_file(self, path: str) -> bytes:
        return (self.directory / path).read_bytes()

    def author_directory(self, path: str) -> Mapping[str, bytes]:
        return read_below(self.directory / path)


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
    """The outcome of one check on a workspace. evidence: further fields of Evidence; fields: those of Context."""
    check = make_check(document)

    async def run(private: Path) -> Outcome:
        context = Context(
            make_evidence(workspace, private, **(evidence or {})), directory or workspace, check.run_phase, **fields
        )
        try:
            return await check.evaluate(cast(CheckContext, context))
        finally:
            await context.close()

    with tempfile.TemporaryDirectory() as private:
        return anyio.run(run, Path(private))
