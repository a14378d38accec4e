"""A run beside an earlier one: fixed, broken, flaky, new, gone. Pure.

Joined on what is stable: the spec's id, the scenario, the parameters (replicas of both are a group), and the name of
the invariant within its group. Specs and groups keep the verdicts that their own rules gave them; an invariant passes
in a group when it did in every graded replica, fails when it did in none, and is flaky in between.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from keystone_action.scoring.aggregate import group_key, mean
from keystone_action.scoring.results import (
    BaselineComparison,
    CellResult,
    Change,
    Difference,
    GroupResult,
    InvariantResult,
    Outcome,
    RunResult,
    SpecResult,
)
from keystone_action.scoring.statistics import Stratum, difference_p_value

_UNGRADED = ("error", "skip")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def compare(base: RunResult, head: RunResult, *, source: str, partial: bool = False) -> BaselineComparison:
    """What changed from base to head. source: where base was found, for reports.

    partial: head was only to run a part of the cells (a shard, a filter, a cancelled run): what it lacks is not gone.
    Exchanging the two exchanges fixed with broken, flaky with steadied and new with gone; a run beside itself has
    nothing but `same`.
    """
    specs: list[Difference] = []
    groups: list[Difference] = []
    invariants: list[Difference] = []
    changed: list[str] = []
    for before, after in joined({one.id: one for one in base.specs}, {one.id: one for one in head.specs}):
        if after is None and partial:
            continue
        specs.append(_spec(before, after))
        if before is None or after is None:
            continue
        if before.sha256 != after.sha256:
            changed.append(after.id)
        found = list(_groups(before, after, partial=partial))
        groups += [one for one, _ in found if one.change != "same"]
        invariants += [one for _, parts in found for one in parts if one.change != "same"]
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
        regressions=sum(one.change == "broken" for one in (*groups, *invariants))
        + replaced((*specs, *groups, *invariants)),
    )


def replaced(found: Iterable[Difference]) -> int:
    """How many that fail and are new stand beside as many that passed there and are gone, of specs, of scenarios in
    one spec or of checks in one cell. Another name must not make what got worse look like something else."""
    gone: Counter[tuple[str, ...]] = Counter()
    new: Counter[tuple[str, ...]] = Counter()
    for one in found:
        level = _level(one)
        gone[level] += one.change == "gone" and one.before in ("pass", "flaky")
        new[level] += one.change == "new" and one.after == "fail"
    return sum(min(count, new[level]) for level, count in gone.items())


def _level(one: Difference) -> tuple[str, ...]:
    """What `one` is one of."""
    if one.scenario is None:
        return ()
    if one.invariant is None:
        return (one.spec,)
    return one.spec, one.scenario, json.dumps(one.params, sort_keys=True, default=str)


def change_of(before: Outcome | None, after: Outcome | None) -> Change:
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


def joined(
    before: Mapping[_Key, _Value], after: Mapping[_Key, _Value]
) -> Iterator[tuple[_Value | None, _Value | None]]:
    """The values of both by their keys, in the order of `after`; what only `before` has comes last."""
    for key in (*after, *(key for key in before if key not in after)):
        yield before.get(key), after.get(key)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a difference. passed of total: graded results."""

    outcome: Outcome | None = None
    score: float | None = None
    passed: int = 0
    total: int = 0


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
    passed, total = _passed(spec.cells)
    return _Side(spec.verdict, spec.composite, passed, total)


def _strata(before: SpecResult, after: SpecResult) -> Iterator[Stratum]:
    """One for each group that both have: what only one of them ran says nothing about a difference."""
    for one, other in joined(_cells_by_group(before), _cells_by_group(after)):
        if one is not None and other is not None:
            yield Stratum(*_passed(one), *_passed(other))


def _groups(
    before: SpecResult, after: SpecResult, *, partial: bool
) -> Iterator[tuple[Difference, tuple[Difference, ...]]]:
    """Each group with its invariants. The invariants of a group that only one run has go without saying."""
    own_before, own_after = _with_cells(before), _with_cells(after)
    for one, other in joined(own_before, own_after):
        if other is None and partial:
            continue
        present = other or one
        assert present is not None
        group, _ = present
        sides = [_group_side(*entry) if entry is not None else _Side() for entry in (one, other)]
        difference = _difference(*sides, spec=after.id, group=group)
        parts: tuple[Difference, ...] = ()
        if one is not None and other is not None:
            pairs = joined(_invariants(one[1]), _invariants(other[1]))
            parts = tuple(_invariant(old, new, after.id, group) for old, new in pairs)
        yield difference, parts


def _group_side(group: GroupResult, cells: Sequence[CellResult]) -> _Side:
    passed, total = _passed(cells)
    return _Side(group.verdict, group.composite, passed, total)


def _with_cells(spec: SpecResult) -> dict[tuple[str, str], tuple[GroupResult, list[CellResult]]]:
    cells = _cells_by_group(spec)
    # Groups come in the order in which their cells first do (`aggregate_groups`).
    return {key: (group, cells[key]) for key, group in zip(cells, spec.groups, strict=True)}


def _cells_by_group(spec: SpecResult) -> dict[tuple[str, str], list[CellResult]]:
    found: dict[tuple[str, str], list[CellResult]] = {}
    for cell in spec.cells:
        found.setdefault(group_key(cell), []).append(cell)
    return found


def _passed(cells: Iterable[CellResult]) -> tuple[int, int]:
    graded = [cell.verdict for cell in cells if cell.verdict != "error"]
    return sum(verdict == "pass" for verdict in graded), len(graded)


def _invariants(cells: Iterable[CellResult]) -> dict[str, list[InvariantResult]]:
    found: dict[str, list[InvariantResult]] = {}
    for cell in cells:
        for result in cell.invariants:
            found.setdefault(result.name, []).append(result)
    return found


def _invariant(
    before: list[InvariantResult] | None, after: list[InvariantResult] | None, spec: str, group: GroupResult
) -> Difference:
    present = after or before
    assert present is not None
    sides = [_invariant_side(results) for results in (before, after)]
    return _difference(*sides, spec=spec, group=group, invariant=present[0].name)


def _invariant_side(results: Sequence[InvariantResult] | None) -> _Side:
    if not results:
        return _Side()
    statuses = [result.status for result in results]
    graded = [status for status in statuses if status in ("pass", "fail")]
    passed = graded.count("pass")
    outcome: Outcome
    if "error" in statuses or not graded:
        outcome = "error" if "error" in statuses else "skip"
    elif 0 < passed < len(graded):
        outcome = "flaky"
    else:
        outcome = "pass" if passed else "fail"
    return _Side(outcome, mean(result.score for result in results), passed, len(graded))


def _difference(
    before: _Side,
    after: _Side,
    *,
    spec: str,
    group: GroupResult | None = None,
    invariant: str | None = None,
    strata: Sequence[Stratum] | None = None,
) -> Difference:
    if group is not None and min(before.total, after.total) >= 1 and max(before.total, after.total) >= 2:
        strata = [Stratum(before.passed, before.total, after.passed, after.total)]
    return Difference(
        change=change_of(before.outcome, after.outcome),
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
    )
