"""What an agent said last stands in every report, from whichever stream it came."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.sample_parts import TESTS_FAIL, TESTS_PASS, cell, run, spec

from keystone_action.report import words
from keystone_action.report.comment.history import Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.console import print_table
from keystone_action.report.junit import render_junit
from keystone_action.report.page.render import render_html
from keystone_action.report.summary import render_summary
from keystone_action.scoring.results import AgentResult, RunResult

REASON = "sh: 1: claude: not found"
ENDED = AgentResult(127, timed_out=False, duration_s=0.01, output="", note="exited with 127", stderr=REASON + "\n")


def comment(result: RunResult) -> str:
    return render_comment(result, Marker("key"), CommentFacts())


def terminal(result: RunResult) -> str:
    file = io.StringIO()
    print_table(result, file)
    return file.getvalue()


REPORTS = [render_summary, comment, render_html, render_junit, terminal]


def failed(agent: AgentResult, error: str | None = None) -> RunResult:
    ended = cell("one", TESTS_FAIL, verdict="fail", composite=0.0, reason="gate tests_pass scored 0.00", agent=agent)
    ended = ended if error is None else replace(ended, verdict="error", composite=None, error=error, reason=error)
    return run(spec("one", ended, verdict=ended.verdict, composite=ended.composite), verdict=ended.verdict)


@pytest.mark.parametrize("report", REPORTS)
def test_the_reason_on_stderr_is_shown_where_an_agent_printed_nothing(report: Callable[[RunResult], str]) -> None:
    text = report(failed(ENDED))
    assert REASON in text
    assert "printed nothing" not in text


@pytest.mark.parametrize("report", REPORTS)
def test_both_streams_are_shown_of_an_agent_that_ended_badly(report: Callable[[RunResult], str]) -> None:
    text = report(failed(replace(ENDED, exit_code=1, output="starting\n")))
    assert "starting" in text
    assert REASON in text


@pytest.mark.parametrize("report", [render_summary, comment, render_html, terminal])
def test_the_end_of_a_long_stderr_is_what_is_kept(report: Callable[[RunResult], str]) -> None:
    text = report(failed(replace(ENDED, stderr="noise\n" * 5000 + REASON)))
    assert REASON in text
    assert "left out" in text


@pytest.mark.parametrize("report", [render_summary, comment, render_html])
def test_warnings_of_an_agent_that_ended_well_are_not_shown(report: Callable[[RunResult], str]) -> None:
    assert "a warning" not in report(failed(AgentResult(0, False, 1.0, "done\n", stderr="a warning\n")))


def test_a_terminal_shows_the_whole_of_an_error_of_several_lines() -> None:
    text = terminal(failed(ENDED, "setup.commands[0] failed: exit code 1\nstderr: no network\nlast line"))
    assert "stderr: no network" in text
    assert "last line" in text


def test_a_terminal_tells_the_story_of_a_passing_agent_to_nobody() -> None:
    passed = cell("one", TESTS_PASS, agent=AgentResult(0, False, 1.0, "done\n", stderr="a warning\n"))
    assert "a warning" not in terminal(run(spec("one", passed)))


def test_replicas_that_say_the_same_are_told_once() -> None:
    cells = [
        cell(f"one.r{n}", TESTS_FAIL, verdict="fail", composite=0.0, reason="gate scored 0.00", agent=ENDED)
        for n in range(10)
    ]
    assert terminal(run(spec("one", *cells, verdict="fail", composite=0.0), verdict="fail")).count(REASON) == 1


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (ENDED, "exit code 127 (a program was not found)"),
        (replace(ENDED, exit_code=126), "exit code 126 (a program was found and could not be run)"),
        (replace(ENDED, exit_code=137), "exit code 137 after"),
        (replace(ENDED, exit_code=None, signal=9), "ended by signal 9 (SIGKILL)"),
        (replace(ENDED, exit_code=None, signal=62), "ended by signal 62 after"),
    ],
)
def test_the_end_of_an_agent_is_a_sentence(agent: AgentResult, said: str) -> None:
    assert said in words.agent(agent)
