"""From cells to groups, specs and the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.scoring import aggregate
from keystone_action.scoring.fields import USAGE_NAMES, nothing_used
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult


def cell(verdict="pass", composite=None, *, scenario="s", params=None, replica=0):
    if composite is None and verdict != "error":
        composite = 1.0 if verdict == "pass" else 0.0
    return CellResult(
        id=f"{scenario}.{replica}",
        scenario=scenario,
        params=params or {},
        replica=replica,
        verdict=verdict,
        composite=composite,
        duration_s=0.1,
        error="broken" if verdict == "error" else None,
        agent=None,
        invariants=(),
    )


def broken_check(weight=1.0):
    return InvariantResult("b", "custom", "error", None, weight, gate=False, message="it broke")


def scored(score):
    return InvariantResult("c", "custom", "pass" if score == 1 else "fail", score, 1.0, gate=False, message="")


def run_of(*specs, verdict="fail"):
    return RunResult(
        run_id="r",
        keystone_version="0",
        git_sha=None,
        verdict=verdict,
        composite=None,
        started_at="",
        duration_s=0,
        specs=specs,
    )


def replicas(*verdicts):
    return [cell(verdict, replica=index) for index, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("rule", "verdicts", "expected"),
    [
        ("all", ["pass", "pass"], "pass"),
        ("all", ["pass", "fail"], "fail"),
        ("any", ["fail", "pass"], "flaky"),
        ("any", ["fail", "fail"], "fail"),
        ("majority", ["pass", "pass", "fail"], "flaky"),
        ("majority", ["pass", "fail"], "fail"),
        ("majority", ["pass", "fail", "fail"], "fail"),
        (2, ["pass", "pass", "fail"], "flaky"),
        (2, ["pass", "fail", "fail"], "fail"),
        (2, ["pass", "pass"], "pass"),
        ("mean", ["pass", "fail"], "flaky"),
        ("mean", ["fail", "fail"], "fail"),
        ("any", ["pass", "error"], "error"),
        ("mean", ["pass", "error"], "error"),
        (1, ["pass", "error"], "error"),
    ],
)
def test_rules_for_replicas(rule, verdicts, expected):
    (group,) = aggregate.aggregate_groups(replicas(*verdicts), rule, 0.5)
    assert group.verdict == expected
    assert (group.reason == "") == (expected == "pass")


@pytest.mark.parametrize("rule", ["all", "any", "majority", "mean", 1])
@pytest.mark.parametrize("verdict", ["fail", "error"])
def test_a_cell_without_a_replica_is_told_by_its_own_reason(rule, verdict):
    alone = replace(cell(verdict), reason="gate tests_pass scored 0.00")
    (group,) = aggregate.aggregate_groups([alone], rule, 0.5)
    assert (group.verdict, group.reason) == (verdict, "gate tests_pass scored 0.00")


def test_groups_are_scenario_times_parameters():
    cells = [
        cell(params={"m": "a"}),
        cell("fail", params={"m": "b"}),
        cell(params={"m": "a"}, replica=1),
        cell(scenario="t"),
    ]
    groups = aggregate.aggregate_groups(cells, "all", 0.5)
    assert [(g.scenario, g.params, g.verdict, g.total) for g in groups] == [
        ("s", {"m": "a"}, "pass", 2),
        ("s", {"m": "b"}, "fail", 1),
        ("t", {}, "pass", 1),
    ]


def test_disagreeing_scenarios_are_not_flaky():
    groups = aggregate.aggregate_groups([cell(), cell("fail", scenario="t")], "any", 0.5)
    assert aggregate.worst(group.verdict for group in groups) == "fail"


def test_worst_verdict():
    assert aggregate.worst(["pass", "flaky"]) == "flaky"
    assert aggregate.worst(["flaky", "fail"]) == "fail"
    assert aggregate.worst(["fail", "error", "pass"]) == "error"


def test_mean_leaves_out_cells_in_error():
    assert aggregate.mean([1.0, None, 0.5]) == 0.75
    assert aggregate.mean([None]) is None


def test_pass_rate_of_the_contracts_example():
    # spec.md section 3: {"value": 0.67, "low": 0.2, "high": 0.94} for two of three.
    rate = aggregate.pass_rate(replicas("pass", "pass", "fail"))
    value, low, high = rate.value, rate.low, rate.high
    assert (round(value, 2), round(low, 1), round(high, 2)) == (0.67, 0.2, 0.94)
    assert aggregate.pass_rate(replicas("error")) is None


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_holds_its_rate(passed, total):
    passed = min(passed, total)
    found = aggregate.wilson(passed, total)
    rate, low, high = found.value, found.low, found.high
    assert 0 <= low <= rate <= high <= 1


@given(st.lists(st.sampled_from(["pass", "fail"]), min_size=1), st.randoms(use_true_random=False))
def test_order_of_replicas_does_not_matter(verdicts, random):
    shuffled = random.sample(verdicts, len(verdicts))
    for rule in ("all", "any", "majority", "mean", 1, 3):
        (one,) = aggregate.aggregate_groups(replicas(*verdicts), rule, 0.5)
        (other,) = aggregate.aggregate_groups(replicas(*shuffled), rule, 0.5)
        assert (one.verdict, one.composite) == (other.verdict, other.composite)


def test_counts_are_of_cells():
    spec = SpecResult(
        id="x",
        path="x.yaml",
        sha256="0",
        threshold_source="spec",
        verdict="error",
        composite=None,
        pass_threshold=1.0,
        pass_rate=None,
        cells=tuple(replicas("pass", "fail", "error")),
    )
    counted = aggregate.count_results([spec])
    cells = {"scenarios": 1, "cells": 3, "passed": 1, "failed": 1, "errors": 1}
    assert counted == {**cells, "skipped_checks": 0, "broken_checks": 0}
    checks = (broken_check(), replace(broken_check(), name="j", status="skip"), broken_check(weight=0.0))
    some = replace(spec, cells=(replace(cell("fail"), invariants=checks), replace(cell("error"), invariants=checks)))
    assert aggregate.count_results([some]) | cells == {**cells, "skipped_checks": 2, "broken_checks": 4}


@pytest.mark.parametrize(
    ("verdict", "fail_on", "code"),
    [
        ("pass", "threshold", 0),
        ("flaky", "threshold", 0),
        ("fail", "threshold", 1),
        ("error", "threshold", 3),
        ("fail", "never", 0),
        ("fail", "error", 0),
        ("error", "never", 3),
        ("error", "error", 3),
    ],
)
def test_exit_codes(verdict, fail_on, code):
    assert aggregate.exit_code_of(run_of(verdict=verdict), fail_on) == code


@pytest.mark.parametrize(
    ("fail_on", "broken", "code"),
    [("threshold", 1, 1), ("error", 1, 1), ("error", 0, 0), ("never", 1, 0), ("never", 0, 0)],
)
def test_what_broke_beside_a_failure_is_an_error_for_fail_on(fail_on, broken, code):
    failed = replace(cell("fail"), invariants=(scored(0.0), broken_check())[: 1 + broken])
    spec = SpecResult("x", "x.yaml", "0", "spec", "fail", 0.0, 1.0, None, (failed,))
    assert aggregate.exit_code_of(run_of(spec), fail_on) == code


@pytest.mark.parametrize(("threshold", "verdict"), [(0.9, "fail"), (0.7, "error"), (0.5, "flaky")])
def test_a_mean_that_what_broke_could_lift_is_an_error(threshold, verdict):
    """The first replica fails for certain, with 0.0 as it is and 0.5 at most; the mean may be 0.5 or 0.75."""
    low = replace(cell("fail", 0.0), invariants=(scored(0.0), broken_check()), counted_as_zero=("b",))
    fine = replace(cell("pass", 1.0, replica=1), invariants=(scored(1.0),))
    (group,) = aggregate.aggregate_groups([low, fine], "mean", threshold)
    assert group.verdict == verdict


def test_cancelled_is_130_whatever_the_verdict():
    run = replace(run_of(verdict="pass"), cancelled=True)
    assert aggregate.exit_code_of(run, "never") == 130


AMOUNTS = st.fixed_dictionaries({name: st.none() | st.integers(0, 10**9) for name in USAGE_NAMES})


@given(st.lists(AMOUNTS, max_size=6), st.integers(0, 6), st.randoms(use_true_random=False))
def test_usage_is_summed_and_money_that_is_unknown_of_one_is_unknown_of_all(usages, cut, random):
    total = aggregate.add_usage(usages, USAGE_NAMES)
    assert list(total) == list(USAGE_NAMES)
    for name, amount in total.items():
        known = [usage[name] for usage in usages if usage[name] is not None]
        enough = len(known) == len(usages) or (known and not name.endswith("_usd"))
        assert amount == (sum(known) if enough else None)
    parts = [aggregate.add_usage(part, USAGE_NAMES) for part in (usages[:cut], usages[cut:]) if part or not usages]
    assert aggregate.add_usage(parts, USAGE_NAMES) == total
    random.shuffle(usages)
    assert aggregate.add_usage(usages, USAGE_NAMES) == total


def test_a_cell_that_never_ran_used_nothing():
    assert aggregate.add_usage([{}, {"cost_usd": 0.1}, {"cost_usd": 0.2, "requests": 3}], USAGE_NAMES) == {
        **nothing_used(),
        "cost_usd": pytest.approx(0.3),
        "requests": 3,
    }
    assert aggregate.add_usage([nothing_used(), {"cost_usd": None}], USAGE_NAMES)["cost_usd"] is None


def shared(rate, *verdicts, **more):
    cells = [cell(verdict, scenario=f"s{index}") for index, verdict in enumerate(verdicts)]
    return decided(rate, cells, **more)


def decided(rate, cells, **more):
    head = SpecResult("a", "a.yaml", "", "spec", "error", None, 1.0, None, (), scenarios=rate, **more)
    return aggregate.decide_spec(head, cells)


@pytest.mark.parametrize(
    ("rate", "verdicts", "expected"),
    [
        (0.9, ["pass"] * 9 + ["fail"], "pass"),
        (0.9, ["pass"] * 10, "pass"),
        (0.9, ["pass"] * 8 + ["fail"] * 2, "fail"),
        (0.9, ["pass"] * 10 + ["fail"], "pass"),
        (0.9, ["pass"] * 9 + ["fail"] * 2, "fail"),
        (0.9, ["pass"] * 9 + ["error"], "pass"),
        (0.9, ["pass"] * 8 + ["fail", "error"], "error"),
        (0.9, ["pass"] * 7 + ["fail"] * 2 + ["error"], "fail"),
        (0.9, ["error"] * 10, "error"),
        (1.0, ["pass", "fail"], "fail"),
        (1.0, ["pass", "error"], "error"),
        (0.01, ["fail"] * 99 + ["pass"], "pass"),
        (0.07, ["pass"] * 7 + ["fail"] * 93, "pass"),  # as floats 0.07 · 100 is above 7
        (0.29, ["pass"] * 29 + ["fail"] * 71, "pass"),
        (5e-324, ["fail"], "fail"),
    ],
)
def test_a_share_of_the_scenarios_decides_a_spec(rate, verdicts, expected):
    found = shared(aggregate.share_name(rate), *verdicts)
    assert found.verdict == expected
    graded = len(verdicts) - verdicts.count("error")
    assert (found.scenario_rate is None) == (graded == 0)
    if found.scenario_rate is not None:
        assert (found.scenario_rate.n, found.scenario_rate.value) == (graded, verdicts.count("pass") / graded)


def test_without_a_share_the_worst_scenario_decides():
    found = shared("all", "pass", "fail")
    assert (found.verdict, found.scenario_rate) == ("fail", None)


def test_a_scenario_passes_with_all_its_parameter_sets_and_a_flaky_one_counts():
    split = [cell(params={"m": "a"}), cell("fail", params={"m": "b"}), cell(scenario="t")]
    assert decided("at least 0.6", split).verdict == "fail"
    assert decided("at least 0.5", split).verdict == "pass"
    flaky = [*replicas("pass", "fail"), cell("fail", scenario="t")]
    assert decided("at least 0.5", flaky, replica_aggregation="any").verdict == "flaky"


@pytest.mark.parametrize(("beside", "expected"), [("fail", "fail"), ("pass", "error"), ("error", "error")])
def test_a_scenario_that_failed_can_not_pass_any_more_whatever_is_in_error(beside, expected):
    """It is one that was graded, too."""
    split = [cell(beside, params={"m": "a"}), cell("error", params={"m": "b"}), cell(scenario="t")]
    found = decided("at least 0.9", split)
    assert found.verdict == expected
    assert found.scenario_rate.n == (2 if beside == "fail" else 1)
    assert decided("at least 0.5", split).verdict == "pass"


@given(st.integers(1, 100), st.lists(st.sampled_from(["pass", "fail", "error"]), min_size=1, max_size=60))
def test_the_share_is_that_of_whole_numbers(hundredths, verdicts):
    found = shared(aggregate.share_name(hundredths / 100), *verdicts)
    passed, errors = verdicts.count("pass"), verdicts.count("error")
    reached = [number * 100 >= hundredths * len(verdicts) for number in (passed, passed + errors)]
    assert found.verdict == ("pass" if reached[0] else "error" if reached[1] else "fail")
    assert shared(found.scenarios, *reversed(verdicts)).verdict == found.verdict


@given(st.integers(1, 99), st.lists(st.sampled_from(["pass", "fail"]), min_size=1, max_size=40))
def test_a_higher_share_passes_no_more(hundredths, verdicts):
    lower, higher = (shared(aggregate.share_name(part / 100), *verdicts) for part in (hundredths, hundredths + 1))
    assert aggregate.worst([lower.verdict, higher.verdict]) == higher.verdict


@pytest.mark.parametrize(
    "name", ["", "some", "at least", "at least 0", "at least 1.1", "at least -1", "at least 1e-999999999"]
)
def test_what_is_not_a_share_is_refused_at_once(name):
    with pytest.raises(ValueError, match="not a rule for scenarios"):
        aggregate.share_of(name)


def test_an_error_beside_a_certain_failure_is_not_let_pass():
    spec = shared("at least 0.9", "fail", "fail", "error")
    run = aggregate.decide_run(run_of(spec), [spec])
    assert [aggregate.exit_code_of(run, rule) for rule in ("threshold", "error", "never")] == [1, 1, 0]
