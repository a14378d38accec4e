"""What the agent did, as far as its transcript or its result tells: `Evidence.observed`, and our own copy of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from keystone_action.errors import raise_unless_agent
from keystone_action.evidence.trace import AGENT_RESULT
from keystone_action.files.paths import PathProblem, PathUnreadable, display_path, open_inside
from keystone_action.spec.models.agents import AgentOutput, PythonAgent
from keystone_action.system.command import TRANSCRIPT_LIMIT

if TYPE_CHECKING:
    from keystone_action.evidence.model import AgentRun
    from keystone_action.evidence.trace import Trace
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
    from keystone_action.evidence.trace_readers.agent_result import trace_of_result

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
