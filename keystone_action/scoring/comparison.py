"""A run beside an earlier one: fixed, broken, flaky, new, gone. Pure.

Joined on what is stable: the spec's id, the scenario, the parameters (replicas of both are a group), and the name of
the invariant within its group. Specs and groups keep the verdicts that their own rules gave them; an invariant passes
in a group when it did in every graded replica, fails when it did in none, and is flaky in between. Where both sides
have enough replicas for the exact test, what it calls worse is broken and what it calls better is fixed, whatever the
verdicts are.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from keystone_action.scoring.aggregate import group_key, mean
from keystone_action.scoring.composite import show_threshold
from keystone_action.scoring.differences import BaselineComparison, ChangeKind, ComparedOutcome, Difference
from keystone_action.scoring.results import CellResult, GroupResult, InvariantResult, RunResult, SpecResult
from keystone_action.scoring.statistics import (
    PASSING,
    Stratum,
    counts_of,
    difference_p_value,
    false_alarm_rate,
    is_tested,
    is_worse,
    regression_of,
    worse_p_value,
)

_UNGRADED = ("error", "skip")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def compare_runs(base: RunResult, head: RunResult, *, source: str) -> BaselineComparison:
    """What changed from base to head. source: where base was found, for reports.

    Where head was only to run a part of the cells (a shard, a filter) or was cancelled, what it lacks is not gone;
    where base was, what head has besides is new only in name. Exchanging the two exchanges fixed with broken, flaky
    with steadied and new with gone; a run beside itself has nothing but `same`.
    """
    partial, partial_baseline = _is_part(head, base), _is_part(base, head)
    specs: list[Difference] = []
    found: list[ComparedGroup] = []
    changed: list[str] = []
    rules: list[str] = []
    both: set[str] = set()
    for before, after in join_values({one.id: one for one in base.specs}, {one.id: one for one in head.specs}):
        if after is None and partial:
            continue
        specs.append(_spec(before, after))
        found += _groups(before, after, partial=partial)
        if before is not None and after is not None:
            both.add(after.id)
            changed += [after.id] if before.sha256 != after.sha256 else []
            rules += _changed_rules(before, after)
    # What a spec or a group that only one run has consists of goes without saying.
    groups = [one.group for one in found if one.group.change != "same" and one.group.spec in both]
    stayed = [one for one in found if one.group.change not in ("new", "gone")]
    invariants = [check for one in stayed for check in one.checks if check.change != "same"]
    worse = sum(one.regression is not None for one in (*groups, *invariants))
    tested = [one for here in stayed for one in (here.group, *here.checks) if one.p_worse is not None]
    return BaselineComparison(
        source=source,
        verdict=base.verdict,
        composite=base.composite,
        git_sha=base.git_sha,
        started_at=base.started_at,
        specs=tuple(specs),
        groups=tuple(groups),
        invariants=tuple(invariants),
        changed_specs=tuple(changed),
        partial=partial,
        partial_baseline=partial_baseline,
        usage=base.usage,
        judge_usage=base.judge_usage,
        regressions=worse + broken_elsewhere(stayed if partial_baseline else found),
        tests=len(tested),
        false_alarms=math.fsum(false_alarm_rate(counts_of(one)) for one in tested),
        changed_rules=tuple(rules),
    )


def _changed_rules(before: SpecResult, after: SpecResult) -> Iterator[str]:
    """Each side keeps the verdicts that its own rules gave it."""
    if before.pass_threshold != after.pass_threshold:
        yield f"{after.id}: threshold {show_threshold(before.pass_threshold)} → {show_threshold(after.pass_threshold)}"
    if before.replica_aggregation != after.replica_aggregation:
        yield f"{after.id}: replicas needed {before.replica_aggregation} → {after.replica_aggregation}"
    if before.stopping != after.stopping:
        yield f"{after.id}: replicas {_replicas(before)} → {_replicas(after)}"
    if before.scenarios != after.scenarios:
        yield f"{after.id}: scenarios needed {before.scenarios} → {after.scenarios}"


def _replicas(spec: SpecResult) -> str:
    rule = spec.stopping
    return "in a fixed number" if rule is None else f"{rule.min} to {rule.max} until decided ({rule.confidence:g})"


def _is_part(run: RunResult, other: RunResult) -> bool:
    """Whether cells that `other` has may be missing in `run` for no reason of the specs."""
    if run.cancelled or run.plan is None:
        return run.cancelled
    chosen_there = () if other.plan is None else other.plan.chosen
    return run.plan.shard is not None or run.plan.chosen not in ((), chosen_there)


def change_of(before: ComparedOutcome | None, after: ComparedOutcome | None) -> ChangeKind:
    """What a step from one outcome to another is called. `ungraded`: one of the two says nothing about the agent, so
    that they can't be compared."""
    if before == after:
        return "same"
    if before is None or after is None:
        return "new" if before is None else "gone"
    if before in _UNGRADED or after in _UNGRADED:
        return "ungraded"
    if after == "fail":
        return "broken"
    if before == "fail":
        return "fixed"
    return "flaky" if after == "flaky" else "steadied"


