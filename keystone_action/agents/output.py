"""From a finished command to an `AgentRun`: what the agent's answer is, by `agent.output`."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

from keystone_action.agents.result import MalformedResult, parse_result
from keystone_action.evidence.model import AgentRun, LongText, TooMuchPrinted
from keystone_action.files.paths import PathProblem, open_inside, read_head_inside
from keystone_action.spec.models.agents import AgentOutput
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, WHOLE_LIMIT, Capture, Completed

SHOWN_LIMIT = CAPTURE_HEAD + CAPTURE_TAIL
"""Bytes of an answer that are shown, from wherever it comes; a longer one is kept as a file."""
STDOUT, STDERR, ANSWER = "agent.stdout", "agent.stderr", "agent.output"
"""Names of these files, in a directory of ours."""


def record_run(completed: Completed, private: Path | None) -> AgentRun:
    """How the command ended, with its streams; no output yet. private: where `STDOUT` and `STDERR` are, None without
    them."""
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
        advice=completed.advice,
        processes=completed.processes,
        processes_left_out=completed.processes_left_out,
        long_stdout=_long(completed.stdout, private and private / STDOUT),
        long_stderr=_long(completed.stderr, private and private / STDERR),
    )


def _long(capture: Capture, file: Path | None) -> LongText | None:
    return LongText(capture.total, file, WHOLE_LIMIT) if capture.cut else None


def with_output(
    run: AgentRun,
    completed: Completed,
    source: Literal["stdout"] | AgentOutput,
    workspace: Path,
    private: Path | None,
) -> AgentRun:
    """The run with its answer; `problem` says why one that was asked for is missing. Blocks for a while where it is
    long."""
    if source == "stdout":
        return replace(run, output=run.stdout, long_output=run.long_stdout)
    if source.file is not None:
        return _from_file(run, workspace, source.file, private)
    return _from_stdout_document(run, completed.stdout, private)


def with_document(run: AgentRun, data: bytes, what: str, private: Path | None) -> AgentRun:
    """The run with what an AgentResult document says; what names the document in `problem`."""
    try:
        result = parse_result(data)
    except MalformedResult as malformed:
        return replace(run, problem=f"{what} is malformed: {malformed}")
    output, long = _keep_whole(result.output, private)
    return replace(
        run,
        output=output,
        long_output=long,
        tool_calls=result.tool_calls,
        token_usage=result.token_usage,
        reported=result.reported,
    )


def _from_file(run: AgentRun, workspace: Path, path: str, private: Path | None) -> AgentRun:
    try:
        head, size = read_head_inside(workspace, path, limit=SHOWN_LIMIT)
        if size <= SHOWN_LIMIT:
            return replace(run, output=head.decode("utf-8", "replace"))
        copy = None if private is None else _copy_output(workspace, path, private / ANSWER)
    except PathProblem as problem:
        return replace(run, problem=f"the output file could not be read: {problem}")
    return replace(run, output=_shorten(head, size), long_output=LongText(size, copy, WHOLE_LIMIT))


def _copy_output(workspace: Path, path: str, copy: Path) -> Path:
    """Out of the reach of what checks do to the workspace."""
    with os.fdopen(open_inside(workspace, path), "rb") as source, copy.open("wb") as file:
        # Of one that is too long, nothing is ever read: its holes may have any size.
        if os.fstat(source.fileno()).st_size <= WHOLE_LIMIT:
            shutil.copyfileobj(source, file)
    return copy


def _from_stdout_document(run: AgentRun, stdout: Capture, private: Path | None) -> AgentRun:
    what = "the JSON document on stdout"
    try:
        data = stdout.head + stdout.tail if run.long_stdout is None else run.long_stdout.read(what)
    except TooMuchPrinted as problem:
        return replace(run, problem=str(problem))
    return with_document(run, data, what, private)


def _keep_whole(text: str, private: Path | None) -> tuple[str, LongText | None]:
    """What is shown of a text, and where all of it is when that is not all."""
    data = text.encode()
    if len(data) <= SHOWN_LIMIT:
        return text, None
    file = None if private is None else private / ANSWER
    if file is not None:
        file.write_bytes(data)
    return _shorten(data, len(data)), LongText(len(data), file, WHOLE_LIMIT)


def _shorten(data: bytes, size: int) -> str:
    return Capture(data[:SHOWN_LIMIT], b"", size).text()
