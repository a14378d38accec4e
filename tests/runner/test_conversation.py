"""A conversation as one run: who speaks next, when it ends, and what of all turns is one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from keystone_action.agents.program import ProgramMissing
from keystone_action.errors import HarnessError, SandboxError
from keystone_action.evidence.agent_run import AgentRun, AgentTurn, LongText, TooMuchPrinted
from keystone_action.evidence.audit import AuditLog, TurnTimes, now, read_audit_log
from keystone_action.evidence.trace import Message, ToolCall, Trace, Usage, join_turns
from keystone_action.runner.cell import conversation
from keystone_action.runner.cell.conversation import Script, Speaker, converse
from keystone_action.spec.models.agents import CommandAgent
from keystone_action.system.command import WHOLE_LIMIT

AGENT = CommandAgent(type="command", command="true")
BY_FILE = CommandAgent.model_validate({"type": "command", "command": "true", "output": {"file": "answer.md"}})


@dataclass
class Talk:
    """runs: how the agent ends in each turn, or what is raised. said: what it was told."""

    runs: Sequence[AgentRun | Exception]
    agent: CommandAgent = AGENT
    over_after: int = 99
    said: list[tuple[str, int, int]] = field(default_factory=list)

    def hold(self, private: Path, speaker: Speaker | None = None) -> AgentRun:
        async def run_turn(text: str, history: tuple[AgentTurn, ...], earlier: tuple[AgentRun, ...]) -> AgentRun:
            self.said.append((text, len(history), len(earlier)))
            found = self.runs[len(earlier)]
            if isinstance(found, Exception):
                raise found
            return found

        async def held() -> AgentRun:
            return await converse(
                self.agent,
                speaker or Script(("one", "two", "three")),
                run_turn,
                lambda run: (run, None),
                times=TurnTimes(),
                is_over=lambda: len(self.said) >= self.over_after,
                private=private,
            )

        return anyio.run(held)


def well(text: str = "", **fields: Any) -> AgentRun:
    return AgentRun(exit_code=0, output=text, stdout=text, stdout_bytes=len(text), **fields)


def test_the_texts_come_one_after_the_other_and_the_answers_are_joined_by_a_line_break(tmp_path: Path) -> None:
    talk = Talk([well("a", duration_s=1.0, session="s"), well("b\n", duration_s=2.0), well("c", duration_s=4.0)])
    run = talk.hold(tmp_path)
    assert talk.said == [("one", 0, 0), ("two", 1, 1), ("three", 2, 2)]
    assert (run.output, run.stdout, run.duration_s, run.exit_code, run.session) == ("a\nb\nc", "a\nb\nc", 7.0, 0, None)
    assert [(turn.prompt, turn.output) for turn in run.turns] == [("one", "a"), ("two", "b\n"), ("three", "c")]


@pytest.mark.parametrize(
    "bad",
    [
        AgentRun(exit_code=3),
        AgentRun(signal=9),
        AgentRun(exit_code=0, timed_out=True),
        AgentRun(exit_code=0, limit="memory: too much"),
        AgentRun(exit_code=0, problem="the JSON document on stdout is malformed"),
        AgentRun(exit_code=0, failure="the turn failed"),
        AgentRun(exit_code=1, shortage="no space"),
    ],
    ids=["exit", "signal", "time", "limit", "problem", "failure", "shortage"],
)
def test_a_turn_that_fails_ends_it_and_is_how_the_agent_ended(tmp_path: Path, bad: AgentRun) -> None:
    talk = Talk([well("a"), bad, well("never")])
    run = talk.hold(tmp_path)
    assert [text for text, _, _ in talk.said] == ["one", "two"]
    assert replace(run, turns=(), output="", stdout="", stdout_bytes=0) == bad


def test_no_turn_begins_once_the_budget_is_spent(tmp_path: Path) -> None:
    talk = Talk([well("a"), well("b")], over_after=1)
    assert talk.hold(tmp_path).output == "a"


def test_a_program_that_is_gone_in_a_later_turn_is_the_agent_s_doing(tmp_path: Path) -> None:
    run = Talk([well("a"), ProgramMissing("the agent's program ./x is not in this sandbox")]).hold(tmp_path)
    assert (run.exit_code, run.output) == (127, "a")
    assert run.problem == "in turn 2: the agent's program ./x is not in this sandbox"
    for raised, error in (([ProgramMissing("x")], ProgramMissing), ([well(), SandboxError("x")], SandboxError)):
        with pytest.raises(error):
            Talk(raised).hold(tmp_path)


def test_a_file_is_the_answer_when_all_has_been_said(tmp_path: Path) -> None:
    missing = AgentRun(exit_code=0, problem="the output file could not be read: answer.md is missing")
    talk = Talk([missing, well("draft"), well("final")], agent=BY_FILE)
    run = talk.hold(tmp_path)
    assert (run.output, run.problem) == ("final", "")
    assert [turn.output for turn in run.turns] == ["", "draft", "final"]
    assert Talk([well("x"), missing, missing], agent=BY_FILE).hold(tmp_path).problem == missing.problem


def test_a_speaker_hears_the_answers(tmp_path: Path) -> None:
    class Echo:
        async def next_text(self, turns: Sequence[AgentTurn]) -> str | None:
            return None if len(turns) == 2 else f"you said {turns[-1].output}" if turns else "hello"

    talk = Talk([well("hi"), well("bye")])
    talk.hold(tmp_path, Echo())
    assert [text for text, _, _ in talk.said] == ["hello", "you said hi"]


def test_the_whole_of_long_texts_stays_and_what_nobody_kept_can_t_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "SHOWN_LIMIT", 10)
    monkeypatch.setattr(conversation, "CAPTURE_HEAD", 5)
    monkeypatch.setattr(conversation, "CAPTURE_TAIL", 5)
    whole = tmp_path / "whole"
    whole.write_text("0123456789" * 3)
    long = AgentRun(exit_code=0, stdout="01234…56789", stdout_bytes=30, long_stdout=LongText(30, whole, WHOLE_LIMIT))
    run = Talk([well("first"), long, well("last")]).hold(tmp_path)
    assert run.whole_stdout() == "first\n" + "0123456789" * 3 + "\nlast"
    assert run.stdout == "first\n[… 31 bytes cut …]\n\nlast"
    lost = replace(long, long_stdout=LongText(30, None, WHOLE_LIMIT))
    with pytest.raises(TooMuchPrinted):
        Talk([well("first"), lost, well("last")]).hold(tmp_path).whole_stdout()


def test_transcripts_are_joined_as_they_were_printed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"{}\n\xff")
    runs = [well(transcript=tmp_path / "a"), well(transcript=tmp_path / "never printed"), well()]
    run = Talk(runs).hold(tmp_path)
    assert run.transcript is not None
    assert run.transcript.read_bytes() == b"{}\n\xff"
    assert Talk([well(), well(), well()]).hold(tmp_path).transcript is None


def test_traces_of_turns_are_one_and_every_event_says_its_turn() -> None:
    call = ToolCall("1", "Bash", "Bash", "execute")
    one = Trace(
        source="codex", tool_calls=(call,), timeline=(Message("user", "a"), call), usage=Usage(10, 2), final_output="x"
    )
    two = replace(one, usage=Usage(30, 5, 0.5), final_output="y", not_understood=("1 × line",))
    joined = join_turns([one, two])
    assert [(type(entry), entry.turn) for entry in joined.timeline] == [
        (Message, 1), (ToolCall, 1), (Message, 2), (ToolCall, 2)
    ]  # fmt: skip
    assert [found.turn for found in joined.tool_calls or ()] == [1, 2]
    assert (joined.usage, joined.final_output) == (Usage(40, 7), "y")  # what the first cost is not known
    assert join_turns([one, two], usage_of_last=True).usage == Usage(30, 5, 0.5)
    silent = replace(two, usage=Usage())
    assert join_turns([one, silent]).usage == Usage()
    assert join_turns([one, silent], usage_of_last=True).usage == one.usage
    assert join_turns([one, replace(two, tool_calls=None)]).tool_calls is None
    assert join_turns([one, Trace(source="codex", problem="it is empty")]).problem == "turn 2: it is empty"


def test_a_line_of_the_audit_log_has_the_turn_of_its_moment(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    before = now()
    log.write("a", {}, ts=before)
    moments = []
    for _ in range(2):
        log.turns.begin()
        moments.append(now())
        log.write("b", {}, ts=moments[-1])
    log.write("c", {}, ts=moments[0])
    log.turns.end()
    log.write("d", {}, ts=now())
    log.write("e", {}, ts=now(), turn=1)
    log.close()
    found = [(line.type, line.turn) for line in read_audit_log(tmp_path / "audit.jsonl")]
    assert found == [("a", None), ("b", 1), ("b", 2), ("c", 1), ("d", None), ("e", 1)]


def test_a_broken_sandbox_is_no_turn_that_failed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError):
        Talk([HarnessError("it broke")]).hold(tmp_path)
