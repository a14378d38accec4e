"""Where Keystone decides otherwise than the released tools whose files it reads, each by its name.

The names are the ids of rows of docs/compatibility.md: see `compatibility.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Decided:
    """What became of one scenario or cell. verdict: pass, fail, error, refused or not run. score: None where there is
    none to compare."""

    verdict: str
    score: float | None = None

    def agrees(self, other: Decided) -> bool:
        """Whether the verdicts are the same, and the scores as far as the released tools write them down."""
        scored = self.score is not None and other.score is not None
        near = not scored or abs((self.score or 0.0) - (other.score or 0.0)) < 1e-4
        return self.verdict == other.verdict and near


def unexpected(theirs: Mapping[str, Decided], ours: Mapping[str, Decided], named: Mapping[str, Iterable[str]]) -> str:
    """What is wrong, a line for each case: it differs and names no difference, or agrees and names one; empty when
    nothing is. named: the differences that cases name."""
    found = dict.fromkeys(theirs.keys() ^ ours.keys(), "only one of the two has it")
    for name in theirs.keys() & ours.keys():
        differs, expected = not theirs[name].agrees(ours[name]), set(named.get(name, ()))
        if differs != bool(expected):
            told = f"named {', '.join(sorted(expected))}" if expected else "nothing is named"
            found[name] = f"released: {theirs[name]}, Keystone: {ours[name]}; {told}"
    return "\n".join(f"{name}: {told}" for name, told in sorted(found.items()))
