"""The life of one cell, top to bottom in the boot order of the contract (5.2).

workspace and task files → secrets → services → fixtures → setup → snapshot → agent → everything of the agent's killed →
diff → checks → composite. (Secrets are resolved once for the run; a network policy holds from the start of the agent's
container.)

The limit of a cell, which holds also where a thread of ours hangs in it and hears of no cancellation.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from keystone_action.agents.program import AgentCall
from keystone_action.agents.run import run_agent
from keystone_action.errors import HarnessError, KeystoneError, ServiceError
from keystone_action.evidence.model import AgentRun, Evidence
from keystone_action.files.paths import PathUnreadable
from keystone_action.files.workspace import (
    compare_entries,
    compare_whole,
    snapshot,
    snapshot_git,
    write_patch,
)
from keystone_action.runner.cell.connections import settle_proxy
from keystone_action.runner.cell.grading import (
    agent_note,
    certain_failure,
    forced_zero,
    judge_unpriced,
    judge_usage,
    stopped_by,
    trace_source,
    unreadable,
    usage,
    verdict_of,
    violation,
)
from keystone_action.runner.cell.judge import doubt_what_executed, judge_changes, run_checks
from keystone_action.runner.cell.known_agent import record_version, tell_switched_off
from keystone_action.runner.cell.model_gateway import (
    begin_recording,
    keep_recording,
    money_paid,
    observe_models,
    require_certain_calls,
    require_provider,
    require_question,
    settle_model_gateway,
    without_real_keys,
)
from keystone_action.runner.cell.prepare import boot
from keystone_action.runner.cell.running_cell import STDERR_LIMIT, CellFiles, CellUnderWay, Rerun, bound
from keystone_action.runner.cell.seal import notices, observe, take_answer, write_events
from keystone_action.scoring.composite import UNCOMPARED
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult, TraceInfo
from keystone_action.scoring.soundness import amount_problem
from keystone_action.system import signals
from keystone_action.system.shortage import machine_shortage

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.files.snapshot import Change, Snapshot
    from keystone_action.runner.started_run import RunUnderWay
    from keystone_action.spec.plan import Cell

T = TypeVar("T")
_CLEANUP_SECONDS = 20.0
"""For what is cancelled to clean up after itself."""
_UNWIND_SECONDS = 10.0
"""For its clean-up after it was torn from the wait for its thread."""


class LimitReached(Exception):  # noqa: N818 - not an error of the caller that waits
    """The work was ended, or left to itself, because its time was up."""


async def within(seconds: float, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await work, for so many seconds. Raises what it raises, and LimitReached when the time is up.

    It is then cancelled. Where it waits for a thread that does not end, which cancellation respects, it is torn from
    that wait; where even that does not end it, it is left to itself, and what it holds goes at the end of the run.
    """
    scope = anyio.CancelScope()

    async def limited() -> T:
        with scope:
            return await work()
        raise LimitReached

    task = asyncio.create_task(limited())
    # Where we are cancelled, or have left it to itself, nobody asks how it ended.
    task.add_done_callback(lambda one: one.cancelled() or one.exception())
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await _await_end(task)
        raise
    if not task.done():
        scope.cancel()
        await _await_end(task)
    if not task.done() or task.cancelled():
        raise LimitReached
    return task.result()


async def _await_end(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task}, timeout=_CLEANUP_SECONDS)
    if task.done():
        return
    signals.leave_behind()
    task.cancel()
    await asyncio.wait({task}, timeout=_UNWIND_SECONDS)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one run of a cell came to. rerun: whether it may be run again where that is an error."""

    result: CellResult
    rerun: Rerun


async def run_cell(cell: Cell, run: RunUnderWay) -> Attempt:
    """One attempt at a cell. Failures of the harness become a result with the verdict `error`; only cancellation and
    results that can't be written leave as exceptions."""
    started = time.monotonic()
    limit = cell.loaded.spec.resources.timeout
    files = CellFiles(run.directory / "cells" / cell.id, run.masker)
    files.start()
    under_way = CellUnderWay(cell=cell, run=run, roots=run.cell_roots(cell), started=started)
    try:
        result = await within(limit, lambda: _live(under_way, files))
    except LimitReached:
        message = f"the cell took longer than resources.timeout ({limit:g} s); it was in: {under_way.phase}"
        result = _broke(under_way, files, message)
    except KeystoneError as error:
        result = _broke(under_way, files, error.sentences)
    except Exception as error:  # noqa: BLE001 - a defect of ours is this cell's error, never a failed agent
        files.failure(traceback.format_exc())
        internal = f"internal error: {type(error).__name__}: {error} (see internal-error.log)"
        result = _error(under_way, files, machine_shortage(error) or internal)
    finally:
        if not run.options.running.keep:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(under_way.roots.remove)
    return Attempt(result, under_way.rerun)


