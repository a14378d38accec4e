"""Joined shards are the run that was split; what can't be joined is refused and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shard_runs import cell, named, runs, shards_of, spec, whole

from keystone_action import __version__
from keystone_action.errors import HarnessError, KeystoneError, UsageError
from keystone_action.scoring.aggregate import decide_spec, exit_code_of, rule_name, rule_of
from keystone_action.scoring.differences import BaselineComparison, SpecChange, SpecChanges
from keystone_action.scoring.document import run_to_document
from keystone_action.scoring.results import CellResult, PlanInfo, RunResult, SandboxInfo, StoppingRule
from keystone_action.scoring.shards import ShardRun, merge
from keystone_action.spec.plan import cells_digest


def join(shards: list[ShardRun]) -> RunResult:
    return merge(shards, version=__version__, digest_of=cells_digest)


def refused(shards: list[ShardRun], kind: type[KeystoneError], *words: str) -> KeystoneError:
    with pytest.raises(kind) as caught:
        join(shards)
    assert type(caught.value) is kind
    for word in words:
        assert word in caught.value.message, caught.value.message
    assert caught.value.help
    return caught.value


@given(runs(), st.integers(1, 9), st.booleans(), st.randoms(use_true_random=False))
def test_joined_shards_are_the_run_that_was_split(run: RunResult, count: int, by_hash: bool, order: Any) -> None:
    shards = named(shards_of(run, count, by_hash=by_hash))
    order.shuffle(shards)
    joined = join(shards)
    assert run_to_document(replace(joined, run_id=run.run_id)) == run_to_document(run)
    for fail_on in ("threshold", "error", "never"):
        assert exit_code_of(joined, fail_on) == exit_code_of(run, fail_on)


@given(runs(), st.integers(2, 9), st.data())
def test_no_shard_can_be_left_out_or_given_twice(run: RunResult, count: int, data: st.DataObject) -> None:
    shards = named(shards_of(run, count))
    gone = data.draw(st.sampled_from(range(count)))
    refused(shards[:gone] + shards[gone + 1 :], HarnessError, f"missing: shard {gone + 1}/{count} ")
    refused([*shards, replace(shards[gone], name="again")], UsageError, f"shard {gone + 1}/{count} is given twice")


def test_replicas_of_one_group_may_be_in_different_shards() -> None:
    """One of three passes in each shard or does not: only all together say whether two did."""
    cells = [cell("alpha", "alpha", n, verdict, score=float(verdict == "pass")) for n, verdict in enumerate(VERDICTS)]
    run = whole([spec("alpha", cells, rule=2)])
    shards = shards_of(run, 3)
    assert [shard.verdict for shard in shards] == ["fail", "fail", "fail"]
    joined = join(named(shards))
    (group,) = joined.specs[0].groups
    assert (joined.verdict, group.verdict, group.passed, group.total) == ("flaky", "flaky", 2, 3)
    assert joined.specs[0].pass_rate is not None
    assert joined.specs[0].pass_rate.value == pytest.approx(2 / 3)


VERDICTS = ("pass", "fail", "pass")


def three(**changes: Any) -> list[ShardRun]:
    """Three shards of five cells; changes: index → what becomes of that one's run."""
    run = whole([spec("alpha", [cell("alpha", name, 0) for name in ("one", "two", "six", "ten", "low")])])
    parts = shards_of(run, 3)
    return named([changes[f"n{n}"](part) if f"n{n}" in changes else part for n, part in enumerate(parts, 1)])


def changed(**values: Any) -> Callable[[RunResult], RunResult]:
    return lambda run: replace(run, **values)


def planned(**values: Any) -> Callable[[RunResult], RunResult]:
    def change(run: RunResult) -> RunResult:
        assert run.plan is not None
        return replace(run, plan=replace(run.plan, **values))

    return change


def spec_changed(**values: Any) -> Callable[[RunResult], RunResult]:
    return lambda run: replace(run, specs=(replace(run.specs[0], **values), *run.specs[1:]))


def cell_changed(**values: Any) -> Callable[[RunResult], RunResult]:
    def change(run: RunResult) -> RunResult:
        first, *rest = run.specs[0].cells
        return spec_changed(cells=(replace(first, **values), *rest))(run)

    return change


BESIDE = cell("alpha", "one", 0, "fail", score=1.0, broken=True)
"""A cell with a check of 1.0 and one that broke."""


