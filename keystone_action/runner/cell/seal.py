"""The third stage of a cell: the agent has ended, and what is known of it becomes `Evidence`, which judging reads.

The network and the services are closed to the agent, its files compared with what was there before, its transcript
read, and the audit log completed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio

from keystone_action.errors import HarnessError, KeystoneError, OutputError, ServiceError, raise_unless_agent
from keystone_action.evidence.audit import now, shown_time
from keystone_action.evidence.model import AuditEvidence, Evidence, FileEvidence
from keystone_action.evidence.trace import AGENT_RESULT
from keystone_action.files.paths import PathProblem, PathUnreadable, display_path, open_inside
from keystone_action.files.workspace import compare_entries, compare_whole, snapshot, snapshot_git, write_patch
from keystone_action.invariants.check import Check
from keystone_action.runner.cell.grading import unreadable
from keystone_action.runner.cell.model_gateway import settle_models
from keystone_action.spec.agent_service import is_elsewhere
from keystone_action.spec.models.agents import AgentOutput, HttpAgent, PresetAgent, PythonAgent
from keystone_action.system.command import TRANSCRIPT_LIMIT

if TYPE_CHECKING:
    from keystone_action.evidence.agent_run import AgentRun
    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.model import ObservedService
    from keystone_action.evidence.trace import Trace
    from keystone_action.evidence.writes import TableWrite, WriteLog
    from keystone_action.files.snapshot import Change, FileState, Snapshot
    from keystone_action.runner.cell.prepare import Prepared
    from keystone_action.runner.cell.running_cell import RunningCell
    from keystone_action.services.service import Place
    from keystone_action.spec.models.agents import AgentBase, AgentTrace

TRACE_LIMIT = TRANSCRIPT_LIMIT
"""Bytes of a transcript that are read."""


async def seal(prepared: Prepared, run: AgentRun) -> Evidence:
    """What is known of an agent that has ended. What broke meanwhile is said by the evidence; where there can be none,
    this raises it.

    Raises PathUnreadable for a workspace that the agent made unreadable, HarnessError.
    """
    progress = prepared.running.progress
    run, broken = await _settle(prepared, run)
    if broken is None:
        progress.allow_rerun("never")  # its run is complete; what its own transcript breaks buys no other one
    progress.enter("checks")
    try:
        # In a thread, so that the cell's time limit ends a look which never ends.
        return await anyio.to_thread.run_sync(_look, prepared, run, broken)
    except KeystoneError as error:
        raise broken or error from None


async def _settle(prepared: Prepared, run: AgentRun) -> tuple[AgentRun, KeystoneError | None]:
    """What the agent could reach is closed to it, and what it sent is on record. Returns its run as the gateway saw it
    end, and what broke, so that nothing is known of the agent but what it did against a rule."""
    running, connections = prepared.running, prepared.connections
    models, places = connections.models, connections.places
    try:
        if models is not None:
            run = await settle_models(models, running, prepared.task.agent, run, connections.audit)
            running.progress.end_agent(run)
            if defects := models.gateway.defects:
                raise ServiceError(f"the model gateway broke while it served: {defects[0]}")
        await connections.settle_proxy(running)
        if places:
            await anyio.to_thread.run_sync(_settle_places, places)
        if defects := running.run.servers.defects():
            raise ServiceError(f"the mock server broke while it served: {defects[0]}")
        if problem := run.shortage or connections.network.incomplete():
            raise HarnessError(problem)
    except KeystoneError as error:
        return run, error
    return run, None


def _settle_places(places: Mapping[str, Place]) -> None:
    """All of them, whichever breaks: another may know of a violation. Raises what the first one raised."""
    problem: KeystoneError | None = None
    for place in places.values():
        try:
            place.settle()
        except KeystoneError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _look(prepared: Prepared, run: AgentRun, broken: KeystoneError | None) -> Evidence:
    running, connections = prepared.running, prepared.connections
    roots, models = running.roots, connections.models
    files = _compare_files(prepared)
    declared = _declared(prepared, run)
    running.progress.note(*notices(declared))
    run = run if run.turns else take_answer(prepared.task.agent, run, declared)
    running.progress.end_agent(run)
    observed = _trace_of_checks(prepared, declared)
    running.progress.observe(observed)
    proxy = connections.network.proxy
    evidence = Evidence(
        cell_id=running.cell.id,
        task_prompt=prepared.task.prompt,
        params=running.cell.params,
        agent=run,
        workspace=roots.workspace,
        packages=found if (found := roots.agent_packages).is_dir() else None,
        files=files,
        audit=AuditEvidence(
            log=roots.audit_log,
            agent_start=prepared.audit_start,
            own_addresses=_own_addresses(prepared),
            is_full=proxy is not None and proxy.is_full,
        ),
        trace=roots.trace,
        observed=observed,
        declared=declared,
        models=None if models is None else models.evidence(),
        services=connections.places,
        secrets=tuple(running.secrets.values.values()),
        broken=broken,
    )
    problem = _write_events(running, evidence, connections.audit)
    return evidence if problem is None or broken is not None else replace(evidence, broken=problem)


def _declared(prepared: Prepared, run: AgentRun) -> Trace | None:
    """The agent's own word on what it did, in all its turns. Raises OSError where our copy can't be written."""
    roots, agent = prepared.running.roots, prepared.task.agent
    told = [turn.trace for turn in run.turns if turn.trace is not None]
    if not run.turns or (agent.trace is not None and agent.trace.path is not None) or not told:
        return observe(agent, run, roots.workspace, roots.trace)
    from keystone_action.evidence.trace import Trace, join_turns, write_trace
    from keystone_action.evidence.trace_readers.reading import reader_of

    source = told[0].source
    traces = [turn.trace or Trace(source=source) for turn in run.turns]
    of_session = source != AGENT_RESULT and (reader_of(source).usage_of_session or _counts_its_session(agent))
    joined = join_turns(traces, usage_of_last=of_session)
    write_trace(joined, roots.trace)
    return joined


def _counts_its_session(agent: AgentBase) -> bool:
    if not isinstance(agent, PresetAgent):
        return False
    from keystone_action.agents.presets.preset import load_preset

    talk = load_preset(agent.type).conversation
    return talk is not None and talk.usage_of_session


def _own_addresses(prepared: Prepared) -> frozenset[tuple[str, int]]:
    network, models = prepared.connections.network.own, prepared.connections.models
    if network is None or models is None:
        return frozenset()
    return frozenset({(network.host_address, models.gateway.port)})


def _compare_files(prepared: Prepared) -> FileEvidence:
    """What the agent left, and what of it is not as it was."""
    before, workspace = prepared.before, prepared.running.roots.workspace
    known = None if _changes_decide(prepared.running) else before.entries
    after = snapshot(workspace, known, attributes=before.git is not None)
    changes = compare_entries(before.entries, after)
    patch = write_patch(before.originals, workspace, changes)
    closed = unreadable(before.entries.unreadable, after.unreadable)
    return FileEvidence(
        before=before.entries,
        after=after,
        changes=changes,
        all_changes=_all_changes(before.entries, before.git, after, workspace),
        patch=patch.text,
        patch_cut=patch.cut,
        originals=before.originals,
        unreadable=closed or prepared.opened.sandbox.loss,
    )


def _all_changes(before: Snapshot, git: Snapshot | None, after: Snapshot, workspace: Path) -> tuple[Change, ...]:
    if git is None:
        return ()
    return compare_whole({**before, **git}, {**after, **snapshot_git(workspace, after)})


def _changes_decide(running: RunningCell) -> bool:
    """Whether something depends on which files the agent changed."""
    spec = running.spec
    checks = (one.check for one in running.invariants.values())
    judged = any(isinstance(check, Check) and check.judges_changes for check in checks)
    return bool(spec.forbidden.needs_changes or spec.audit.file_changes or judged)


def _trace_of_checks(prepared: Prepared, declared: Trace | None) -> Trace | None:
    """The trace that checks read: the gateway's where it must have seen everything, else the agent's own word
    (contract, 5.6 "Which trace checks read"). Raises OSError where our copy can't be written."""
    running, models = prepared.running, prepared.connections.models
    egress = running.spec.egress
    is_denied = egress.default == "deny"
    by_ports = is_denied and running.image is None and running.run.provider.networks.way == "ports"
    # What an agent elsewhere asks models for does not pass the cell's network.
    is_seen = not is_elsewhere(running.spec, running.cell.agent, running.cell.params)
    is_only_way = is_denied and not egress.allow and not by_ports and is_seen
    if models is None or not (models.gateway.ledger.answered or is_only_way):
        return declared
    from keystone_action.evidence.trace import with_turns, write_trace
    from keystone_action.gateway.trace import differences, trace_of, with_declared

    ledger = models.gateway.ledger
    seen = with_turns(trace_of(ledger.exchanges, ledger.spent), prepared.connections.audit.turns.at)
    if declared is not None and not declared.problem:
        running.progress.note(*differences(seen, declared))
        seen = with_declared(seen, declared)
    if running.spec.forbidden.needs_trace and not is_only_way:
        why = "network.egress is denied by ports" if by_ports else "network.egress is open"
        running.progress.note(f"forbidden.tools and forbidden.commands hold as far as the gateway saw: {why}")
    write_trace(seen, running.roots.trace)
    return seen


