"""What got worse under another name is not news, and what did not is not a regression."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shard_runs import cell, runs, spec, whole

from keystone_action.scoring.aggregate import decide_spec
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.results import CellResult, CheckStatus, InvariantResult, RunResult


def one(spec_id: str, scenario: str, checks: str, *, passes: bool | None = None, model: str = "") -> CellResult:
    """A cell with checks written as `a+ b-`: those with a minus fail. It passes when all do, unless it is said."""
    results = []
    for text in checks.split():
        status: CheckStatus = "pass" if text.endswith("+") else "fail"
        results.append(
            InvariantResult(text[:-1], "file_exists", status, float(status == "pass"), 1.0, gate=False, message="m")
        )
    verdict = "pass" if ("-" not in checks if passes is None else passes) else "fail"
    return replace(cell(spec_id, scenario, 0, verdict, model=model), invariants=tuple(results))


def of(*cells: CellResult, path: str = "") -> RunResult:
    """path: of all specs; else each has its own."""
    by_spec: dict[str, list[CellResult]] = {}
    for entry in cells:
        by_spec.setdefault(entry.id.partition(".")[0], []).append(entry)
    specs = [spec(name, found) for name, found in by_spec.items()]
    return whole([replace(one, path=path or one.path) for one in specs])


@pytest.mark.parametrize(
    ("before", "after", "regressions"),
    [
        # A check
        ([one("alpha", "x", "old+")], [one("alpha", "x", "new-")], 2),  # the cell is broken too
        ([one("alpha", "x", "kept- old+")], [one("alpha", "x", "kept- new-")], 1),
        ([one("alpha", "x", "kept+ old-")], [one("alpha", "x", "kept+ new-")], 0),
        # A scenario; of one that failed already a check
        ([one("alpha", "old", "a+")], [one("alpha", "new", "a-")], 2),
        ([one("alpha", "old", "a- b+")], [one("alpha", "new", "a- b-")], 1),
        ([one("alpha", "old", "a+ b+")], [one("alpha", "new", "a+ b-", passes=True)], 1),
        ([one("alpha", "old", "a- b+")], [one("alpha", "new", "a- b+")], 0),
        # Some, of which some failed already: who became whom is not known, but that no pass was lost
        ([one("alpha", "x", "a+"), one("alpha", "y", "a-")], [one("alpha", "yy", "a-"), one("alpha", "xx", "a+")], 0),
        ([one("alpha", "x", "a+"), one("alpha", "y", "a-")], [one("alpha", "yy", "a-"), one("alpha", "xx", "a-")], 2),
        ([one("alpha", "x", "o+ p-")], [one("alpha", "x", "q- r+")], 0),
        # A value of a parameter
        ([one("alpha", "x", "a+", model="m1")], [one("alpha", "x", "a-", model="m2")], 2),
        (
            [one("alpha", "x", "a+", model="m1"), one("alpha", "y", "a-", model="m1")],
            [one("alpha", "x", "a-", model="m2"), one("alpha", "y", "a+", model="m2")],
            2,
        ),
        # A spec, of which something failed already
        (
            [one("alpha", "x", "a+"), one("alpha", "y", "a-")],
            [one("beta", "x", "a-"), one("beta", "y", "a-")],
            2,
        ),
        ([one("alpha", "alpha", "a- b+")], [one("beta", "beta", "a- b-")], 1),
        ([one("alpha", "x", "a- b+")], [one("beta", "x", "a- c-")], 1),
        # From one spec to another that was there
        (
            [one("alpha", "x", "a+"), one("alpha", "y", "a+"), one("beta", "z", "b+")],
            [one("alpha", "x", "a+"), one("beta", "z", "b+"), one("beta", "y", "a-")],
            2,
        ),
        # Two that moved, of which one stands where the other was: what moved well stands in for nothing
        (
            [one("alpha", "x", "a+"), one("alpha", "y", "a+"), one("beta", "z", "b+")],
            [one("alpha", "x", "a+"), one("alpha", "new", "a-"), one("beta", "z", "b+"), one("beta", "y", "a+")],
            0,
        ),
        # Only new, only gone, only better
        ([one("alpha", "x", "a+")], [one("alpha", "x", "a+"), one("alpha", "new", "a-")], 0),
        ([one("alpha", "x", "a+"), one("alpha", "old", "a+")], [one("alpha", "x", "a+")], 0),
        ([one("alpha", "old", "a+")], [one("alpha", "new", "a+"), one("alpha", "more", "a-")], 0),
        ([one("alpha", "old", "a-")], [one("alpha", "new", "a+")], 0),
        ([one("alpha", "old", "a-")], [one("alpha", "new", "a-")], 0),
    ],
)
def test_another_name_hides_nothing(before: list[CellResult], after: list[CellResult], regressions: int) -> None:
    there, here = of(*before, path="keystone.yaml"), of(*after, path="keystone.yaml")
    assert compare_runs(there, here, source="x").regressions == regressions


def test_a_spec_that_was_perhaps_not_to_run_stands_for_no_other() -> None:
    """A workflow may run only the specs that a change touches, beside a baseline that has all."""
    before = of(one("alpha", "x", "a+"), one("kept", "k", "a+"))
    assert compare_runs(before, of(one("kept", "k", "a+"), one("beta", "y", "a-")), source="x").regressions == 0
    assert compare_runs(before, of(one("kept", "k", "a+"), one("kept", "y", "a-")), source="x").regressions == 0
    assert compare_runs(before, of(one("kept", "k", "a+"), one("beta", "x", "a-")), source="x").regressions == 2


def in_files(*found: tuple[str, CellResult]) -> RunResult:
    """Specs of one cell each, with their files."""
    return whole([replace(spec(entry.id.partition(".")[0], [entry]), path=path) for path, entry in found])


@pytest.mark.parametrize("scenario", ["main", "scenario-1", ""])
@pytest.mark.parametrize("params", ["", "m1"])
def test_specs_with_other_ids_are_known_by_their_files(scenario: str, params: str) -> None:
    """scenario: empty = the only one of a spec, which has the spec's id."""

    def made(path: str, name: str, checks: str) -> tuple[str, CellResult]:
        return path, one(name, scenario or name, checks, model=params)

    before = in_files(made("a.yaml", "a", "x-"), made("b.yaml", "b", "x+"))
    same = made("b.yaml", "b2", "x+"), made("a.yaml", "a2", "x-")
    worse = made("b.yaml", "b2", "x-"), made("a.yaml", "a2", "x+")
    for head, regressions in ((same, 0), (same[::-1], 0), (worse, 2), (worse[::-1], 2)):
        assert compare_runs(before, in_files(*head), source="x").regressions == regressions