def join_values(
    before: Mapping[_Key, _Value], after: Mapping[_Key, _Value]
) -> Iterator[tuple[_Value | None, _Value | None]]:
    """The values of both by their keys, in the order of `after`; what only `before` has comes last."""
    for key in (*after, *(key for key in before if key not in after)):
        yield before.get(key), after.get(key)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a difference. passed of total: graded results. replicas: of the group, graded or not; 0 of one that
    stopped when it was decided: its numbers are not a sample of a fixed size, which the test needs."""

    outcome: ComparedOutcome | None = None
    score: float | None = None
    passed: int = 0
    total: int = 0
    replicas: int = 0


def _spec(before: SpecResult | None, after: SpecResult | None) -> Difference:
    present = after or before
    assert present is not None
    sides = [_spec_side(one) for one in (before, after)]
    repeated = min(side.total for side in sides) >= 2
    strata = list(_strata(before, after)) if before is not None and after is not None and repeated else None
    return _difference(*sides, spec=present.id, strata=strata)


def _spec_side(spec: SpecResult | None) -> _Side:
    if spec is None:
        return _Side()
    passed, total = _count_passed(spec.cells)
    return _Side(spec.verdict, spec.composite, passed, total, len(spec.cells))


def _strata(before: SpecResult, after: SpecResult) -> Iterator[Stratum]:
    """One for each group that both have, and that did not stop early: what only one of them ran says nothing about a
    difference."""
    for one, other in join_values(_with_cells(before), _with_cells(after)):
        if one is not None and other is not None and not (one[0].not_run or other[0].not_run):
            yield Stratum(*_count_passed(one[1]), *_count_passed(other[1]))


def _groups(before: SpecResult | None, after: SpecResult | None, *, partial: bool) -> Iterator[ComparedGroup]:
    present = after or before
    assert present is not None
    for one, other in join_values(_with_cells(before), _with_cells(after)):
        if other is None and partial:
            continue
        shown = other or one
        assert shown is not None
        group, _ = shown
        sides = [_group_side(*entry) if entry is not None else _Side() for entry in (one, other)]
        results = [_invariants(entry[1]) if entry is not None else {} for entry in (one, other)]
        whole = _difference(*sides, spec=present.id, group=group)
        yield ComparedGroup(
            whole,
            tuple(_invariant(old, new, whole, group) for old, new in join_values(*results)),
            present.path if before is None or after is None else "",
        )


def _group_side(group: GroupResult, cells: Sequence[CellResult]) -> _Side:
    passed, total = _count_passed(cells)
    return _Side(group.verdict, group.composite, passed, total, 0 if group.not_run else len(cells))


def _with_cells(spec: SpecResult | None) -> dict[tuple[str, str], tuple[GroupResult, list[CellResult]]]:
    if spec is None:
        return {}
    cells = _cells_by_group(spec)
    # Groups come in the order in which their cells first do (`aggregate_groups`).
    return {key: (group, cells[key]) for key, group in zip(cells, spec.groups, strict=True)}


def _cells_by_group(spec: SpecResult) -> dict[tuple[str, str], list[CellResult]]:
    found: dict[tuple[str, str], list[CellResult]] = {}
    for cell in spec.cells:
        found.setdefault(group_key(cell), []).append(cell)
    return found


def _count_passed(cells: Iterable[CellResult]) -> tuple[int, int]:
    graded = [cell.verdict for cell in cells if cell.verdict != "error"]
    return sum(verdict == "pass" for verdict in graded), len(graded)


def _invariants(cells: Iterable[CellResult]) -> dict[str, list[InvariantResult]]:
    found: dict[str, list[InvariantResult]] = {}
    for cell in cells:
        for result in cell.invariants:
            found.setdefault(result.name, []).append(result)
    return found


def _invariant(
    before: list[InvariantResult] | None, after: list[InvariantResult] | None, whole: Difference, group: GroupResult
) -> Difference:
    """whole: the group that it is a check of."""
    present = after or before
    assert present is not None
    sides = (_invariant_side(before, whole.replicas_before), _invariant_side(after, whole.replicas_after))
    return _difference(*sides, spec=whole.spec, group=group, invariant=present[0].name)


def _invariant_side(results: Sequence[InvariantResult] | None, replicas: int) -> _Side:
    if not results:
        return _Side()
    statuses = [result.status for result in results]
    graded = [status for status in statuses if status in ("pass", "fail")]
    passed = graded.count("pass")
    outcome: ComparedOutcome
    if "error" in statuses or not graded:
        outcome = "error" if "error" in statuses else "skip"
    elif 0 < passed < len(graded):
        outcome = "flaky"
    else:
        outcome = "pass" if passed else "fail"
    return _Side(outcome, mean(result.score for result in results), passed, len(graded), replicas)


def _difference(
    before: _Side,
    after: _Side,
    *,
    spec: str,
    group: GroupResult | None = None,
    invariant: str | None = None,
    strata: Sequence[Stratum] | None = None,
) -> Difference:
    counts = Stratum(before.passed, before.total, after.passed, after.total)
    repeated = min(before.total, after.total) >= 1 and max(before.total, after.total) >= 2
    if group is not None and repeated and before.replicas and after.replicas:
        strata = [counts]
    tested = group is not None and is_tested(before.replicas, after.replicas)
    regression = None if group is None else regression_of(before.outcome, after.outcome, counts, tested=tested)
    return Difference(
        change=_tested_change(before, after, counts) if tested else _flip(before, after, counts, by_group=bool(group)),
        spec=spec,
        scenario=None if group is None else group.scenario,
        params={} if group is None else group.params,
        invariant=invariant,
        before=before.outcome,
        after=after.outcome,
        score_before=before.score,
        score_after=after.score,
        passed_before=before.passed,
        total_before=before.total,
        passed_after=after.passed,
        total_after=after.total,
        p_value=None if not strata else difference_p_value(strata),
        p_worse=worse_p_value(counts) if tested else None,
        regression=regression,
        replicas_before=before.replicas,
        replicas_after=after.replicas,
    )


def _tested_change(before: _Side, after: _Side, counts: Stratum) -> ChangeKind:
    if is_worse(counts):
        return "broken"
    if is_worse(Stratum(after.passed, after.total, before.passed, before.total)):
        return "fixed"
    return change_of(before.outcome, after.outcome)


def _flip(before: _Side, after: _Side, counts: Stratum, *, by_group: bool) -> ChangeKind:
    """By the outcomes; where a replica could not be graded, by what all others came to."""
    change = change_of(before.outcome, after.outcome)
    if change != "ungraded" or not by_group:
        return change
    if regression_of(before.outcome, after.outcome, counts, tested=False):
        return "broken"
    back = Stratum(after.passed, after.total, before.passed, before.total)
    return "fixed" if regression_of(after.outcome, before.outcome, back, tested=False) else change


_NUMBERED = re.compile(r"(?:scenario|record)-[0-9]+")
"""What a scenario without a name is called, after its place: unrelated specs share it."""


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """A group of either run or of both, and its checks. Of a group that only one run has, the checks are those of that
    run: new or gone, as it is. path: of its spec, where only one run has that; else empty."""

    group: Difference
    checks: tuple[Difference, ...]
    path: str = ""

    @property
    def params(self) -> str:
        """Its parameters, to compare them by."""
        return json.dumps(self.group.params, sort_keys=True, default=str)


def broken_elsewhere(found: Sequence[ComparedGroup]) -> int:
    """How many groups and checks passed and fail now under another name. found: all groups of both runs.

    A comparison joins on names: a spec, a scenario, a parameter or a check with a new name has nothing in the baseline
    to be worse than, and the old name is gone. Most that is renamed does what it did before. So where it is not known
    which old name became which new one, as many of the new failures count as broken as passes were lost: neither more
    than the passes that are gone without as many new passes, nor more than the new failures without as many failures
    that are gone. What is known narrows that down:

    - A group (a scenario with its parameters) that is gone in one spec and new in another has moved, if no other group
      can be meant: first within a file, whose spec has another id then, and among specs that both runs have; then
      anywhere, by a name that somebody gave it. Its two sides are compared like those of a group that stayed.
    - Groups of one scenario of a spec are counted together: only parameters changed. The other groups of all specs that
      stayed are counted together, and so are those of a spec whose file has another id now. All others of a spec that
      only one run has are left alone: perhaps the other run was not told to run that spec.
    - Checks are counted within their group if it stayed or moved, else by their names within the groups that their
      group is counted with."""
    total = sum(_count_lost(one.checks) for one in found if one.group.change not in ("gone", "new"))
    moved, others = _match_moved(found)
    for before, after in moved:
        total += _broken(before.group, after.group) + _in_both(before.checks, after.checks)
    for alike in _alike(others):
        total += _count_lost(one.group for one in alike)
        by_name: dict[str | None, list[Difference]] = {}
        for check in (check for one in alike for check in one.checks):
            by_name.setdefault(check.invariant, []).append(check)
        total += sum(map(_count_lost, by_name.values()))
    return total


def _alike(others: Sequence[ComparedGroup]) -> Iterator[list[ComparedGroup]]:
    """Those that one may have become another of."""
    by_scenario: dict[tuple[str, str | None], list[ComparedGroup]] = {}
    for one in others:
        by_scenario.setdefault((one.group.spec, one.group.scenario), []).append(one)
    rest: dict[str, list[ComparedGroup]] = {}
    for alike in by_scenario.values():
        if len({one.group.change for one in alike}) > 1:
            yield alike
        else:
            rest.setdefault(alike[0].path, []).extend(alike)
    yield from rest.values()


def _match_moved(
    found: Sequence[ComparedGroup],
) -> tuple[list[tuple[ComparedGroup, ComparedGroup]], list[ComparedGroup]]:
    """(gone, new) of those that moved; and what is gone or new without its like."""
    rest = [one for one in found if one.group.change in ("gone", "new")]
    pairs: list[tuple[ComparedGroup, ComparedGroup]] = []
    for key in (_in_its_file, _by_its_name):
        new_pairs, rest = _pair_unique(rest, key)
        pairs += new_pairs
    return pairs, rest


def _pair_unique(
    found: Sequence[ComparedGroup], key: Callable[[ComparedGroup], Hashable | None]
) -> tuple[list[tuple[ComparedGroup, ComparedGroup]], list[ComparedGroup]]:
    """(gone, new) of a key that no others have, so that their order never matters; and the others. None: no key."""
    by_key: dict[Hashable, list[ComparedGroup]] = {}
    for one in found:
        by_key.setdefault(key(one), []).append(one)
    others = by_key.pop(None, [])
    pairs = []
    for alike in by_key.values():
        if sorted(one.group.change for one in alike) == ["gone", "new"]:
            before, after = sorted(alike, key=lambda one: one.group.change)
            pairs.append((before, after))
        else:
            others += alike
    return pairs, others


def _in_its_file(one: ComparedGroup) -> Hashable:
    """The specs that both runs have, which have no path here, are as one file. A spec's only scenario has its id for a
    name, and another one when that changes."""
    goes_by_the_spec = one.path != "" and one.group.scenario == one.group.spec
    return one.path, None if goes_by_the_spec else one.group.scenario, one.params


def _by_its_name(one: ComparedGroup) -> Hashable | None:
    name = one.group.scenario
    return None if name is None or _NUMBERED.fullmatch(name) else (name, one.params)


def _in_both(before: Sequence[Difference], after: Sequence[Difference]) -> int:
    """Of the checks of a group that moved."""
    there = {one.invariant: one for one in before}
    here = {one.invariant: one for one in after}
    broken = sum(_broken(there[name], here[name]) for name in there.keys() & here.keys())
    return broken + _count_lost(one for one in (*before, *after) if one.invariant not in there.keys() & here.keys())


def _broken(before: Difference, after: Difference) -> bool:
    tested = is_tested(before.replicas_before, after.replicas_after)
    return regression_of(before.before, after.after, counts_of(before, after), tested=tested) is not None


def _count_lost(differences: Iterable[Difference]) -> int:
    """How many of those that are new and fail must have passed there, if each is one that is gone."""
    counts: Counter[tuple[str, bool]] = Counter()
    for one in differences:
        if one.change in ("gone", "new"):
            outcome = one.before if one.change == "gone" else one.after
            counts[one.change, outcome in PASSING] += outcome in (*PASSING, "fail")
    passes = counts["gone", True] - counts["new", True]
    failures = counts["new", False] - counts["gone", False]
    return max(0, min(passes, failures))
