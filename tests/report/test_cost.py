"""What agents and judges took, in words, beside the baseline's."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.report.comment.history import Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.console import print_table, print_verdict
from keystone_action.report.sentences.compared import render_comparison
from keystone_action.report.sentences.facts import cost_facts, money, short_count
from keystone_action.report.write import render
from keystone_action.scoring.differences import BaselineComparison
from keystone_action.scoring.fields import USAGE_NAMES, nothing_used
from keystone_action.scoring.results import CellResult, RunResult, SpecResult, TraceInfo

SEEN = dict(zip(USAGE_NAMES, (10_000, 1_200, 1_000, 100, 0.42, 14, 9, 0.42), strict=True))
JUDGED = {"input_tokens": 3000, "output_tokens": 100, "cost_usd": 0.0021, "requests": 4}

AGENT_BESIDE = (
    "agent: 12.3k tokens (baseline 11.9k), 9 requests (baseline 8), 14 tool calls (baseline 14), $0.42 (baseline $0.38)"
)

CELL = CellResult("s", "s", {}, 0, "pass", 1.0, 0.1, None, None, (), usage=SEEN)


def run(usage=SEEN, judge_usage=None, *, cells=1, source="gateway", unpriced=(), judge_unpriced=(), baseline=None):
    cell = replace(CELL, trace=TraceInfo(source), unpriced=unpriced, judge_unpriced=judge_unpriced)
    found = tuple(replace(cell, id=f"s.r{n}", replica=n) for n in range(cells))
    return RunResult(
        run_id="r",
        keystone_version="0.1",
        git_sha=None,
        verdict="pass",
        composite=1.0,
        started_at="2026-01-01T00:00:00Z",
        duration_s=0.1,
        specs=(SpecResult("s", "s", "0" * 64, "spec", "pass", 1.0, 1.0, None, found),),
        usage=usage,
        judge_usage=judge_usage or {},
        baseline=baseline,
    )


def compared(usage=SEEN, judge_usage=None, **more):
    return BaselineComparison(
        "main", "pass", 1.0, None, "", (), (), (), usage=usage, judge_usage=judge_usage or {}, **more
    )


def facts(*args, **more):
    return list(cost_facts(run(*args, **more)))


def test_agents_and_judges():
    assert facts(SEEN, JUDGED) == [
        "agent: 12.3k tokens, 9 requests, 14 tool calls, $0.42",
        "judges: 3.1k tokens, 4 requests, $0.0021",
    ]
    assert facts({**SEEN, "requests": 1, "tool_calls": 1}, cells=2) == [
        "agents: 12.3k tokens, 1 request, 1 tool call, $0.42"
    ]


def test_nothing_is_said_of_nothing():
    assert facts(nothing_used()) == []
    assert facts(dict.fromkeys(USAGE_NAMES)) == [], "nobody saw that it asked a model"
    assert facts({}, {"cost_usd": 0.0, "cached": 3}) == []


def test_whose_word_it_is():
    assert facts(source="agent")[0].startswith("agent, by its own word: 12.3k tokens")
    assert facts(source="agent", cells=2)[0].startswith("agents, by their own word: ")
    one = run(cells=2)
    told = replace(one.specs[0].cells[1], trace=TraceInfo("agent"))
    mixed = replace(one, specs=(replace(one.specs[0], cells=(one.specs[0].cells[0], told)),))
    assert next(cost_facts(mixed)).startswith("agents, partly by their own word: ")


def test_beside_the_baseline():
    before = {**SEEN, "input_tokens": 9_600, "cost_usd": 0.38, "requests": 8}
    assert facts(SEEN, JUDGED, baseline=compared(before, {**JUDGED, "cost_usd": 0.002})) == [
        AGENT_BESIDE,
        "judges: 3.1k tokens (baseline 3.1k), 4 requests (baseline 4), $0.0021 (baseline $0.0020)",
    ]


@pytest.mark.parametrize("part", [{"partial": True}, {"partial_baseline": True}])
def test_a_part_is_not_shown_beside_a_whole(part):
    assert "baseline" not in facts(baseline=compared(**part))[0]


def test_what_the_baseline_does_not_know_is_left_out():
    assert "baseline" not in facts(baseline=compared(dict.fromkeys(USAGE_NAMES)))[0]
    assert "baseline" not in facts(baseline=compared(nothing_used()))[0], "an older version knew of less"


def test_an_unknown_cost_is_said_to_be_unknown():
    unknown = {**SEEN, "cost_usd": None, "spent_usd": None}
    assert facts(unknown)[0].endswith("14 tool calls, cost unknown")
    assert facts(unknown, unpriced=("our-own", "his"))[0].endswith(", cost unknown: no price for our-own, his")
    known = facts(unknown, unpriced=("our-own",), baseline=compared())[0]
    assert known.endswith("cost unknown: no price for our-own (baseline $0.42)")
    judged = facts(nothing_used(), {**JUDGED, "cost_usd": None}, judge_unpriced=("our-own",))
    assert judged == ["judges: 3.1k tokens, 4 requests, cost unknown: no price for our-own"]


def test_agents_and_judges_are_told_of_their_own_models_alone():
    both = {"unpriced": ("asked",), "judge_unpriced": ("judged",)}
    agent, judges = facts({**SEEN, "cost_usd": None}, {**JUDGED, "cost_usd": None}, **both)
    assert agent.endswith("cost unknown: no price for asked")
    assert judges.endswith("cost unknown: no price for judged")


def test_names_of_models_are_bounded():
    """An agent can ask for any."""
    (fact,) = facts({**SEEN, "cost_usd": None}, unpriced=tuple(f"{n}\n{'x' * 500}" for n in range(40)))
    assert len(fact) < 500
    assert fact.endswith("and 35 more")
    assert "\n" not in fact


def test_what_was_paid_and_what_it_cost():
    assert facts({**SEEN, "spent_usd": 0.0})[0].endswith("$0.42, $0.00 of it spent now")
    assert facts({**SEEN, "spent_usd": 0.6})[0].endswith("$0.42, $0.60 with what was tried again")


def test_small_costs_are_never_shown_as_nothing():
    assert [money(amount) for amount in (0, 1234.5, 0.01, 0.0123, 0.0004, 0.00002, 0.00996)] == [
        "$0.00",
        "$1,234.50",
        "$0.01",
        "$0.01",
        "$0.0004",
        "under $0.0001",
        "$0.01",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (870, "870"),
        (999, "999"),
        (1000, "1.0k"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_950, "1.0M"),
        (1_240_000, "1.2M"),
        (5_000_000_000, "5.0G"),
    ],
)
def test_counts_are_short(number, text):
    assert short_count(number) == text


@given(st.integers(0, 10**13))
def test_a_short_count_is_near_the_number(number):
    digits, unit = re.fullmatch(r"([\d,.]+)([kMG]?)", short_count(number)).groups()
    value = float(digits.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
    assert value == pytest.approx(number, rel=0.051)


def test_every_report_shows_them_beside_the_baseline(capsys):
    before = {**SEEN, "input_tokens": 9_600, "cost_usd": 0.38, "requests": 8}
    one = run(SEEN, {**JUDGED, "cost_usd": None}, judge_unpriced=("our-own",), baseline=compared(before))
    shown = {fmt: render(one, fmt) for fmt in ("md", "html")}
    shown["comment"] = render_comment(one, Marker("main"), CommentFacts())
    print_table(one)
    shown["console"] = capsys.readouterr().out
    print_verdict(one, sys.stdout)
    shown["log"] = capsys.readouterr().out
    shown["compare"] = render_comparison(one.baseline, one, "plain")
    for name, text in shown.items():
        plain = text.replace("`", "")
        assert AGENT_BESIDE in plain, name
        assert "judges: 3.1k tokens, 4 requests, cost unknown: no price for our-own" in plain, name
    assert '"usage":"12.3k tokens, 9 requests, 14 tool calls, $0.42"' in shown["html"], "of the cell"
    document = json.loads(render(one, "json"))
    assert document["usage"]["cost_usd"] == 0.42
    assert document["judge_usage"]["cost_usd"] is None
    assert document["baseline"]["usage"]["cost_usd"] == 0.38
    assert document["specs"][0]["cells"][0]["judge_unpriced"] == ["our-own"]