def test_a_failure_beside_which_a_check_broke_is_joined() -> None:
    kept = {"verdict": "fail", "invariants": BESIDE.invariants}
    counted = cell_changed(**kept, composite=0.5, counted_as_zero=("script",))
    assert join(three(n2=counted)).counts["broken_checks"] == 1
    assert join(three(n2=cell_changed(**kept, composite=0.0))).counts["failed"] == 1


def test_the_three_are_fine_as_they_are() -> None:
    assert join(three()).counts["cells"] == 5


def test_all_that_are_missing_are_named() -> None:
    parts = named(shards_of(whole([spec("alpha", [cell("alpha", "one", 0)])]), 50))
    error = refused([parts[6]], HarnessError, "missing: shards 1/50, 2/50", "and 29 more", "found: 7/50")
    assert error.exit_code == 3
    assert "found: 1/3, 3/3" in refused([three()[0], three()[2]], HarnessError, "missing: shard 2/3").message


def test_nothing_is_no_run() -> None:
    assert refused([], UsageError, "nothing").exit_code == 2


def other_spec(run: RunResult) -> RunResult:
    specs = tuple(replace(one, sha256="b" * 64) for one in run.specs)
    return replace(planned(specs={"alpha": "b" * 64})(run), specs=specs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_spec, ["results-1 and results-2 are not shards of one run", "alpha differs between them (by sha256)"]),
        (planned(specs={"alpha": "a" * 64, "beta": "b" * 64}), ["beta is in one of them only"]),
        (planned(shard="2/4"), ["one is a shard of 3, the other of 4"]),
        (planned(cells=6), ["planned different cells"]),
        (planned(digest="0" * 64), ["planned different cells"]),
        (planned(chosen=("tag smoke",)), ["planned different cells"]),
        (changed(git_sha="6" * 40), ["different commits"]),
        (spec_changed(pass_threshold=0.4), ["pass_threshold of alpha is 0.5 in one and 0.4 in the other"]),
        (spec_changed(replica_aggregation="any"), ["replica_aggregation of alpha is all in one and any in the other"]),
        (spec_changed(scenarios="at least 0.5"), ["scenarios of alpha is all in one and at least 0.5 in the other"]),
        (changed(cancelled=True), ["shard 2/3 (results-2) was cancelled: it has 2 of its 2 cells"]),
        (changed(error="the engine went away"), ["shard 2/3 (results-2) broke: the engine went away"]),
        (changed(specs=()), ["shard 2/3 (results-2) is not complete: it has 0 of its 2 cells"]),
    ],
)
def test_parts_of_different_or_unfinished_runs(change: Callable[[RunResult], RunResult], words: list[str]) -> None:
    assert refused(three(n2=change), HarnessError, *words).exit_code == 3


@pytest.mark.parametrize(
    "change",
    [
        planned(shard="2/3\n"),
        planned(shard="0/3"),
        planned(shard="4/3"),
        planned(shard="9/999999"),
        planned(cells=-1),
        planned(cells=10**30),
        planned(specs={}),
        changed(duration_s=-1.0),
        changed(duration_s=1e300),
        changed(started_at="yesterday"),
        changed(started_at="9" * 400),
        spec_changed(pass_threshold=-0.5),
        spec_changed(replica_aggregation="at least 0"),
        spec_changed(replica_aggregation="none"),
        spec_changed(scenarios="at least 0"),
        spec_changed(scenarios="at least 1e-999999999"),
        spec_changed(scenarios="at least nan"),
        spec_changed(sha256="f" * 64),
        cell_changed(id="../../etc/passwd"),
        cell_changed(id="alpha.one/../../x"),
        cell_changed(id="alpha.r0\x1b[31m"),
        cell_changed(id="beta.one.r0"),
        cell_changed(id="alpha." + "x" * 300),
        cell_changed(composite=None),
        cell_changed(composite=1.5),
        cell_changed(verdict="error"),
        cell_changed(usage={"cost_usd": -5.0}),
        cell_changed(usage={"cost_usd": 1e300}),
        cell_changed(duration_s=-1.0),
        cell_changed(invariants=(replace(cell("alpha", "one", 0).invariants[0], score=7.0),)),
        cell_changed(invariants=(replace(cell("alpha", "one", 0).invariants[0], weight=-1.0),)),
        # A check that broke lets no cell pass, and a failure beside it is forced or counts it as 0.
        cell_changed(invariants=BESIDE.invariants, composite=0.5, counted_as_zero=("script",)),
        cell_changed(invariants=BESIDE.invariants, composite=1.0),
        cell_changed(invariants=BESIDE.invariants, composite=1.0, verdict="fail"),
        cell_changed(invariants=BESIDE.invariants, composite=0.5, verdict="fail", counted_as_zero=("holds",)),
        cell_changed(invariants=BESIDE.invariants, composite=0.9, verdict="fail", counted_as_zero=("script",)),
        cell_changed(counted_as_zero=("holds",)),
    ],
)
def test_what_no_run_of_ours_writes(change: Callable[[RunResult], RunResult]) -> None:
    error = refused(three(n2=change), HarnessError, "results-2")
    assert len(error.message) < 600


