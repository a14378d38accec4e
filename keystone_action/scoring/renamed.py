"""What got worse under another name. Pure.

A comparison joins on names: a spec, a scenario, a parameter or a check with a new one has nothing there to be worse
than, and what it was is gone. Nobody who renames means to drop a gate, so what is new and fails counts as broken as far
as something that passed there is gone:

- A group (a scenario with its parameters) that is gone in one spec and new in another moved. Its two sides are compared
  like those of a group that stayed.
- Of the other groups that fail and are new, as many count as passed there and are gone, in whatever spec.
- The same of checks: within a group that stayed among each other; within groups that did not, those of one name.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keystone_action.scoring.results import Difference

_PASSED = ("pass", "flaky")


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """A group of either run or of both, and its checks. Of a group that only one run has, the checks are those of that
    run: new or gone, as it is."""

    group: Difference
    checks: tuple[Difference, ...]

    @property
    def key(self) -> tuple[str | None, str]:
        """What tells it from others of its spec."""
        return self.group.scenario, json.dumps(self.group.params, sort_keys=True, default=str)


def broken_elsewhere(found: Sequence[ComparedGroup]) -> int:
    """How many groups and checks passed and fail now under another name. found: all groups of both runs."""
    total = sum(_counted(one.checks) for one in found if one.group.change not in ("gone", "new"))
    moved, others = _moved(found)
    for before, after in moved:
        total += _broken(before.group, after.group) + _in_both(before.checks, after.checks)
    total += _counted(one.group for one in others)
    by_name: dict[str | None, list[Difference]] = {}
    for check in (check for one in others for check in one.checks):
        by_name.setdefault(check.invariant, []).append(check)
    return total + sum(map(_counted, by_name.values()))


def _moved(found: Sequence[ComparedGroup]) -> tuple[list[tuple[ComparedGroup, ComparedGroup]], list[ComparedGroup]]:
    """(gone, new) of the same key, in order; and what is gone or new without its like."""
    waiting: dict[tuple[str | None, str], deque[ComparedGroup]] = {}
    for one in found:
        if one.group.change == "gone":
            waiting.setdefault(one.key, deque()).append(one)
    pairs, others = [], []
    for one in found:
        if one.group.change == "new":
            if there := waiting.get(one.key):
                pairs.append((there.popleft(), one))
            else:
                others.append(one)
    return pairs, [*others, *itertools.chain.from_iterable(waiting.values())]


def _in_both(before: Sequence[Difference], after: Sequence[Difference]) -> int:
    """Of the checks of a group that moved."""
    there = {one.invariant: one for one in before}
    here = {one.invariant: one for one in after}
    broken = sum(_broken(there[name], here[name]) for name in there.keys() & here.keys())
    return broken + _counted(one for one in (*before, *after) if one.invariant not in there.keys() & here.keys())


def _broken(before: Difference, after: Difference) -> bool:
    return before.before in _PASSED and after.after == "fail"


def _counted(differences: Iterable[Difference]) -> int:
    """As many as fail and are new beside as many as passed there and are gone."""
    counts: Counter[str] = Counter()
    for one in differences:
        counts["gone"] += one.change == "gone" and one.before in _PASSED
        counts["new"] += one.change == "new" and one.after == "fail"
    return min(counts["gone"], counts["new"])
