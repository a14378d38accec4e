"""A conversation with an agent: it runs once for each turn, and its HOME, its workspace and its session stay
(contract, 5.7 "turns").

Whose turn it is next is said by a `Speaker`. A turn that fails ends the conversation; what the agent did until then is
graded. The runs of all turns become one `AgentRun`, with the turns apart in `AgentRun.turns`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import anyio.to_thread

from keystone_action.agents.program import ANSWER, STDERR, STDOUT, ProgramMissing
from keystone_action.evidence.agent_run import AgentRun, AgentTurn, LongText
from keystone_action.spec.models.agents import AgentOutput
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, TRANSCRIPT_LIMIT, WHOLE_LIMIT, Capture

if TYPE_CHECKING:
    from keystone_action.evidence.audit import TurnTimes
    from keystone_action.evidence.trace import Trace
    from keystone_action.spec.models.agents import AgentBase

SHOWN_LIMIT = CAPTURE_HEAD + CAPTURE_TAIL
_NOT_FOUND = 127
_PIECE = 1 << 20


class Speaker(Protocol):
    """Who talks to the agent."""

    async def next_text(self, turns: Sequence[AgentTurn]) -> str | None:
        """What is said after these turns; None when there is nothing more to say."""


@dataclass(frozen=True, slots=True)
class Script:
    """A speaker who says what stands in the spec, whatever the agent answers."""

    texts: Sequence[str]
    """The prompt first."""

    async def next_text(self, turns: Sequence[AgentTurn]) -> str | None:
        """See Speaker."""
        return self.texts[len(turns)] if len(turns) < len(self.texts) else None


RunTurn = Callable[[str, tuple[AgentTurn, ...], tuple[AgentRun, ...]], Awaitable[AgentRun]]
"""Runs the agent for one turn: what is said, the turns before it, and their runs."""
ReadTurn = Callable[[AgentRun], "tuple[AgentRun, Trace | None]"]
"""The run with the answer that its transcript tells, and what the transcript or the result tells. Blocks."""


async def converse(
    agent: AgentBase,
    speaker: Speaker,
    run_turn: RunTurn,
    read_turn: ReadTurn,
    *,
    times: TurnTimes,
    is_over: Callable[[], bool],
    private: Path,
) -> AgentRun:
    """The run of the whole conversation. is_over: whether no further turn may begin, the budget being spent. private: a
    directory of ours for what is too long to be kept in memory.

    Raises HarnessError.
    """
    runs: list[AgentRun] = []
    turns: list[AgentTurn] = []
    while (text := await speaker.next_text(turns)) is not None:
        if runs and (_failed(agent, runs[-1]) or is_over()):
            break
        times.begin()
        try:
            run = await run_turn(text, tuple(turns), tuple(runs))
        except ProgramMissing as missing:
            if not runs:
                raise
            # It was there when the first turn began.
            run = AgentRun(exit_code=_NOT_FOUND, problem=f"in turn {len(runs) + 1}: {missing}")
        run, trace = await anyio.to_thread.run_sync(read_turn, run)
        runs.append(run)
        turns.append(AgentTurn(text, run.output, run.long_output, run.problem, run.duration_s, trace))
    times.end()
    return await anyio.to_thread.run_sync(_join, agent, runs, tuple(turns), private)


def _failed(agent: AgentBase, run: AgentRun) -> bool:
    """Whether the agent can't be talked to any more."""
    ended_well = run.exit_code in (0, None) and run.signal is None and not run.timed_out and run.limit is None
    # A file is the answer when all has been said: an earlier turn may do without one.
    has_answer = _answers_by_file(agent) or not run.problem
    return not (ended_well and has_answer) or bool(run.stopped or run.failure or run.shortage)


def _answers_by_file(agent: AgentBase) -> bool:
    return isinstance(agent.output, AgentOutput) and agent.output.file is not None


def _join(agent: AgentBase, runs: Sequence[AgentRun], turns: tuple[AgentTurn, ...], private: Path) -> AgentRun:
    """One run of all of them: how the last one ended, and what all of them printed, answered and used."""
    last = runs[-1]
    stdout, long_stdout = _join_texts([(run.stdout, run.long_stdout) for run in runs], private / STDOUT)
    stderr, long_stderr = _join_texts([(run.stderr, run.long_stderr) for run in runs], private / STDERR)
    transcript = _join_transcripts(runs, private / f"transcript-{STDOUT}")
    if _answers_by_file(agent):
        output, long_output = last.output, last.long_output
    else:
        output, long_output = _join_texts([(run.output, run.long_output) for run in runs], private / ANSWER)
    calls = [run.tool_calls for run in runs if run.tool_calls is not None]
    return replace(
        last,
        turns=turns,
        session=None,
        duration_s=sum(run.duration_s for run in runs),
        output=output,
        long_output=long_output,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=sum(run.stdout_bytes for run in runs),
        stderr_bytes=sum(run.stderr_bytes for run in runs),
        long_stdout=long_stdout,
        long_stderr=long_stderr,
        transcript=transcript,
        leftovers=sum(run.leftovers for run in runs),
        calls_problem=next((run.calls_problem for run in runs if run.calls_problem), ""),
        tool_calls=tuple(call for some in calls for call in some) if calls else None,
        processes=tuple({**process, "turn": turn} for turn, run in enumerate(runs, 1) for process in run.processes),
        processes_left_out=sum(run.processes_left_out for run in runs),
    )


def _join_texts(parts: Sequence[tuple[str, LongText | None]], place: Path) -> tuple[str, LongText | None]:
    """The texts one after the other, each on a line of its own: what is shown of them, and, where that is not all, the
    whole. place: where the whole may be written."""
    if all(long is None for _, long in parts):
        joined = b""
        for text, _ in parts:
            joined += _separator(joined[-1:], text) + text.encode("utf-8", "replace")
        if len(joined) <= SHOWN_LIMIT:
            return joined.decode(), None
    size = sum(long.size if long else len(text.encode("utf-8", "replace")) for text, long in parts)
    if size > WHOLE_LIMIT or any(long and long.file is None for _, long in parts):
        # Nobody can judge it; what each of them shows is shown.
        return "\n".join(text for text, _ in parts if text), LongText(size, None, WHOLE_LIMIT)
    with place.open("w+b") as file:
        for text, long in parts:
            _append(file, text, long)
        return _shown(file), LongText(file.seek(0, os.SEEK_END), place, WHOLE_LIMIT)


def _separator(last: bytes, text: str) -> bytes:
    return b"\n" if text and last not in (b"", b"\n") else b""


def _append(file: BinaryIO, text: str, long: LongText | None) -> None:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
    last = file.read(1)
    file.seek(0, os.SEEK_END)
    file.write(_separator(last, text))
    if long is None or long.file is None:
        file.write(text.encode("utf-8", "replace"))
        return
    with long.file.open("rb") as source:
        shutil.copyfileobj(source, file, _PIECE)


def _shown(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(CAPTURE_HEAD)
    file.seek(max(CAPTURE_HEAD, size - CAPTURE_TAIL))
    return Capture(head, file.read(), size).text()


def _join_transcripts(runs: Sequence[AgentRun], place: Path) -> Path | None:
    """All that was printed, for those who look through all of it; None where it is not the declared trace."""
    if all(run.transcript is None for run in runs):
        return None
    with place.open("wb") as file:
        for run in runs:
            if run.transcript is None or not run.transcript.exists() or file.tell() > TRANSCRIPT_LIMIT:
                continue
            with run.transcript.open("rb") as source:
                shutil.copyfileobj(source, file, _PIECE)
    return place