def observe(agent: AgentBase, run: AgentRun, workspace: Path, copy: Path | None) -> Trace | None:
    """The trace that `agent.trace` declares, else that of an AgentResult; None when there is neither.

    A trace that was declared and is missing or malformed has a `problem` (contract, 5.1). The trace is written to
    `copy`, where that is named; without a trace, `copy` stays as it is. Raises OSError for `copy`.
    """
    trace = _from_result(agent, run) if agent.trace is None else _read_declared_trace(agent.trace, run, workspace)
    if trace is not None and copy is not None:
        from keystone_action.evidence.trace import write_trace

        write_trace(trace, copy)
    return trace


def take_answer(agent: AgentBase, run: AgentRun, trace: Trace | None) -> AgentRun:
    """The run with the answer that its transcript tells, where that is what the agent prints: what passes for its
    output is what it said in the end, not the record of how it came to that. stdout stays as it was printed.

    A transcript that can't be read, or tells no answer, leaves none, and `problem` says so: what a tool returned or a
    prompt asked for earns no credit as an answer. The format otel has none to tell.
    """
    declared = agent.trace
    if trace is not None:
        run = replace(run, failure=trace.failure)
    if trace is None or declared is None or declared.path is not None or agent.output != "stdout":
        return run
    from keystone_action.evidence.trace_readers.reading import reader_of

    if not reader_of(declared.format).tells_answer:
        return run
    problem = trace.problem or ("" if trace.final_output else "the trace on stdout tells no final answer")
    answer = "" if problem else trace.final_output
    return replace(run, output=answer, long_output=None, problem=run.problem or problem)