async def _live(under_way: CellUnderWay, files: CellFiles) -> CellResult:
    async with under_way.stack:
        await boot(under_way)
        await under_way.run.identified()
        await under_way.run.written()
        under_way.enter("agent")
        under_way.agent_run = await _run_agent(under_way)
        # `run` returned, so every process of the agent is gone; its HOME and TMPDIR go now.
        await under_way.sandbox.close()
        broke = await _settle(under_way, under_way.agent_run)
        if broke is None:
            under_way.rerun = "never"  # its run is complete; what its own transcript breaks buys no other one
        under_way.enter("checks")
        try:
            evidence = await _look_at_what_is_left(under_way, under_way.agent_run)
        except PathUnreadable as error:
            # A workspace that the agent made unreadable is the agent's failure (contract, 5.1).
            return _result(under_way, "fail", 0.0, f"the workspace can't be graded: {error}")
        except KeystoneError as error:
            raise broke or error from None
        if broke is not None:
            # Of what broke nobody can say that it was let alone.
            under_way.forbidden = tuple(rule for rule in under_way.forbidden if rule.violated)
            raise broke
        require_provider(under_way)
        require_question(under_way)
        await run_checks(under_way)
    # Checks have the agent's network, and by now all of it is closed.
    problem = under_way.incomplete()
    if problem:
        doubt_what_executed(under_way, problem)
    await anyio.to_thread.run_sync(files.write_graded, evidence, under_way.graded)
    result = _grade_cell(under_way)
    if problem and result.verdict != "fail":
        raise HarnessError(problem)
    try:
        await keep_recording(under_way, result)
    except KeystoneError as error:
        return _error(under_way, files, error.sentences)
    return result


async def _settle(under_way: CellUnderWay, run: AgentRun) -> KeystoneError | None:
    """The agent has ended: what it could reach is closed to it, and what it sent is on record. What broke meanwhile, so
    that nothing is known of the agent but what it did against a rule."""
    try:
        await settle_model_gateway(under_way)
        await settle_proxy(under_way)
        if under_way.places:
            await anyio.to_thread.run_sync(_settle_places, under_way)
        if defects := under_way.run.service_defects():
            raise ServiceError(f"the mock server broke while it served: {defects[0]}")
        if problem := run.shortage or under_way.incomplete():
            raise HarnessError(problem)
    except KeystoneError as error:
        return error
    return None


def _settle_places(under_way: CellUnderWay) -> None:
    for place in under_way.places.values():
        place.settle()


async def _run_agent(under_way: CellUnderWay) -> AgentRun:
    agent, directory = under_way.agent, under_way.agent_directory
    context = {"params": dict(under_way.cell.params), "services": under_way.names["services"]}
    environment, gateway = under_way.environment(agent_directory=directory, agent_env=agent.env), under_way.gateway
    task = AgentCall(
        prompt=under_way.prompt,
        environment=without_real_keys(under_way, environment),
        inputs=under_way.inputs,
        agent_directory=directory,
        context=context if under_way.loaded.agent_gets_context else None,
        private=under_way.roots.private,
        transcript=bool(agent.trace and agent.trace.stdout),
        stop=under_way.budget_spent,
        gateways={} if gateway is None else gateway.addresses_of_apis,
        deny_provider_tools=gateway is not None and gateway.configuration.deny_provider_tools,
        lists_processes=under_way.spec.audit.processes,
    )
    await record_version(under_way)
    tell_switched_off(under_way)
    if under_way.recording is not None:
        await anyio.to_thread.run_sync(begin_recording, under_way.recording, under_way)
    under_way.rerun = "once"
    return await run_agent(agent, under_way.sandbox, task)


