"""What got worse under another name. Pure.

A comparison joins on names: a spec, a scenario, a parameter or a check with a new one has nothing there to be worse
than, and what it was is gone. Nobody who renames means to drop a gate, and most that is renamed does what it did. So
of what is new and fails as much counts as broken as passes were lost on the way, where who became whom is not known:
neither more than passed there and is gone without as many that are new and pass, nor more than fails and is new
without as many that are gone and failed. What is known narrows that down:

- A group (a scenario with its parameters) that is gone in one spec and new in another moved, where no other can be
  meant: first within a file, whose spec has another id then, and among specs that both runs have; then anywhere, by a
  name that somebody gave it. Its two sides are compared like those of a group that stayed.
- Groups of one scenario of a spec are counted among each other: only parameters changed. Else those of all specs that
  stayed are, and those of a spec whose file has another id now. What else a spec that only one run has consists of is
  left alone: perhaps the other run was not told to run it.
- Checks are counted within their group if it stayed or moved, else within those that their groups are counted with, by
  their names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from keystone_action.scoring.regressions import counts_of, is_tested, regression_of
from keystone_action.scoring.results import Difference

_PASSED = ("pass", "flaky")
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
    """How many groups and checks passed and fail now under another name. found: all groups of both runs."""
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
            counts[one.change, outcome in _PASSED] += outcome in (*_PASSED, "fail")
    passes = counts["gone", True] - counts["new", True]
    failures = counts["new", False] - counts["gone", False]
    return max(0, min(passes, failures))