def test_a_plan_of_nothing_is_no_run() -> None:
    """Else an empty document would be the greenest run of all."""
    empty = replace(whole([]), plan=PlanInfo("1/1", 0, cells_digest([]), {}))
    refused(named([empty]), HarnessError, "damaged")


def test_a_shard_that_does_not_know_its_commit_hides_no_other() -> None:
    unknown = changed(git_sha=None)
    assert join(three(n1=unknown, n2=unknown)).git_sha == "5" * 40
    other = changed(git_sha="6" * 40)
    refused(three(n1=unknown, n3=other), HarnessError, "results-2 and results-3", "different commits")


def test_cells_that_are_not_the_plans() -> None:
    refused(three(n2=cell_changed(id="alpha.new.r0")), HarnessError, "not those of their plan")


@pytest.mark.parametrize("positions", [(0, 1), (0, 9), (0, 2)], ids=["another's", "nowhere", "twice"])
def test_places_that_are_no_plan(positions: tuple[int, ...]) -> None:
    """The first has 0 and 3 of five."""
    error = refused(three(n1=planned(positions=positions)), HarnessError)
    assert "not those of their plan" in error.message


def test_places_out_of_order() -> None:
    refused(three(n1=planned(positions=(3, 0))), HarnessError, "results-1", "are not in order")
    refused(three(n1=planned(positions=(0, 0))), HarnessError, "results-1", "are not in order")


def test_one_cell_in_two_shards() -> None:
    """Whatever the results, and whether they agree."""
    first = three()[0].run.specs[0].cells[0]
    message = "the cell alpha.one.r0 is in two shards: results-1 and results-2"
    refused(three(n2=cell_changed(id=first.id)), HarnessError, message)
    refused(three(n2=cell_changed(id=first.id, verdict="fail", composite=0.0)), HarnessError, message)


def test_one_cell_twice_in_a_shard() -> None:
    def twice(run: RunResult) -> RunResult:
        first: CellResult = run.specs[0].cells[0]
        return spec_changed(cells=(first, first))(run)

    refused(three(n1=twice), HarnessError, "results-1", "a cell twice")


def test_results_of_another_version() -> None:
    error = refused(three(n3=changed(keystone_version="9.9.9")), UsageError, "results-3", "9.9.9", __version__)
    assert error.exit_code == 2
    refused(three(n3=changed(plan=None)), UsageError, "results-3", "another version")


def test_a_run_that_was_never_split_is_all_of_it() -> None:
    run = whole([spec("alpha", [cell("alpha", "one", 0)])])
    assert run_to_document(replace(join(named([run])), run_id="whole")) == run_to_document(run)


def test_shards_without_a_cell_count_as_there() -> None:
    run = whole([spec("alpha", [cell("alpha", "one", 0)])])
    assert join(named(shards_of(run, 3))).counts["cells"] == 1
    refused(named(shards_of(run, 3))[:2], HarnessError, "missing: shard 3/3")


def test_what_isolated_all_of_them() -> None:
    container = SandboxInfo("docker", ("container",), "enforced")
    none = SandboxInfo("process", ("none",), "watched", ("no Landlock",))
    user = SandboxInfo("process", ("user",), "watched")

    def sandbox(*found: SandboxInfo) -> SandboxInfo:
        return join(three(**{f"n{n}": changed(sandbox=one) for n, one in enumerate(found, 1)})).sandbox

    both = SandboxInfo("process", ("user", "landlock"), "watched")
    assert sandbox(both, both, both) == both
    assert sandbox(container, container, container) == container
    assert sandbox(container, user, both) == user
    assert sandbox(container, none, both) == none
    watched = replace(container, not_enforced=("disk is watched", "no Landlock"))
    assert sandbox(watched, none, both) == replace(none, not_enforced=("disk is watched", "no Landlock"))


