"""What the agent did, as far as its transcript or its result tells: `Evidence.observed`, and our own copy of it.

What the audit log gets once an agent has ended: the files that it changed, its processes, and what it wrote into
databases.
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

from keystone_action.errors import OutputError, raise_unless_agent
from keystone_action.evidence.audit import now, shown_time
from keystone_action.evidence.trace import AGENT_RESULT
from keystone_action.files.paths import PathProblem, PathUnreadable, display_path, open_inside
from keystone_action.spec.models.agents import AgentOutput, PythonAgent
from keystone_action.system.command import TRANSCRIPT_LIMIT

if TYPE_CHECKING:
    from keystone_action.evidence.model import AgentRun
    from keystone_action.evidence.trace import Trace
    from keystone_action.evidence.writes import TableWrite
    from keystone_action.files.snapshot import Change, FileState
    from keystone_action.runner.cell.running_cell import CellUnderWay
    from keystone_action.spec.models.agents import AgentBase, AgentTrace

TRACE_LIMIT = TRANSCRIPT_LIMIT
"""Bytes of a transcript that are read."""


def observe(agent: AgentBase, run: AgentRun, workspace: Path, copy: Path) -> Trace | None:
    """The trace that `agent.trace` declares, else that of an AgentResult; None when there is neither.

    A trace that was declared and is missing or malformed has a `problem` (contract, 5.1). The trace is written to
    `copy`; without one, `copy` stays as it is. Raises OSError for `copy`.
    """
    trace = _from_result(agent, run) if agent.trace is None else _read_declared_trace(agent.trace, run, workspace)
    if trace is not None:
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
    if result_declared and not to_a_file and run.problem:
        return _unread(AGENT_RESULT, run.problem)
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


def write_events(under_way: CellUnderWay) -> None:
    """What the spec wants of `file_change`, `process` and `db_write`. Raises OutputError, and what services raise."""
    ts = now()
    try:
        for change in under_way.all_changes:
            under_way.audit.write("file_change", _file_change(change), ts=ts)
        for process in under_way.agent_run.processes if under_way.agent_run is not None else ():
            under_way.audit.write("process", _process(process), ts=_moment(process["started"]))
        if under_way.agent_run is not None and (count := under_way.agent_run.processes_left_out):
            under_way.audit.write("processes_left_out", {"count": count}, ts=ts)
        for write in _table_writes(under_way):
            under_way.audit.write("db_write", _db_write(write), ts=write.ts or ts)
    except OSError as error:
        raise OutputError(f"the audit log can't be written: {error.strerror or error}") from error


def _table_writes(under_way: CellUnderWay) -> Iterator[TableWrite]:
    if under_way.spec.watches_writes:
        from keystone_action.runner.cell.forbidden.judging import write_logs

        for log in write_logs(under_way, "audit.db_writes").values():
            yield from log.writes()


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
