"""A run beside an earlier one: joined on stable ids, symmetric, and nothing for a run beside itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from support.shard_runs import cell, runs, spec, whole

from keystone_action.scoring.aggregate import exit_code_of
from keystone_action.scoring.comparison import change_of, compare_runs
from keystone_action.scoring.differences import BaselineComparison, ComparedOutcome, Difference
from keystone_action.scoring.results import InvariantResult, RunResult

OPPOSITE = {"fixed": "broken", "flaky": "steadied", "new": "gone"} | {
    "broken": "fixed",
    "steadied": "flaky",
    "gone": "new",
    "same": "same",
    "ungraded": "ungraded",
}
OUTCOMES = [None, *get_args(ComparedOutcome)]


def differences(compared: BaselineComparison) -> list[Difference]:
    return [*compared.specs, *compared.groups, *compared.invariants]


def identity(one: Difference) -> tuple[Any, ...]:
    return one.spec, one.scenario, repr(sorted(one.params.items())), one.invariant


@given(runs(), runs())
def test_exchanging_the_runs_exchanges_what_is_said(base: RunResult, head: RunResult) -> None:
    there = {identity(one): one for one in differences(compare_runs(base, head, source="x"))}
    back = {identity(one): one for one in differences(compare_runs(head, base, source="x"))}
    assert there.keys() == back.keys()
    for key, one in there.items():
        other = back[key]
        assert other.change == OPPOSITE[one.change]
        assert (other.before, other.after) == (one.after, one.before)
        assert (other.score_before, other.score_after) == (one.score_after, one.score_before)
        assert other.p_value == (None if one.p_value is None else pytest.approx(one.p_value, rel=1e-6))


@given(runs())
def test_a_run_beside_itself_has_not_changed(run: RunResult) -> None:
    compared = compare_runs(run, run, source="x")
    assert {one.change for one in compared.specs} == {"same"}
    assert (compared.groups, compared.invariants, compared.changed_specs, compared.regressions) == ((), (), (), 0)
    assert [one.spec for one in compared.specs] == [one.id for one in run.specs]
    assert all(one.p_value is None or one.p_value == pytest.approx(1.0) for one in compared.specs)


@given(runs(), runs())
def test_regressions_are_what_is_broken_and_not_by_chance(base: RunResult, head: RunResult) -> None:
    compared = compare_runs(base, head, source="x")
    found = (*compared.groups, *compared.invariants)
    worse = [one for one in found if one.regression is not None]
    assert compared.regressions >= len(worse)
    assert all(one.change == "broken" for one in worse)
    for one in found:
        graded_passed = one.before == "error" and 0 < one.passed_before == one.total_before
        flipped = (one.before in ("pass", "flaky") or graded_passed) and one.after == "fail"
        few = min(one.replicas_before, one.replicas_after) < 5
        assert (one.p_worse is None) == few
        assert one.regression == (("flip" if flipped else None) if few else "test" if one.p_worse < 0.05 else None)
        assert one.change != "broken" or flipped or one.regression == "test"
    decides = replace(head, baseline=compared, verdict="pass")
    assert exit_code_of(decides, "regression") == (1 if compared.regressions else 0)
    assert exit_code_of(decides) == 0


@given(runs(), runs())
def test_a_part_of_the_cells_has_nothing_gone(base: RunResult, head: RunResult) -> None:
    compared = compare_runs(base, chosen(head, "tag smoke"), source="x")
    assert (compared.partial, compared.partial_baseline) == (True, False)
    assert all(one.change != "gone" or one.invariant is not None for one in differences(compared))
    assert {one.spec for one in compared.specs} == {one.id for one in head.specs}


def chosen(run: RunResult, *words: str, **plan: Any) -> RunResult:
    assert run.plan is not None
    return replace(run, plan=replace(run.plan, chosen=words, **plan))


@pytest.mark.parametrize(
    ("base", "head", "part"),
    [
        ((), (), (False, False)),
        ((), ("tag smoke",), (True, False)),
        (("tag smoke",), (), (False, True)),
        (("tag smoke",), ("tag smoke",), (False, False)),
        (("tag smoke",), ("tag smoke", "param size=1"), (True, True)),
    ],
)
def test_only_what_was_to_be_there_can_be_gone(base: tuple[str, ...], head: tuple[str, ...], part: Any) -> None:
    """A workflow that always runs one tag has all of it on both sides; another choice says nothing about the rest."""
    both = whole([spec("alpha", [cell("alpha", "one", 0), cell("alpha", "two", 0)])])
    fewer = whole([spec("alpha", [cell("alpha", "one", 0)])])
    compared = compare_runs(chosen(both, *base), chosen(fewer, *head), source="x")
    assert (compared.partial, compared.partial_baseline) == part
    assert [one.change for one in compared.groups] == ([] if part[0] else ["gone"])
    older = compare_runs(replace(both, plan=None), chosen(fewer, *head), source="x")
    assert older.partial == bool(head)


@pytest.mark.parametrize("part", [{"shard": "1/2"}, {"cancelled": True}])
def test_a_shard_or_a_cancelled_run_is_a_part_on_either_side(part: dict[str, Any]) -> None:
    run = one_spec(["pass"])
    some = chosen(run, **part) if "shard" in part else replace(run, **part)
    there, here = compare_runs(some, run, source="x"), compare_runs(run, some, source="x")
    assert (there.partial_baseline, there.partial, here.partial_baseline, here.partial) == (True, False, False, True)


@pytest.mark.parametrize("before", OUTCOMES)
@pytest.mark.parametrize("after", OUTCOMES)
def test_every_step_has_a_name_and_an_opposite(before: ComparedOutcome | None, after: ComparedOutcome | None) -> None:
    assert OPPOSITE[change_of(before, after)] == change_of(after, before)
    assert (change_of(before, after) == "same") == (before == after)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("pass", "fail", "broken"),
        ("flaky", "fail", "broken"),
        ("fail", "pass", "fixed"),
        ("fail", "flaky", "fixed"),
        ("pass", "flaky", "flaky"),
        ("flaky", "pass", "steadied"),
        ("pass", "error", "ungraded"),
        ("pass", "skip", "ungraded"),
        ("skip", "fail", "ungraded"),
        (None, "fail", "new"),
        ("fail", None, "gone"),
    ],
)
def test_what_a_step_is_called(before: ComparedOutcome | None, after: ComparedOutcome | None, change: str) -> None:
    assert change_of(before, after) == change


def one_spec(verdicts: list[str], **more: Any) -> RunResult:
    return whole([spec("alpha", [cell("alpha", "one", number, one) for number, one in enumerate(verdicts)], **more)])


def test_replicas_say_whether_it_is_noise() -> None:
    small = compare_runs(one_spec(["pass"] * 3), one_spec(["pass", "pass", "fail"]), source="x")
    (group,) = small.groups
    assert (group.change, group.passed_before, group.passed_after, group.total_after) == ("broken", 3, 2, 3)
    assert group.p_value == pytest.approx(1.0)
    large = compare_runs(one_spec(["pass"] * 10), one_spec(["pass"] * 2 + ["fail"] * 8), source="x")
    # Fisher: 2 · C(10,8) of C(20,8)… by the hypergeometric distribution of 12 passes over 10 and 10.
    assert large.groups[0].p_value == pytest.approx(0.000714456, abs=1e-8)
    (single,) = compare_runs(one_spec(["pass"]), one_spec(["fail"]), source="x").groups
    assert single.p_value is None


def test_flaky_invariants_are_told_from_broken_ones() -> None:
    compared = compare_runs(
        one_spec(["pass"] * 3, rule="any"), one_spec(["pass", "fail", "pass"], rule="any"), source="x"
    )
    assert [one.change for one in compared.groups] == ["flaky"]
    (invariant,) = compared.invariants
    assert (invariant.invariant, invariant.change, invariant.before, invariant.after) == (
        "holds",
        "flaky",
        "pass",
        "flaky",
    )
    assert compared.regressions == 0


def test_joined_by_parameters_and_not_by_place() -> None:
    def of(order: list[str], broken: str) -> RunResult:
        cells = [cell("alpha", "one", 0, "fail" if name == broken else "pass", model=name) for name in order]
        return whole([spec("alpha", cells)])

    compared = compare_runs(of(["a", "b", "c"], ""), of(["c", "d", "a"], "a"), source="x")
    found = {one.params["model"]: one.change for one in compared.groups}
    assert found == {"a": "broken", "d": "new", "b": "gone"}


def test_invariants_by_name() -> None:
    def of(*names: str, failing: str = "") -> RunResult:
        checks = tuple(
            InvariantResult(n, "file_exists", "fail" if n == failing else "pass", float(n != failing), 1.0, False, "m")
            for n in names
        )
        return whole([spec("alpha", [replace(cell("alpha", "one", 0), invariants=checks)])])

    compared = compare_runs(of("kept", "dropped", "worse"), of("worse", "kept", "added", failing="worse"), source="x")
    assert {one.invariant: one.change for one in compared.invariants} == {
        "worse": "broken",
        "added": "new",
        "dropped": "gone",
    }
    # The cell still passes here; a check that was better there is a regression all the same.
    assert compared.groups == ()
    assert compared.regressions == 1


def test_specs_that_only_one_side_has_are_said_once_and_other_files_are_named() -> None:
    def of(*names: str) -> RunResult:
        return whole([spec(name, [cell(name, "one", 0), cell(name, "two", 0)]) for name in names])

    base, head = of("alpha", "beta"), of("beta", "gamma")
    head = replace(head, specs=(replace(head.specs[0], sha256="f" * 64), head.specs[1]))
    compared = compare_runs(base, head, source="x")
    assert Counter((one.spec, one.change) for one in compared.specs) == {
        ("beta", "same"): 1,
        ("gamma", "new"): 1,
        ("alpha", "gone"): 1,
    }
    assert (compared.groups, compared.invariants, compared.changed_specs) == ((), (), ("beta",))


@pytest.mark.parametrize(
    ("verdict", "cancelled", "fail_on", "code"),
    [
        ("error", False, "regression", 3),
        ("pass", True, "regression", 130),
        ("fail", False, "regression", 1),
        ("fail", False, "threshold", 1),
        ("fail", False, "never", 0),
    ],
)
def test_without_a_baseline_the_threshold_decides(verdict: Any, cancelled: bool, fail_on: str, code: int) -> None:
    run = replace(one_spec(["pass"]), verdict=verdict, cancelled=cancelled)
    assert exit_code_of(run, fail_on) == code


def test_what_failed_there_too_is_no_regression() -> None:
    compared = compare_runs(one_spec(["fail"]), one_spec(["fail"]), source="x")
    run = replace(one_spec(["fail"]), baseline=compared)
    assert (run.verdict, exit_code_of(run, "regression"), exit_code_of(run)) == ("fail", 0, 1)
