"""The life of one cell, top to bottom in the boot order of the contract (5.2).

workspace and task files → secrets → services → fixtures → setup → snapshot → agent → everything of the agent's killed
→ diff → checks → composite. (Secrets are resolved once for the run; a network policy
holds from the start of the agent's container.)
"""

from __future__ import annotations

import time
import traceback
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio

from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.model import AgentRun, Evidence
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import changes, snapshot, write_patch
from keystone_action.runner.cell.artifacts import STDERR_LIMIT, CellFiles, bounded
from keystone_action.runner.cell.boot import Booted, boot
from keystone_action.runner.cell.checks import Graded, judge_changes, run_checks
from keystone_action.runner.cell.grading import agent_note, forced_zero, judge_usage, unreadable, usage, verdict_of
from keystone_action.runner.cell.layout import apart
from keystone_action.runner.cell.limit import LimitReached, within
from keystone_action.runner.cell.observing import answered, notices, observe
from keystone_action.sandbox.shortage import of_machine
from keystone_action.scoring.cell_rules import amount_problem
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.trace import Trace
    from keystone_action.plan import Cell
    from keystone_action.runner.world import CellRoots, World


SMALL_TREE = 100
"""Entries of a workspace that is removed without a thread for it."""
SMALL_OUTPUT = 1 << 16
"""Bytes of output and diff that are written without a thread for it."""


async def run_cell(cell: Cell, world: World) -> CellResult:
    """One attempt at a cell. Failures of the harness become a result with the verdict `error`; only cancellation and
    results that can't be written leave as exceptions."""
    started = time.monotonic()
    limit = cell.loaded.spec.resources.timeout
    files = CellFiles(world.results / "cells" / cell.id, world.masker)
    files.start()
    roots = world.cell_roots(cell)
    life = _Life(cell, world, files, roots)
    try:
        return await within(limit, lambda: life.run(started))
    except LimitReached:
        message = f"the cell took longer than resources.timeout ({limit:g} s); it was in: {life.phase}"
        return life.error(message, started)
    except KeystoneError as error:
        return life.error(error.sentences, started)
    except Exception as error:  # noqa: BLE001 - a defect of ours is this cell's error, never a failed agent
        files.failure(traceback.format_exc())
        if lacking := of_machine(error):
            return life.error(lacking, started)
        return life.error(f"internal error: {type(error).__name__}: {error} (see internal-error.log)", started)
    finally:
        if not world.options.keep:
            with anyio.CancelScope(shield=True):
                await apart(roots.remove, inline=life.light)


