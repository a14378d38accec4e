"""Touchstone's `efficiency` (004_722b8593dcd13c4e.txt): "at/under target → 1.0, then target/actual once over"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import call, evidence, traced

from keystone_action.evidence.trace import Trace, Usage
from keystone_action.invariants.types.efficiency import ramp

HERE = Path(__file__).parent
EXAMPLE = """
type: efficiency
target_cost_usd: 0.30 # full credit at/under; ramps down above
target_tokens: 2000
target_tool_calls: 20
pass_threshold: 0.8
"""
"""004: the example under "efficiency"; its `weight: 2.0` is the invariant's."""


def spent(cost: float | None, tokens: int | None, calls: int) -> Trace:
    return traced(*[call("bash", "execute")] * calls, usage=Usage(output_tokens=tokens, cost_usd=cost))


def efficiency(document: str | dict[str, Any], trace: Trace | None, duration_s: float = 10.0):
    loaded = yaml.safe_load(document) if isinstance(document, str) else {"type": "efficiency", **document}
    return grade(loaded, HERE, evidence=evidence("ok", trace, duration_s=duration_s))


@pytest.mark.parametrize(
    ("trace", "score", "status"),
    [
        (spent(0.10, 500, 3), 1.0, "pass"),
        (spent(0.30, 2000, 20), 1.0, "pass"),
        (spent(0.60, 2000, 20), (0.5 + 1 + 1) / 3, "pass"),  # "2× over → 0.5"
        (spent(0.60, 4000, 20), (0.5 + 0.5 + 1) / 3, "fail"),
        (spent(1.20, 8000, 80), 0.25, "fail"),
        (spent(0.0, 0, 0), 1.0, "pass"),
    ],
)
def test_the_example_of_the_page_passes_and_fails(trace: Trace, score: float, status: str) -> None:
    outcome = efficiency(EXAMPLE, trace)
    assert outcome.score == pytest.approx(score)
    assert outcome.status == status


def test_skipped_without_a_trace() -> None:
    """004: "Skipped without a Trace."; released Touchstone gives full credit."""
    assert efficiency(EXAMPLE, None).status == "skip"
    assert efficiency(EXAMPLE, Trace(source="keystone")).status == "skip"


def test_what_was_not_observed_leaves_the_mean_and_is_named() -> None:
    outcome = efficiency(EXAMPLE, spent(None, 4000, 20))
    assert outcome.score == pytest.approx(0.75)
    assert "Not observed: cost in US dollars." in outcome.message


def test_seconds_need_no_trace() -> None:
    assert efficiency({"target_seconds": 10}, None).score == 1.0
    outcome = efficiency({"target_seconds": "4s", "target_tokens": 5}, None)
    assert outcome.score == pytest.approx(0.4)
    assert "Not observed: tokens." in outcome.message


def test_a_target_of_nothing() -> None:
    assert efficiency({"target_tool_calls": 0}, spent(None, None, 0)).score == 1.0
    assert efficiency({"target_tool_calls": 0}, spent(None, None, 1)).score == 0.0


def test_a_trace_that_can_not_be_used_fails_what_needs_it() -> None:
    broken = Trace(source="codex", problem="the trace on stdout is malformed")
    assert efficiency(EXAMPLE, broken).score == 0.0
    assert efficiency({"target_seconds": 10}, broken).status == "pass"


@pytest.mark.parametrize("cost", [-0.5, float("nan"), float("inf"), float("-inf")])
def test_a_negative_or_senseless_cost_earns_nothing(cost: float) -> None:
    outcome = efficiency(EXAMPLE, spent(cost, 10, 1))
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert "malformed" in outcome.message


@pytest.mark.parametrize(
    "fields",
    [{}, {"pass_threshold": 0.5}, {"target_tokens": -1}, {"target_tokens": 5, "pass_threshold": 2}, {"target_cost": 1}],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "efficiency", **fields})


AMOUNTS = st.floats(0, 1e15, allow_subnormal=False)


@given(target=AMOUNTS, actual=AMOUNTS, more=AMOUNTS)
def test_the_ramp_stays_in_range_and_never_rises(target: float, actual: float, more: float) -> None:
    assert 0.0 <= ramp(target, actual) <= 1.0
    assert ramp(target, actual + more) <= ramp(target, actual) + 1e-9
    assert ramp(target, target) == 1.0
