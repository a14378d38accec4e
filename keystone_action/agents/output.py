"""From a finished command to an `AgentRun`: what the agent's answer is, by `agent.output`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from keystone_action.agents.result import MalformedResult, parse_result
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import CAPTURE_HEAD, CAPTURE_TAIL, Capture, Completed
from keystone_action.sandbox.paths import PathProblem, read_head_inside
from keystone_action.spec.agents import AgentOutput

OUTPUT_LIMIT = CAPTURE_HEAD + CAPTURE_TAIL
"""Bytes of an answer that are kept, from wherever it comes."""


def recorded(completed: Completed) -> AgentRun:
    """How the command ended, with its streams; no output yet."""
    return AgentRun(
        exit_code=completed.exit_code,
        signal=completed.signal,
        timed_out=completed.timed_out,
        limit=completed.limit,
        duration_s=completed.duration_s,
        stdout=completed.stdout.text(),
        stderr=completed.stderr.text(),
        stdout_bytes=completed.stdout.total,
        stderr_bytes=completed.stderr.total,
        leftovers=completed.leftovers,
    )


def with_output(
    run: AgentRun, completed: Completed, source: Literal["stdout"] | AgentOutput, workspace: Path
) -> AgentRun:
    """The run with its answer; `problem` says why one that was asked for is missing."""
    if source == "stdout":
        return replace(run, output=run.stdout)
    if source.file is not None:
        return _from_file(run, workspace, source.file)
    return _from_stdout_document(run, completed.stdout)


def with_document(run: AgentRun, data: bytes, what: str) -> AgentRun:
    """The run with what an AgentResult document says; what names the document in `problem`."""
    try:
        result = parse_result(data)
    except MalformedResult as malformed:
        return replace(run, problem=f"{what} is malformed: {malformed}")
    output = _bounded(result.output.encode()[: OUTPUT_LIMIT + 1], len(result.output.encode()))
    return replace(
        run,
        output=output,
        tool_calls=result.tool_calls,
        token_usage=result.token_usage,
        reported=result.reported,
    )


def _from_file(run: AgentRun, workspace: Path, path: str) -> AgentRun:
    try:
        head, size = read_head_inside(workspace, path, limit=OUTPUT_LIMIT)
    except PathProblem as problem:
        return replace(run, problem=f"the output file could not be read: {problem}")
    return replace(run, output=_bounded(head, size))


def _from_stdout_document(run: AgentRun, stdout: Capture) -> AgentRun:
    if stdout.cut:
        problem = f"the JSON document on stdout is too large: {stdout.total:,} bytes, at most {OUTPUT_LIMIT:,} are kept"
        return replace(run, problem=problem)
    return with_document(run, stdout.head + stdout.tail, "the JSON document on stdout")


def _bounded(head: bytes, size: int) -> str:
    if size <= OUTPUT_LIMIT:
        return head.decode("utf-8", "replace")
    return Capture(head[:OUTPUT_LIMIT], b"", size).text()