def test_what_a_change_does_to_its_own_gate_is_never_lost() -> None:
    """One shard may have failed to look, and hide nothing by that."""
    weaker = SpecChange("keystone.yaml", "changed", ("threshold 0.85 → 0.5",))
    seen = SpecChanges("b" * 40, "main", specs=(weaker,))
    failed = SpecChanges(None, "main", problem="the base commit could not be fetched")
    assert join(three()).spec_changes is None
    assert join(three(n1=changed(spec_changes=failed), n3=changed(spec_changes=seen))).spec_changes == seen
    assert join(three(n2=changed(spec_changes=failed))).spec_changes == failed
    less = SpecChanges("c" * 40, "main", specs=(weaker, weaker), incomplete="only this push was compared")
    assert join(three(n1=changed(spec_changes=less), n2=changed(spec_changes=seen))).spec_changes == seen
    clean = SpecChanges("b" * 40, "main")
    assert join(three(n1=changed(spec_changes=clean), n2=changed(spec_changes=seen))).spec_changes == seen


def test_what_shards_compared_with_a_baseline_is_not_the_whole() -> None:
    part = BaselineComparison(
        "main", "pass", 1.0, None, "2026-01-01T00:00:00Z", (), (), (), partial=True, regressions=3
    )
    assert join(three(n1=changed(baseline=part))).baseline is None


def test_times_are_from_the_first_start_to_the_last_end() -> None:
    late = changed(started_at="2026-01-01T00:01:00Z", duration_s=30.0)
    joined = join(three(n2=late))
    assert (joined.started_at, joined.duration_s) == ("2026-01-01T00:00:00Z", 90.0)


@given(st.sampled_from(["all", "any", "majority", "mean"]) | st.integers(1, 10**6))
def test_rules_for_replicas_have_names(rule: Any) -> None:
    assert rule_of(rule_name(rule)) == rule


RULE = StoppingRule(min=1, max=5, confidence=0.95)


def stopped_run(ran: list[CellResult], not_run: list[int], rule: StoppingRule = RULE) -> RunResult:
    """A whole run of one group, of which these replicas were not run."""
    ids = tuple(f"alpha.alpha.r{number}" for number in not_run)
    head = replace(spec("alpha", ran, rule="any"), stopping=rule)
    run = whole([decide_spec(head, ran, ids)])
    assert run.plan is not None
    planned = sorted([*(one.id for one in ran), *ids])
    return replace(run, plan=replace(run.plan, cells=len(planned), digest=cells_digest(planned), not_run=ids))


def test_a_group_that_stopped_with_a_gap_is_joined() -> None:
    """As where the first replica was under way when the run was cut, and the second had decided when it was resumed."""
    run = stopped_run([cell("alpha", "alpha", 1)], [0, 2, 3, 4])
    joined = join(named([run]))
    assert joined.plan == run.plan
    assert joined.specs[0].groups == run.specs[0].groups
    assert joined.specs[0].groups[0].reason == "decided after 1 of 5"


@pytest.mark.parametrize(
    ("ran", "not_run", "rule", "words"),
    [
        ([], [0], RULE, "belong to no group that was"),
        ([cell("alpha", "alpha", 0, "fail", score=0.0)], [1, 2, 3, 4], RULE, "its group is not decided without it"),
        ([cell("alpha", "alpha", 0)], [0, 1, 2, 3], RULE, "belong to no group that was"),
        ([cell("alpha", "alpha", 0)], [1, 2, 3, 4], replace(RULE, confidence=1.0), "when the replicas of alpha stop"),
        ([cell("alpha", "alpha", 0)], [1, 2, 3, 4], replace(RULE, min=0), "when the replicas of alpha stop"),
        ([cell("alpha", "alpha", 0)], [1, 2, 3, 4], replace(RULE, max=0), "when the replicas of alpha stop"),
    ],
)
def test_what_no_run_leaves_out_is_refused(
    ran: list[CellResult], not_run: list[int], rule: StoppingRule, words: str
) -> None:
    if not ran:
        other = stopped_run([cell("alpha", "beta", 0)], [])
        assert other.plan is not None
        run = replace(other, plan=replace(other.plan, cells=2, not_run=("alpha.alpha.r0",)))
    else:
        run = stopped_run(ran, not_run)
        run = replace(run, specs=tuple(replace(one, stopping=rule) for one in run.specs))
    refused(named([run]), HarnessError, words)
