"""`fail-on: regression`: the rows of the table in docs/baseline.md, and how often it is wrong and right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import scipy  # which imports its parts when they are asked for
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shard_runs import cell, spec, whole

from keystone_action.scoring.aggregate import exit_code_of
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.differences import BaselineComparison
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.statistics import detection


def run_of(
    verdicts: Sequence[str], rule: str | int = "all", *, score: float | None = None, name: str = "one"
) -> RunResult:
    """One group of replicas. score: of the check where the cell fails."""
    cells = []
    for number, verdict in enumerate(verdicts):
        one = cell("alpha", name, number, verdict, score=1.0 if verdict == "pass" else score or 0.0)
        cells.append(one)
    return whole([spec("alpha", cells, rule=rule)])


def replicas(passed: int, total: int, rule: str | int = "all", *, errors: int = 0) -> RunResult:
    return run_of(["pass"] * passed + ["fail"] * (total - passed) + ["error"] * errors, rule)


def judged(base: RunResult, head: RunResult) -> tuple[int, BaselineComparison]:
    """The exit code with `--fail-on regression`, and the comparison."""
    compared = compare_runs(base, head, source="x")
    return exit_code_of(replace(head, baseline=compared), "regression"), compared


@pytest.mark.parametrize(
    ("base", "head", "code", "by"),
    [
        # Fewer than 5 replicas on a side
        (replicas(1, 1), replicas(0, 1), 1, {"flip"}),
        (replicas(4, 4), replicas(3, 4), 1, {"flip"}),
        (replicas(2, 4, "any"), replicas(0, 4, "any"), 1, {"flip"}),
        (replicas(4, 4), replicas(9, 10), 1, {"flip"}),
        (replicas(10, 10), replicas(3, 4), 1, {"flip"}),
        (replicas(4, 4, "any"), replicas(1, 4, "any"), 0, set()),
        (run_of(["fail"], score=0.9), run_of(["fail"], score=0.1), 0, set()),
        (replicas(3, 4), replicas(0, 4), 1, {"flip"}),  # the check, which was flaky there
        # 5 or more on both
        (replicas(5, 5), replicas(1, 5), 1, {"test"}),
        (replicas(9, 10), replicas(2, 10), 1, {"test"}),
        (replicas(10, 10, "any"), replicas(2, 10, "any"), 1, {"test"}),
        (replicas(30, 30), replicas(25, 30), 1, {"test"}),
        (replicas(5, 5), replicas(2, 5), 0, set()),
        (replicas(30, 30), replicas(26, 30), 0, set()),
        (replicas(5, 5), replicas(3, 6), 0, set()),
        (replicas(2, 10), replicas(9, 10), 0, set()),
        # New, gone, in error
        (replicas(1, 1), run_of(["pass", "fail"], "any", name="one"), 0, set()),
        (replicas(0, 4, errors=1), replicas(0, 5), 0, set()),
        (replicas(4, 4, errors=1), replicas(0, 4), 1, {"flip"}),  # one that broke there hides nothing
        (replicas(2, 2, errors=1), replicas(2, 3), 1, {"flip"}),
        (replicas(1, 2, errors=1), replicas(0, 3), 0, set()),  # it failed there as well
        (replicas(4, 4, errors=1), replicas(0, 5), 1, {"test"}),
        (replicas(3, 3, errors=2), replicas(2, 5), 0, set()),
        (replicas(0, 0, errors=5), replicas(0, 5), 0, set()),
        (replicas(9, 9, errors=1), replicas(0, 10), 1, {"test"}),
        (replicas(9, 9, errors=1), replicas(8, 10), 0, set()),
        (replicas(5, 5), replicas(5, 5, errors=1), 3, set()),
    ],
)
def test_what_fails_the_step(base: RunResult, head: RunResult, code: int, by: set[str]) -> None:
    found, compared = judged(base, head)
    assert found == code
    assert {one.regression for one in (*compared.groups, *compared.invariants)} - {None} == by


def test_what_is_new_or_gone_does_not_count() -> None:
    both = whole([spec("alpha", [cell("alpha", "one", 0), cell("alpha", "two", 0, "fail", score=0.0)])])
    assert judged(replicas(1, 1), both)[0] == 0
    assert judged(both, replicas(1, 1))[0] == 0


def test_another_name_with_replicas_enough_is_tested_too() -> None:
    """A group that moved is compared like one that stayed: where there is one of that name, by its numbers."""

    def of(name: str, passed: int) -> RunResult:
        cells = [cell(name, "known", n, "pass" if n < passed else "fail", score=float(n < passed)) for n in range(10)]
        return whole([spec(name, cells)])

    assert judged(of("alpha", 10), of("beta", 8))[0] == 0
    assert judged(of("alpha", 9), of("beta", 2))[0] == 1


def test_a_changed_spec_or_threshold_is_compared_and_said() -> None:
    there, here = replicas(1, 1), replicas(0, 1)
    (old,) = there.specs
    strict = replace(there, specs=(replace(old, sha256="f" * 64, pass_threshold=0.25),))
    code, compared = judged(strict, here)
    assert code == 1
    assert compared.changed_specs == ("alpha",)
    assert compared.changed_rules == ("alpha: threshold 0.25 → 0.50",)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
@settings(max_examples=3 * settings().max_examples // 5, deadline=None)
def test_one_more_failure_never_makes_it_better(before: int, after: int, data: st.DataObject) -> None:
    passed, still = data.draw(st.integers(0, before)), data.draw(st.integers(1, after))
    base = replicas(passed, before)
    code, compared = judged(base, replicas(still, after))
    worse_code, worse = judged(base, replicas(still - 1, after))
    assert worse_code >= code
    assert worse.regressions >= compared.regressions
    assert judged(base, base)[0] == 0


def test_false_alarms_to_be_expected_are_those_of_the_tests_made() -> None:
    many = [
        cell("alpha", f"s{n}", k, "pass" if k < 15 else "fail", score=float(k < 15))
        for n in range(20)
        for k in range(30)
    ]
    run = whole([spec("alpha", many)])
    _, compared = judged(run, run)
    assert compared.tests == 40  # 20 groups, and a check in each
    # 19 → 11 shows, 18 → 12 does not.
    assert compared.false_alarms == pytest.approx(40 * scipy.stats.hypergeom(60, 30, 30).sf(18))
    steady = replicas(10, 10)
    _, compared = judged(steady, steady)
    assert (compared.tests, compared.false_alarms) == (2, 0.0)
    assert judged(replicas(4, 4), replicas(4, 4))[1].tests == 0


PAIRS = 1_000


@cache
def fires(before: int, after: int, count: int) -> bool:
    """Whether a run with so many passes fails beside one with so many, by all that a run goes through."""
    return judged(replicas(before, count), replicas(after, count))[0] == 1


def simulated(before: float, after: float, count: int) -> float:
    """Of PAIRS pairs of runs with these true pass rates, the share that fails the step."""
    random = Random(f"{before} {after} {count}")

    def passes(rate: float) -> int:
        return sum(random.random() < rate for _ in range(count))

    return sum(fires(passes(before), passes(after), count) for _ in range(PAIRS)) / PAIRS


def close(found: float, expected: float) -> bool:
    """Within four standard errors of PAIRS pairs, and one pair."""
    return abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / PAIRS) + 1 / PAIRS


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("count", [5, 10, 30])
def test_it_stays_quiet_on_noise(count: int, rate: float) -> None:
    expected = detection(rate, rate, count)
    found = simulated(rate, rate, count)
    assert expected <= 0.05
    assert found <= 0.05
    assert close(found, expected)


@pytest.mark.parametrize("count", [5, 10, 30, 60])
def test_at_no_rate_it_is_wrong_more_often_than_one_time_in_twenty(count: int) -> None:
    assert max(detection(percent / 100, percent / 100, count) for percent in range(101)) <= 0.05


DETECTED = {
    (5, 0.95, 0.10): 0.83,
    (5, 0.90, 0.30): 0.37,
    (10, 0.90, 0.30): 0.82,
    (10, 0.90, 0.50): 0.47,
    (30, 0.90, 0.50): 0.95,
    (30, 0.90, 0.70): 0.49,
}
"""As docs/statistics.md has it."""


@pytest.mark.parametrize(("count", "before", "after"), DETECTED)
def test_it_fires_on_a_real_drop(count: int, before: float, after: float) -> None:
    expected = detection(before, after, count)
    assert expected == pytest.approx(DETECTED[count, before, after], abs=0.005)
    assert close(simulated(before, after, count), expected)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_flips_of_fewer_replicas_are_as_often_wrong_as_is_said(count: int) -> None:
    """With `all`, a run fails beside a baseline that passed whenever one replica fails."""
    rate = 0.9
    found = simulated(rate, rate, count)
    flips = rate**count * (1 - rate**count)
    assert found >= flips - 4 * math.sqrt(flips * (1 - flips) / PAIRS)
