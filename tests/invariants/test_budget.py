"""`budget` (spec.md 5.3): share of limits kept, passed if all; seconds are always observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import call, evidence, traced

from keystone_action.evidence.trace import Trace, Usage

HERE = Path(__file__).parent
SPENT = traced(call("a"), call("b"), usage=Usage(input_tokens=900, output_tokens=100, cost_usd=0.25))


def budget(trace: Trace | None, /, *, duration_s: float = 30.0, **limits: Any):
    return grade({"type": "budget", **limits}, HERE, evidence=evidence("ok", trace, duration_s=duration_s))


@pytest.mark.parametrize(
    ("limits", "score"),
    [
        ({"max_cost_usd": 0.25}, 1.0),
        ({"max_cost_usd": 0.24}, 0.0),
        ({"max_tokens": 1000}, 1.0),
        ({"max_tokens": 999}, 0.0),
        ({"max_seconds": 30}, 1.0),
        ({"max_seconds": "29s"}, 0.0),
        ({"max_tool_calls": 2}, 1.0),
        ({"max_tool_calls": 1}, 0.0),
        ({"max_tool_calls": 0, "max_tokens": 1000}, 0.5),
        ({"max_cost_usd": 1, "max_tokens": 1, "max_seconds": "1m", "max_tool_calls": 9}, 0.75),
    ],
)
def test_the_score_is_the_share_of_limits_kept(limits: dict[str, Any], score: float) -> None:
    outcome = budget(SPENT, **limits)
    assert outcome.score == pytest.approx(score)
    assert outcome.status == ("pass" if score == 1.0 else "fail")


def test_the_message_has_amount_and_limit() -> None:
    outcome = budget(SPENT, max_tokens=999, max_cost_usd=0.3)
    assert "tokens: 1,000, above max_tokens 999." in outcome.message
    assert "cost in US dollars: 0.25, within max_cost_usd 0.3." in outcome.message


def test_what_was_not_observed_leaves_the_score_and_is_named() -> None:
    outcome = budget(traced(call("a")), max_cost_usd=1, max_tool_calls=1)
    assert (outcome.status, outcome.score) == ("pass", 1.0)
    assert "Not observed: cost in US dollars." in outcome.message


def test_nothing_observed_is_skipped_but_seconds_always_are() -> None:
    assert budget(None, max_cost_usd=1, max_tokens=1, max_tool_calls=1).status == "skip"
    assert budget(Trace(source="otel"), max_tool_calls=1).status == "skip"
    assert budget(None, max_seconds=31).status == "pass"
    assert budget(None, max_seconds=1, max_tokens=5).status == "fail"


def test_a_trace_that_can_not_be_used_fails_what_needs_it() -> None:
    broken = Trace(source="claude", problem="the trace trace.jsonl does not exist")
    outcome = budget(broken, max_tokens=10)
    assert (outcome.status, outcome.message) == ("fail", "the trace trace.jsonl does not exist.")
    assert budget(broken, max_tokens=10, max_seconds=60).score == 0.0
    assert budget(broken, max_seconds=60).status == "pass"


@pytest.mark.parametrize(
    "usage",
    [
        Usage(cost_usd=-1.0),
        Usage(cost_usd=float("nan")),
        Usage(cost_usd=float("inf")),
        Usage(input_tokens=-5),
        Usage(output_tokens=10**400),
    ],
)
def test_senseless_numbers_never_earn_credit(usage: Usage) -> None:
    outcome = budget(traced(usage=usage), max_cost_usd=1, max_tokens=5, max_seconds=60)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert "malformed" in outcome.message


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_cost_usd": -1},
        {"max_cost_usd": float("nan")},
        {"max_tokens": 1.5},
        {"max_seconds": 0},
        {"max_tool_calls": True},
        {"max_turns": 3},
    ],
)
def test_malformed_limits_are_refused_when_the_spec_is_read(limits: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "budget", **limits})


@given(cents=st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
def test_sums_of_cents_are_within_their_own_sum(cents: list[int]) -> None:
    usage = Usage(cost_usd=sum(cent / 100 for cent in cents))
    assert budget(traced(usage=usage), max_cost_usd=sum(cents) / 100).status == "pass"
