"""From what was observed of an agent to what disqualifies its cell, in sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sample_parts import cell, check

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.invariants.registry import CheckTypes
from keystone_action.options.model import Options
from keystone_action.runner.cell.grading import (
    agent_note,
    certain_failure,
    forced_zero,
    is_earned,
    stopped_by,
    unreadable,
    verdict_of,
)
from keystone_action.scoring.results import ForbiddenResult, TraceInfo
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.agents import CommandAgent, NoneAgent

WELL = AgentRun(exit_code=0)


def agent(**more: Any) -> CommandAgent:
    return CommandAgent.model_validate({"type": "command", "command": "true", "must_exit_zero": True, **more})


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (replace(WELL, exit_code=3), "exited with 3"),
        (replace(WELL, exit_code=None, signal=9), "was killed by signal 9"),
        (replace(WELL, timed_out=True), "timed out"),
        (replace(WELL, exit_code=None, timed_out=True), "timed out"),
        (replace(WELL, limit="memory: 2 GiB"), "was stopped at a limit (memory: 2 GiB)"),
        (replace(WELL, stopped="stopped at $0.52 of $0.50"), "was stopped at $0.52 of $0.50"),
        (replace(WELL, exit_code=1, problem="it raised ValueError"), "exited with 1 (it raised ValueError)"),
    ],
)
def test_an_agent_that_must_exit_zero_and_did_not_disqualifies(run: AgentRun, said: str) -> None:
    """Also when it was stopped as it ended with 0: whoever was stopped did not finish."""
    assert forced_zero(agent(), run, by_author=False) == f"the agent {said}"
    assert forced_zero(agent(), run, by_author=True) == f"the agent {said}, and must_exit_zero is set"


def test_a_run_that_failed_by_its_own_transcript_counts_as_one_that_did_not_exit_zero() -> None:
    run = replace(WELL, failure="stream disconnected")
    said = "the agent's own transcript says that it failed: stream disconnected"
    assert forced_zero(agent(), run, by_author=False) == said
    assert forced_zero(agent(), run, by_author=True) == f"{said}, and must_exit_zero is set"
    assert forced_zero(agent(must_exit_zero=False), run, by_author=True) == ""
    assert agent_note(run, "command") == ""


def test_a_conversation_that_ended_early_counts_as_an_agent_that_did_not_exit_zero() -> None:
    run = replace(WELL, unheard="the conversation ended with turn 1 of 2", problem="it is not JSON")
    said = "the conversation ended with turn 1 of 2 (it is not JSON)"
    assert forced_zero(agent(), run, by_author=True) == f"{said}, and must_exit_zero is set"
    assert forced_zero(agent(), replace(run, exit_code=3, problem=""), by_author=False) == "the agent exited with 3"
    assert forced_zero(agent(must_exit_zero=False), run, by_author=True) == ""


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (replace(WELL, limit="memory: 2.1 GiB used, 2.0 GiB allowed"), "memory"),
        (replace(WELL, limit="disk: directories nested too deeply to be watched"), "disk"),
        (replace(WELL, limit="processes: at least 9 running, 8 allowed"), "processes"),
        (replace(WELL, limit="paths: too long"), "paths"),
        (replace(WELL, stopped="stopped at $0.52 of $0.50"), "budget"),
        (replace(WELL, timed_out=True), None),
        (replace(WELL, exit_code=None, signal=9), None),
        (WELL, None),
    ],
)
def test_the_limit_that_stopped_an_agent_has_a_name(run: AgentRun, kind: str | None) -> None:
    assert stopped_by(run) == kind


GATE = check("made", "fail", gate=True)
BROKEN_RULE = ForbiddenResult("commands", violated=True, details="rm -rf src")


@pytest.mark.parametrize(
    ("checks", "rules", "reason"),
    [
        ([GATE], [], "gate made scored 0.00, and a gate needs 1.00"),
        ([], [BROKEN_RULE], "forbidden.commands was violated: rm -rf src"),
        ([check("a")], [replace(BROKEN_RULE, violated=False)], None),
        ([check("a", "fail")], [], None),  # what had not run yet could have made up for it
        ([replace(GATE, status="error", score=None)], [], None),
    ],
)
def test_what_broke_later_hides_no_failure_that_is_certain(checks: Any, rules: Any, reason: str | None) -> None:
    found = certain_failure(checks, rules)
    assert (found and found.reason) == reason
    assert found is None or (found.verdict, found.composite) == ("fail", 0.0)


def test_an_agent_that_ended_well_or_may_end_as_it_likes_does_not() -> None:
    assert forced_zero(agent(), WELL, by_author=True) == ""
    assert forced_zero(agent(), None, by_author=True) == ""
    assert forced_zero(agent(must_exit_zero=False), replace(WELL, exit_code=1), by_author=True) == ""
    assert forced_zero(NoneAgent(type="none"), replace(WELL, exit_code=1), by_author=True) == ""


def test_folders_that_the_agent_closed_disqualify_and_those_closed_before_do_not() -> None:
    assert unreadable((), ()) == ""
    assert unreadable(("a",), ("a",)) == ""
    assert unreadable((), ("a", "b/c")) == "the agent left what can't be read: a, b/c"
    assert unreadable(("a",), ("a", "")) == "the agent left what can't be read: the workspace itself"


def test_what_people_should_know_of_an_end_is_said_in_one_line() -> None:
    assert agent_note(WELL, "command") == ""
    assert agent_note(replace(WELL, exit_code=1), "none") == ""
    told = replace(WELL, exit_code=127, problem="no output", advice="show its folder", leftovers=2)
    assert agent_note(told, "command") == (
        "exited with 127; no output; show its folder; 2 of its processes outlived it and were killed"
    )


FITS = [TraceInfo("gateway", "stale", None, "request 3 differs (turn)"), TraceInfo("gateway", "changed")]


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedSpec:
    (tmp_path / "keystone.yaml").write_text(
        "{version: 1, id: small, task: {prompt: x}, agent: {type: command, command: 'true'},"
        " invariants: {a: {check: {type: file_exists, path: a}}}}"
    )
    return load(tmp_path / "keystone.yaml", CheckTypes())


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (FITS[0], "the replay was stale: request 3 differs (turn)"),
        (FITS[1], "the replay was of a recording that this change touched"),
    ],
)
def test_with_fail_on_stale_a_pass_by_such_a_replay_fails(
    loaded: LoadedSpec, tmp_path: Path, trace: TraceInfo, reason: str
) -> None:
    strict = Options.of(specs=(), directory=tmp_path, fail_on_stale=True)
    found = verdict_of([check("a")], loaded, strict, trace)
    assert (found.verdict, found.composite, found.reason) == ("fail", 1.0, reason)
    passed = replace(cell("small.r0", check("a")), trace=trace)
    assert not is_earned(passed, loaded, strict)
    lenient = strict.having(fail_on_stale=False)
    assert verdict_of([check("a")], loaded, lenient, trace).verdict == "pass"
    assert is_earned(passed, loaded, lenient)


@pytest.mark.parametrize("trace", [TraceInfo(), TraceInfo("gateway", "exact"), TraceInfo("agent")])
def test_with_fail_on_stale_all_else_is_as_ever(loaded: LoadedSpec, tmp_path: Path, trace: TraceInfo) -> None:
    strict = Options.of(specs=(), directory=tmp_path, fail_on_stale=True)
    assert verdict_of([check("a")], loaded, strict, trace).verdict == "pass"


@pytest.mark.parametrize("trace", FITS)
def test_fail_on_stale_makes_no_error_a_failure_and_hides_no_reason(
    loaded: LoadedSpec, tmp_path: Path, trace: TraceInfo
) -> None:
    strict = Options.of(specs=(), directory=tmp_path, fail_on_stale=True)
    broken = verdict_of([check("a", "error", message="no such table")], loaded, strict, trace)
    assert (broken.verdict, broken.composite) == ("error", None)
    assert "no such table" in broken.reason
    failed = verdict_of([check("a", "fail", message="no a")], loaded, strict, trace)
    assert (failed.verdict, failed.reason) == ("fail", "composite 0.00 is below the threshold 1.00")
    assert verdict_of([check("a")], loaded, strict, trace, "exited with 1").reason == "exited with 1"