@pytest.mark.parametrize(
    ("old", "new"), [("scenario-1", "scenario-1"), ("record-2", "record-2"), ("a", "c"), ("old", "new")]
)
def test_an_unrelated_spec_is_no_other_one(old: str, new: str) -> None:
    """5.4: "only checks and cells that were better there fail"."""
    kept = "b.yaml", one("b", "main", "x+")
    before, after = ("a.yaml", one("a", old, "x+")), ("c.yaml", one("c", new, "x-"))
    assert compare_runs(in_files(kept, before), in_files(kept, after), source="x").regressions == 0


def test_a_name_that_several_have_tells_nothing_of_where_they_went() -> None:
    before = in_files(("a.yaml", one("a", "main", "x+")), ("b.yaml", one("b", "main", "x-")))
    after = in_files(("c.yaml", one("c", "main", "x-")), ("d.yaml", one("d", "main", "x+")))
    assert compare_runs(before, after, source="x").regressions == 0


@given(runs(), runs(), st.sets(st.sampled_from(["alpha", "beta", "gamma"])), st.randoms())
def test_the_order_of_specs_never_counts(base: RunResult, head: RunResult, others: set[str], random: Random) -> None:
    """others: those with another id in the same file."""
    specs = [replace(entry, id=f"new-{entry.id}") if entry.id in others else entry for entry in head.specs]
    there = replace(base, specs=tuple(random.sample(base.specs, len(base.specs))))
    here = replace(head, specs=tuple(random.sample(specs, len(specs))))
    in_order = compare_runs(base, replace(head, specs=tuple(specs)), source="x")
    assert compare_runs(there, here, source="x").regressions == in_order.regressions


def renamed(run: RunResult, *, specs: bool, broken: bool) -> RunResult:
    """The same cells with scenarios, and perhaps specs, of other names; broken: none of them passes any more."""
    found = []
    for entry in run.specs:
        rule = "all" if broken else entry.replica_aggregation
        cells = [replace(one, scenario=f"new {one.scenario}") for one in entry.cells]
        if broken:
            cells = [replace(one, verdict="fail", composite=0.0) for one in cells]
        found.append(
            decide_spec(replace(entry, id=f"{'new-' if specs else ''}{entry.id}", replica_aggregation=rule), cells)
        )
    return whole(found)


@given(runs(), st.booleans())
def test_new_names_alone_change_nothing(run: RunResult, specs: bool) -> None:
    assert compare_runs(run, renamed(run, specs=specs, broken=False), source="x").regressions == 0


@given(runs(), st.booleans())
def test_no_new_name_hides_that_all_is_broken(run: RunResult, specs: bool) -> None:
    compared = compare_runs(run, renamed(run, specs=specs, broken=True), source="x")
    passed = [group for entry in run.specs for group in entry.groups if group.verdict in ("pass", "flaky")]
    assert compared.regressions >= len(passed)


def test_where_the_baseline_is_a_part_what_is_new_was_perhaps_not_run() -> None:
    before, after = of(one("alpha", "old", "a+")), of(one("alpha", "new", "a-"))
    assert compare_runs(replace(before, cancelled=True), after, source="x").regressions == 0