async def _look_at_what_is_left(under_way: CellUnderWay, run: AgentRun) -> Evidence:
    """In a thread, so that the cell's time limit ends a look which never ends. Raises PathUnreadable, HarnessError."""
    return await anyio.to_thread.run_sync(_look, under_way, run)


def _look(under_way: CellUnderWay, run: AgentRun) -> Evidence:
    after, found = _compare(under_way)
    return _observe(under_way, run, after, found)


def _compare(under_way: CellUnderWay) -> tuple[Snapshot, tuple[Change, ...]]:
    """What the agent left, and what of it is not as it was."""
    before, workspace = under_way.before, under_way.roots.workspace
    known = None if _changes_decide(under_way) else before
    after = snapshot(workspace, known, attributes=under_way.git_before is not None)
    under_way.unreadable = unreadable(before.unreadable, after.unreadable) or under_way.sandbox.loss
    if under_way.git_before is not None:
        git_after = snapshot_git(workspace, after)
        under_way.all_changes = compare_whole({**before, **under_way.git_before}, {**after, **git_after})
    return after, compare_entries(before, after)


def _observe(under_way: CellUnderWay, run: AgentRun, after: Snapshot, found: tuple[Change, ...]) -> Evidence:
    before, roots, agent = under_way.before, under_way.roots, under_way.agent
    patch = write_patch(under_way.originals, roots.workspace, found)
    declared = observe(agent, run, roots.workspace, roots.trace)
    under_way.notices += notices(declared)
    run = under_way.agent_run = take_answer(agent, run, declared)
    observed = under_way.observed = observe_models(under_way, declared)
    places = under_way.places.items()
    under_way.evidence = Evidence(
        cell_id=under_way.cell.id,
        workspace=roots.workspace,
        task_prompt=under_way.prompt,
        params=under_way.cell.params,
        agent=run,
        changes=found,
        before=before,
        after=after,
        services={name: place.for_agent for name, place in places},
        databases={name: place.database for name, place in places if place.database is not None},
        request_logs={name: place.requests for name, place in places if place.requests is not None},
        audit_log=roots.audit_log,
        trace=roots.trace,
        secrets=tuple(under_way.secrets.values.values()),
        patch=patch.text,
        patch_cut=patch.cut,
        observed=observed,
        declared=declared,
    )
    write_events(under_way)
    if under_way.spec.forbidden.rules:
        from keystone_action.runner.cell.forbidden.judging import judge_rules

        judge_rules(under_way)
    require_certain_calls(under_way)
    return under_way.evidence


def _changes_decide(under_way: CellUnderWay) -> bool:
    """Whether something depends on which files the agent changed."""
    spec = under_way.spec
    return spec.forbidden.needs_changes or spec.audit.file_changes or judge_changes(under_way.invariants.values())


def _grade_cell(under_way: CellUnderWay) -> CellResult:
    loaded, results = under_way.loaded, [entry.result for entry in under_way.graded]
    zero = violation(under_way.forbidden) or under_way.unreadable
    zero = zero or forced_zero(under_way.agent, under_way.agent_run, by_author=loaded.names_keys)
    graded = verdict_of(results, loaded, under_way.run.options, _trace_info(under_way), zero)
    found = _result(under_way, graded.verdict, graded.composite, graded.reason, graded.invariants)
    # One that can't be counted has become an error.
    return replace(found, counted_as_zero=graded.counted_as_zero) if found.verdict == "fail" else found


def _broke(under_way: CellUnderWay, files: CellFiles, message: str) -> CellResult:
    """The result of an attempt that something else than the agent brought to an end: an error, unless what was seen
    until then is a failure for certain."""
    certain = certain_failure([entry.result for entry in under_way.graded], under_way.forbidden)
    if certain is None:
        return _error(under_way, files, message)
    if under_way.agent_run is not None:
        files.agent(under_way.agent_run)
    return _result(under_way, "fail", 0.0, f"{certain.reason}; besides, {message}", certain.invariants)