def notices(trace: Trace | None) -> tuple[str, ...]:
    """What people should know of a trace: why it can't be used, and what of it was not understood."""
    if trace is None:
        return ()
    problem = (trace.problem,) if trace.problem else ()
    skipped = "; ".join(trace.not_understood)
    return (*problem, f"not understood of the agent's trace: {skipped}") if skipped else problem


def _from_result(agent: AgentBase, run: AgentRun) -> Trace | None:
    output = agent.output
    to_a_file = isinstance(output, AgentOutput) and output.file is not None
    result_declared = isinstance(output, AgentOutput) or isinstance(agent, PythonAgent)
    result_declared = result_declared or (isinstance(agent, HttpAgent) and agent.tool_calls_path is not None)
    problem = run.problem or run.calls_problem
    if result_declared and not to_a_file and problem:
        return _unread(AGENT_RESULT, problem)
    if run.tool_calls is None and run.token_usage is None:
        return None
    from keystone_action.evidence.trace_readers.reading import trace_of_result

    return trace_of_result(run)


def _read_declared_trace(declared: AgentTrace, run: AgentRun, workspace: Path) -> Trace:
    from keystone_action.evidence.trace_readers.reading import read_trace

    if declared.path is None:
        return _from_stdout(declared, run)
    what = f"the trace {display_path(declared.path)}"
    try:
        with _open_regular_file(workspace, declared.path) as file:
            return read_trace(file, declared.format, what)
    except PathProblem as problem:
        return _unread(declared.format, f"{what} could not be read: {problem}")
    except OSError as error:
        raise_unless_agent(error, f"reading {what}")
        return _unread(declared.format, f"{what} could not be read: {error.strerror or error}")


