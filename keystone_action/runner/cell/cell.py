"""The life of one cell: four stages, each with a record of what it came to.

`prepare` → `Prepared` → `run_agent` → `AgentRun` → `seal` → `Evidence` → `judge` → `CellResult`, in the order of the
contract (5.2). (Secrets are resolved once for the run; a network policy holds from the start of the agent's container.)
A cell ends at its limit, also where a thread of ours hangs in it and hears of no cancellation.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from keystone_action.agents.program import AgentCall, write_prompt
from keystone_action.agents.run import call_agent
from keystone_action.errors import KeystoneError
from keystone_action.files.paths import PathUnreadable
from keystone_action.invariants.check import Check
from keystone_action.runner.cell.grading import broken_result, error_result, unreadable_result
from keystone_action.runner.cell.judge import JudgedCell, judge
from keystone_action.runner.cell.known_agent import record_version, tell_switched_off
from keystone_action.runner.cell.model_gateway import begin_recording
from keystone_action.runner.cell.prepare import Prepared, fill_agent, prepare
from keystone_action.runner.cell.python_packages import keep_agent_packages
from keystone_action.runner.cell.running_cell import CellFiles, CellProgress, Rerun, RunningCell
from keystone_action.runner.cell.seal import observe, seal, take_answer
from keystone_action.system import signals
from keystone_action.system.shortage import machine_shortage

if TYPE_CHECKING:
    from keystone_action.evidence.agent_run import AgentRun, AgentTurn
    from keystone_action.evidence.trace import Trace
    from keystone_action.runner.cell.running_cell import Expressions
    from keystone_action.runner.cell.sandbox_setup import AgentTask
    from keystone_action.runner.started_run import StartedRun
    from keystone_action.scoring.results import CellResult
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.plan import Cell

T = TypeVar("T")
_CLEANUP_SECONDS = 20.0
"""For what is cancelled to clean up after itself."""
_UNWIND_SECONDS = 10.0
"""For its clean-up after it was torn from the wait for its thread."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt at a cell came to."""

    result: CellResult

    rerun: Rerun
    """Whether the cell may be run again where the result is an error."""


async def run_cell(cell: Cell, run: StartedRun) -> Attempt:
    """One attempt at a cell. Failures of the harness become a result with the verdict `error`; only cancellation and
    results that can't be written leave as exceptions."""
    started = time.monotonic()
    limit = cell.loaded.spec.resources.timeout
    files = CellFiles(run.planned.directory / "cells" / cell.id, run.masker)
    files.start()
    progress = CellProgress(cell.id, run.planned.progress, verbose=run.planned.options.caller.verbose)
    running = RunningCell(cell, run, run.cell_roots(cell), files, progress, started)
    try:
        result = await within(limit, lambda: _live(running))
    except LimitReached:
        message = f"the cell took longer than resources.timeout ({limit:g} s); it was in: {progress.place}"
        result = broken_result(running, message)
    except KeystoneError as error:
        result = broken_result(running, error.sentences)
    except Exception as error:  # noqa: BLE001 - a defect of ours is this cell's error, never a failed agent
        files.failure(traceback.format_exc())
        internal = f"internal error: {type(error).__name__}: {error} (see internal-error.log)"
        result = error_result(running, machine_shortage(error) or internal)
    finally:
        if not run.planned.options.running.keep:
            with anyio.CancelScope(shield=True):
                await remove_roots(running)
    return Attempt(result, progress.rerun)


async def remove_roots(running: RunningCell) -> None:
    """Remove what the cell has on disk, without a thread where the machine starts none: no result is lost for that."""
    try:
        await anyio.to_thread.run_sync(running.roots.remove)
    except RuntimeError as error:
        if not machine_shortage(error):
            raise
        running.roots.remove()


async def _live(running: RunningCell) -> CellResult:
    async with prepare(running) as prepared:
        await running.run.may_start_agent()
        agent_run = await run_agent(prepared)
        try:
            evidence = await seal(prepared, agent_run)
            cell = JudgedCell(running, prepared.task.agent, evidence, prepared.checks, prepared.expressions)
            result = await judge(cell)
        except PathUnreadable as error:
            return unreadable_result(running, error)
    try:
        if prepared.connections.models is not None:
            await prepared.connections.models.keep_recording(result, running.run.masker)
    except KeystoneError as error:
        return error_result(running, error.sentences)
    return result


async def run_agent(prepared: Prepared) -> AgentRun:
    """The second stage: the agent runs to its end, or once for each turn. All its processes are gone then, and its HOME
    and TMPDIR too. Raises HarnessError."""
    running, task, models = prepared.running, prepared.task, prepared.connections.models
    running.progress.enter("agent")
    agent, expressions, sandbox = task.agent, prepared.expressions, prepared.opened.sandbox
    call = _call(prepared)
    await record_version(prepared)
    tell_switched_off(prepared)
    if models is not None:
        addresses = prepared.connections.addresses
        await anyio.to_thread.run_sync(begin_recording, models, running, sandbox, addresses)
    running.progress.allow_rerun("once")
    service = None
    if prepared.connections.start_agent is not None:
        service = await prepared.connections.start_agent()
        # It is this service, whose address is known only now.
        services = {**expressions.names["services"], service.place.name: service.place.for_agent.as_mapping()}
        expressions = expressions.knowing(services=services)
        agent = fill_agent(running, expressions)
        call = replace(call, has_ended=service.place.has_ended)
    if task.turns:
        run = await _converse(prepared, agent, expressions, call)
    else:
        run = await call_agent(agent, sandbox, call)
    if service is not None:
        run = await service.end(run)
    running.progress.end_agent(run)
    if any(_reads_packages(one.check) for one in running.invariants.values()):
        left_out = await keep_agent_packages(sandbox, running.roots.workspace, running.roots.agent_packages)
        running.progress.note(*left_out)
    else:
        await sandbox.close()
    return run


