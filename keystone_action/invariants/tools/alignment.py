"""How well calls fit what was expected: precision, recall, F1, and their order. Pure functions over bit masks.

A call is given as a mask: bit i is set when the call is one that expectation i means. So a hundred thousand calls cost
no more than their number, whatever the agent did to make them many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alignment:
    """matched: expectations that got a call of their own. missing: the indices of the others. in_order: the longest
    run of expectations that were met in their order (calls between them don't matter)."""

    expected: int
    observed: int
    matched: int
    missing: tuple[int, ...]
    in_order: int

    @property
    def precision(self) -> float:
        """Share of calls that were expected; 0 without calls."""
        return self.matched / self.observed if self.observed else 0.0

    @property
    def recall(self) -> float:
        """Share of expectations that were met; 0 without expectations."""
        return self.matched / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 when nothing matched."""
        return 2 * self.matched / (self.expected + self.observed) if self.matched else 0.0

    @property
    def order(self) -> float:
        """Share of the matched that are in order; 1 when nothing matched."""
        return self.in_order / self.matched if self.matched else 1.0

    def exact(self, *, ordered: bool) -> bool:
        """Each expectation has one call, each call one expectation and, if asked, in that order."""
        same = self.matched == self.expected == self.observed
        return same and (not ordered or self.in_order == self.matched)


def align(expected: int, calls: Sequence[int]) -> Alignment:
    """The best alignment of expectations 0 … expected-1 with calls, given as masks in the order they came."""
    missing = _missing(expected, calls)
    return Alignment(expected, len(calls), expected - len(missing), missing, _in_order(expected, calls))


def _missing(expected: int, calls: Sequence[int]) -> tuple[int, ...]:
    """The expectations left over by a maximum matching (Kuhn's algorithm; calls with the same mask are one node that
    takes as many expectations as there are calls)."""
    room = Counter(mask for mask in calls if mask)
    taken: dict[int, list[int]] = {mask: [] for mask in room}
    return tuple(index for index in range(expected) if not _place(index, room, taken))


def _place(index: int, room: Counter[int], taken: dict[int, list[int]]) -> bool:
    """Give an expectation a call, moving others along a shortest path where need be."""
    came_from: dict[int, int] = {}
    todo, seen = [index], {index}
    for one in todo:
        for mask in room:
            if mask in came_from or not mask >> one & 1:
                continue
            came_from[mask] = one
            if len(taken[mask]) < room[mask]:
                _move(mask, index, came_from, taken)
                return True
            todo.extend(other for other in taken[mask] if other not in seen)
            seen.update(taken[mask])
    return False


def _move(mask: int, index: int, came_from: dict[int, int], taken: dict[int, list[int]]) -> None:
    while True:
        one = came_from[mask]
        left = next((held for held, others in taken.items() if one in others), None)
        if left is not None:
            taken[left].remove(one)
        taken[mask].append(one)
        if one == index or left is None:
            return
        mask = left


def _in_order(expected: int, calls: Sequence[int]) -> int:
    """Length of the longest common subsequence (Hyyrö's bit-parallel recurrence: a zero bit is a step of the row)."""
    full = (1 << expected) - 1
    row = full
    for mask in calls:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & full
    return expected - row.bit_count()