def _from_stdout(declared: AgentTrace, run: AgentRun) -> Trace:
    from keystone_action.evidence.trace_readers.reading import read_trace

    what = "the trace on stdout"
    if run.transcript is None or not run.stdout_bytes:
        return _unread(declared.format, f"{what} is empty")
    if run.stdout_bytes > TRACE_LIMIT:
        # What was not kept may hold any number of calls: a count of the rest would be a wrong one.
        problem = f"{what} has {run.stdout_bytes:,} bytes; of a trace at most {TRACE_LIMIT:,} are read"
        return _unread(declared.format, problem)
    with run.transcript.open("rb") as file:
        return read_trace(file, declared.format, what)


@contextmanager
def _open_regular_file(workspace: Path, path: str) -> Iterator[BinaryIO]:
    """A regular file of the workspace as the agent left it. Raises PathProblem, OSError."""
    descriptor = open_inside(workspace, path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PathUnreadable(f"{display_path(path)} is not a regular file")
        if status.st_size > TRACE_LIMIT:
            raise PathUnreadable(
                f"{display_path(path)} has {status.st_size:,} bytes; of a trace at most {TRACE_LIMIT:,} are read"
            )
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _unread(source: str, problem: str) -> Trace:
    """What stands for a trace that can't be read. problem: why."""
    from keystone_action.evidence.trace import Trace

    return Trace(source=source, problem=problem)


def _write_events(running: RunningCell, evidence: Evidence, audit: AuditLog) -> KeystoneError | None:
    """What the spec wants of `file_change`, `process` and `db_write`. Returns why the writes into a database can't be
    told: rules may be violated for certain all the same. Raises OutputError."""
    ts, run, problem = now(), evidence.agent, None
    try:
        for change in evidence.files.all_changes:
            audit.write("file_change", _file_change(change), ts=ts)
        for process in run.processes:
            audit.write("process", _process(process), ts=_moment(process["started"]), turn=process.get("turn"))
        if run.processes_left_out:
            audit.write("processes_left_out", {"count": run.processes_left_out}, ts=ts)
        if running.spec.watches_writes:
            for log in write_logs(evidence.services, "audit.db_writes").values():
                try:
                    writes = log.writes()
                except KeystoneError as error:
                    problem = problem or error
                    continue
                for write in writes:
                    audit.write("db_write", _db_write(write), ts=write.ts or ts)
    except OSError as error:
        raise OutputError(f"the audit log can't be written: {error.strerror or error}") from error
    return problem


def write_logs(services: Mapping[str, ObservedService], what: str) -> dict[str, WriteLog]:
    """What was written into each database, by its service. what: the rule that asks. Raises HarnessError."""
    databases = {name: service for name, service in services.items() if service.database is not None}
    lacking = [name for name, service in databases.items() if service.writes is None]
    if lacking:
        raise HarnessError(f"{what}: what is written into {', '.join(lacking)} can't be seen")
    return {name: service.writes for name, service in databases.items() if service.writes is not None}


def _process(seen: Mapping[str, Any]) -> dict[str, Any]:
    code = None if seen["status"] is None else os.waitstatus_to_exitcode(seen["status"])
    return {
        "argv": seen["argv"],
        "pid": seen["pid"],
        "start": _moment(seen["started"]),
        "end": None if seen["ended"] is None else _moment(seen["ended"]),
        "exit": code,
        "how_known": "started" if seen["is_first"] else "seen",
    }


def _moment(seconds: float) -> str:
    return shown_time(datetime.fromtimestamp(seconds, UTC))


def _file_change(change: Change) -> dict[str, Any]:
    state = change.after if change.after is not None else change.before
    assert state is not None
    return {
        "path": display_path(change.path),
        "kind": change.change,
        "entry": state.kind,
        "size_before": _size(change.before),
        "size_after": _size(change.after),
    }


def _size(state: FileState | None) -> int | None:
    return state.size if state is not None and state.kind == "file" else None


def _db_write(write: TableWrite) -> dict[str, Any]:
    return {
        "service": write.service,
        "table": write.table,
        "what": write.what,
        "operation": write.operation,
        "rows": write.rows,
        "how_known": write.how_known,
    }