def _reads_packages(check: object) -> bool:
    return isinstance(check, Check) and check.reads_agent_packages


def _call(prepared: Prepared) -> AgentCall:
    """The agent's only call, or its first one. Raises HarnessError."""
    running, task, models = prepared.running, prepared.task, prepared.connections.models
    context = {"params": dict(running.cell.params), "services": prepared.expressions.names["services"]}
    return AgentCall(
        prompt=task.prompt,
        environment=_environment(prepared, task, 1 if task.turns else None),
        inputs=task.inputs,
        agent_directory=task.directory,
        context=context if running.loaded.agent_gets_context else None,
        private=running.roots.private,
        transcript=bool(task.agent.trace and task.agent.trace.stdout),
        stop=models.budget_spent if models is not None else None,
        gateways={} if models is None else models.gateway.addresses_of_apis,
        deny_provider_tools=models is not None and models.gateway.configuration.deny_provider_tools,
        system=prepared.expressions.fill(running.spec.task.system or ""),
        lists_processes=running.spec.audit.processes,
        mcp_servers=prepared.connections.mcp_servers(running.spec.services),
        names={name: value for name, value in prepared.expressions.names.items() if name in ("task", "record")},
        is_own_service=prepared.connections.start_agent is not None,
        services=_containers(prepared),
        converses=bool(task.turns),
    )


def _containers(prepared: Prepared) -> dict[str, str]:
    """See AgentCall.services."""
    spec, addresses = prepared.running.spec, prepared.connections.addresses
    names = [one.name for one in spec.services if one.kind == "container" and one.name in addresses]
    hosts = {host: name for host, name in spec.network.dns_overrides.items() if name in names}
    return hosts | {name: name for name in names} | {f"{(at := addresses[n]).host}:{at.port}": n for n in names}


async def _converse(prepared: Prepared, agent: AgentBase, expressions: Expressions, first: AgentCall) -> AgentRun:
    """The agent runs once for each turn. expressions: of its texts. Raises HarnessError."""
    from keystone_action.runner.cell.conversation import Script, converse

    running, task, models = prepared.running, prepared.task, prepared.connections.models
    times, private = prepared.connections.audit.turns, running.roots.private

    async def run_turn(text: str, history: tuple[AgentTurn, ...], earlier: tuple[AgentRun, ...]) -> AgentRun:
        turn = len(earlier) + 1
        own = private / f"turn-{turn}"
        own.mkdir()
        running.progress.begin_turn(turn)
        if turn == 1:
            return await call_agent(agent, prepared.opened.sandbox, replace(first, private=own))
        said = await anyio.to_thread.run_sync(_say, prepared, expressions, text, turn)
        call = replace(
            first,
            prompt=text,
            environment=_environment(prepared, said, turn),
            inputs=said.inputs,
            private=own,
            turn=turn,
            earlier=earlier,
            history=history,
        )
        return await call_agent(said.agent, prepared.opened.sandbox, call)

    def read_turn(run: AgentRun) -> tuple[AgentRun, Trace | None]:
        roots = running.roots
        trace = None if agent.trace and agent.trace.path else observe(agent, run, roots.workspace, None)
        return take_answer(agent, run, trace), trace

    run = await converse(
        agent,
        Script((task.prompt, *task.turns)),
        run_turn,
        read_turn,
        times=times,
        is_over=lambda: models is not None and models.is_over,
        private=private,
    )
    if len(run.turns) <= len(task.turns):
        return replace(run, unheard=f"the conversation ended with turn {len(run.turns)} of {1 + len(task.turns)}")
    return run


def _say(prepared: Prepared, expressions: Expressions, text: str, turn: int) -> AgentTask:
    """The task of a later turn: what is said takes the place of the prompt. Raises HarnessError."""
    known = expressions.knowing(task={**expressions.names["task"], "prompt": text})
    agent = fill_agent(prepared.running, known)
    return replace(prepared.task, agent=agent, prompt=text, inputs=write_prompt(prepared.task.inputs, text, turn))


def _environment(prepared: Prepared, task: AgentTask, turn: int | None) -> Mapping[str, str]:
    """The agent's variables, with the cell's key in place of a provider's; the report says which. Raises
    HarnessError."""
    models, inside = prepared.connections.models, prepared.opened.sandbox.workspace_inside
    of_task = replace(prepared.opened.variables, task=task)
    if models is None:
        return of_task.of_agent(inside, None, turn)
    variables = of_task.of_agent(inside, models.gateway.variables, turn)
    replaced, names = models.gateway.without_keys(variables)
    if names and turn in (None, 1):
        running = prepared.running
        running.progress.note(f"{', '.join(names)}: the agent got the gateway's key instead of the provider's")
    return replaced


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