class _Life:
    """The state that the phases of one attempt hand on."""

    def __init__(self, cell: Cell, world: World, files: CellFiles, roots: CellRoots) -> None:
        self.cell, self.world, self.files, self.roots = cell, world, files, roots
        self.secrets = world.secrets[cell.loaded.spec.id]
        self.phase = "start"
        self.agent: AgentRun | None = None
        self.observed: Trace | None = None
        self.graded: list[Graded] = []
        self.notices: tuple[str, ...] = ()
        self.light = False
        self.unreadable = ""

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.world.progress.phase(self.cell.id, phase)

    async def run(self, started: float) -> CellResult:
        async with AsyncExitStack() as stack:
            booted = await boot(self.cell, self.world, self.roots, stack, self.enter)
            self.notices = booted.notices
            await self.world.identified()
            self.enter("agent")
            self.agent = await booted.run_agent()
            # `run` returned, so every process of the agent is gone; its HOME and TMPDIR go now.
            await booted.sandbox.close()
            if self.world.service_defects():
                raise ServiceError(f"the mock server broke while it served: {self.world.service_defects()[0]}")
            if problem := self.agent.shortage or booted.incomplete():
                raise HarnessError(problem)
            self.enter("checks")
            try:
                evidence, patch = await anyio.to_thread.run_sync(self._observe, booted, self.agent)
            except PathUnreadable as error:
                # A workspace that the agent made unreadable is the agent's failure (contract, 5.1).
                return self._cell("fail", 0.0, f"the workspace can't be graded: {error}", started, ())
            await self._check(booted, evidence)
        # Checks have the agent's network, and by now all of it is closed.
        if problem := booted.incomplete():
            raise HarnessError(problem)
        self.light = booted.light and len(evidence.after) < SMALL_TREE
        little = self.agent.stdout_bytes + self.agent.stderr_bytes + len(patch) < SMALL_OUTPUT
        await apart(partial(self._write, self.agent, evidence, patch), inline=self.light and little)
        return self._result(booted, started)

    def _observe(self, booted: Booted, agent: AgentRun) -> tuple[Evidence, str]:
        before = booted.before
        for place in booted.places.values():
            place.settle()
        after = snapshot(self.roots.workspace, None if judge_changes(booted.invariants.values()) else before)
        self.unreadable = unreadable(before.unreadable, after.unreadable) or getattr(booted.sandbox, "lost", "")
        found = changes(before, after)
        patch = write_patch(booted.originals, self.roots.workspace, found)
        self.observed = observe(booted.agent, agent, self.roots.workspace, booted.trace)
        self.notices += notices(self.observed)
        self.agent = agent = answered(booted.agent, agent, self.observed)
        evidence = Evidence(
            cell_id=self.cell.id,
            workspace=self.roots.workspace,
            task_prompt=booted.prompt,
            params=self.cell.params,
            agent=agent,
            changes=found,
            before=before,
            after=after,
            services={name: place.for_agent for name, place in booted.places.items()},
            databases={n: p.database for n, p in booted.places.items() if p.database is not None},
            request_logs={n: p.requests for n, p in booted.places.items() if p.requests is not None},
            audit_log=booted.audit_log,
            trace=booted.trace,
            secrets=tuple(self.secrets.values.values()),
            patch=patch.text,
            patch_cut=patch.cut,
            observed=self.observed,
        )
        return evidence, patch.text

    async def _check(self, booted: Booted, evidence: Evidence) -> None:
        checks = booted.checks(evidence)
        try:
            await run_checks(
                booted.invariants,
                checks,
                booted.names,
                unavailable=self.secrets.missing,
                on_result=self.graded.append,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await checks.close()
        by_name = {entry.result.name: entry for entry in self.graded}
        self.graded = [by_name[name] for name in booted.invariants]

    def _write(self, agent: AgentRun, evidence: Evidence, patch: str) -> None:
        self.files.agent(agent)
        self.files.evidence(evidence, patch)
        self.files.checks(self.graded)

    def _result(self, booted: Booted, started: float) -> CellResult:
        loaded = self.cell.loaded
        graded = verdict_of(
            [entry.result for entry in self.graded],
            loaded,
            self.world.options,
            forced_zero(booted.agent, self.agent, by_author=loaded.names_keys) or self.unreadable,
        )
        return self._cell(graded.verdict, graded.composite, graded.reason, started, graded.invariants)

    def error(self, message: str, started: float) -> CellResult:
        """The result of an attempt that the harness, not the agent, brought to an end."""
        if self.agent is not None:
            self.files.agent(self.agent)
        return self._cell("error", None, message, started, tuple(entry.result for entry in self.graded))

    def _cell(
        self,
        verdict: Literal["pass", "fail", "error"],
        composite: float | None,
        reason: str,
        started: float,
        invariants: tuple[InvariantResult, ...],
    ) -> CellResult:
        masker = self.world.masker
        result = CellResult(
            id=self.cell.id,
            scenario=self.cell.scenario.id,
            params=dict(self.cell.params),
            replica=self.cell.replica,
            verdict=verdict,
            composite=composite,
            duration_s=time.monotonic() - started,
            error=masker.text(reason) if verdict == "error" else None,
            agent=_agent_result(self.agent, self.cell.agent_type, masker),
            invariants=tuple(_masked_result(result, masker) for result in invariants),
            reason=masker.text(reason),
            usage=usage(self.agent, self.observed),
            judge_usage=judge_usage(self.graded),
            notices=tuple(masker.text(notice) for notice in self.notices),
        )
        problem = amount_problem(result)
        return _uncountable(result, problem) if problem else result


def _uncountable(result: CellResult, problem: str) -> CellResult:
    """A cell that says a number which no journal may hold: a judge's server can say anything."""
    return replace(result, verdict="error", composite=None, error=problem, reason=problem, usage={}, judge_usage={})


def _agent_result(run: AgentRun | None, kind: str, masker: Masker) -> AgentResult | None:
    if run is None or kind == "none":
        return None
    return AgentResult(
        exit_code=run.exit_code,
        timed_out=run.timed_out,
        duration_s=run.duration_s,
        output=bounded(masker.text(run.output)),
        stderr=bounded(masker.text(run.stderr), STDERR_LIMIT),
        signal=run.signal,
        note=masker.text(agent_note(run, kind)),
    )


def _masked_result(result: InvariantResult, masker: Masker) -> InvariantResult:
    return replace(result, message=masker.text(result.message), details=masker.value(result.details))