def _error(under_way: CellUnderWay, files: CellFiles, message: str) -> CellResult:
    """The result of an attempt that the harness, not the agent, brought to an end."""
    if under_way.agent_run is not None:
        files.agent(under_way.agent_run)
    return _result(under_way, "error", None, message, tuple(entry.result for entry in under_way.graded))


def _result(
    under_way: CellUnderWay,
    verdict: Literal["pass", "fail", "error"],
    composite: float | None,
    reason: str,
    invariants: tuple[InvariantResult, ...] = (),
) -> CellResult:
    cell, masker = under_way.cell, under_way.run.masker
    # An error before the agent stands alone.
    told = under_way.notices if under_way.phase in ("agent", "checks") else ()
    result = CellResult(
        id=cell.id,
        scenario=cell.scenario.id,
        params=dict(cell.params),
        replica=cell.replica,
        verdict=verdict,
        composite=composite,
        duration_s=time.monotonic() - under_way.started,
        error=masker.text(reason) if verdict == "error" else None,
        agent=_agent_result(under_way.agent_run, cell.agent_type, masker),
        trace=_trace_info(under_way),
        invariants=tuple(_masked_result(result, masker) for result in invariants),
        forbidden=tuple(replace(rule, details=masker.text(rule.details)) for rule in under_way.forbidden),
        reason=masker.text(reason),
        usage=usage(
            under_way.observed,
            ran=under_way.agent_run is not None and cell.agent_type != "none",
            spent_usd=money_paid(under_way),
            is_told=under_way.gateway is None,
        ),
        judge_usage=judge_usage(under_way.graded),
        unpriced=tuple(masker.text(model) for model in (under_way.observed.unpriced if under_way.observed else ())),
        judge_unpriced=tuple(masker.text(model) for model in judge_unpriced(under_way.graded)),
        notices=tuple(masker.text(notice) for notice in told),
    )
    problem = amount_problem(result)
    return _uncountable(result, problem) if problem else result


def _trace_info(under_way: CellUnderWay) -> TraceInfo:
    recording, source = under_way.recording, trace_source(under_way.observed)
    if recording is None or recording.replay is None:
        return TraceInfo(source)
    replay, told = recording.replay, [*recording.replay.stale]
    fit: Literal["changed", "stale", "exact", "unused"] | None = "stale" if told or replay.left_over else "exact"
    if replay.answered and replay.left_over:
        told.append(f"recorded answers that were not asked for: {replay.left_over:,}")
    if not replay.answered:
        fit = "unused"
    if replay.miss or replay.problem or under_way.agent_run is None:
        fit = None  # it did not fit at all, or was not needed, which the cell's error says
    if recording.is_changed:
        fit = "changed"
        told[:0] = [f"{UNCOMPARED}: {recording.uncompared}"] if recording.uncompared else []
    differs = under_way.run.masker.text("; ".join(told))
    return TraceInfo(source, fit, recorded_at=replay.date, differs=differs)


def _uncountable(result: CellResult, problem: str) -> CellResult:
    """A cell that says a number which no journal may hold: a judge's server can say anything."""
    usage, judge_usage = dict.fromkeys(result.usage), dict.fromkeys(result.judge_usage)
    error = replace(result, verdict="error", composite=None, error=problem, reason=problem)
    return replace(error, usage=usage, judge_usage=judge_usage)


def _agent_result(run: AgentRun | None, kind: str, masker: Masker) -> AgentResult | None:
    if run is None or kind == "none":
        return None
    return AgentResult(
        exit_code=run.exit_code,
        timed_out=run.timed_out,
        stopped=stopped_by(run),
        failure=masker.text(run.failure),
        duration_s=run.duration_s,
        output=bound(masker.text(run.output)),
        stderr=bound(masker.text(run.stderr), STDERR_LIMIT),
        signal=run.signal,
        note=masker.text(agent_note(run, kind)),
    )


def _masked_result(result: InvariantResult, masker: Masker) -> InvariantResult:
    return replace(result, message=masker.text(result.message), details=masker.value(result.details))
