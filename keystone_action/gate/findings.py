"""Where two documents differ, how much that can weaken a gate, and values as a sentence shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_SHOWN = 60
_ENTRIES = 5
"""Differences within a list that are told one by one."""
_WORDS = {"pass_threshold": "threshold", "agent_retries": "retries"}
_CONSIDERABLE = 1.1
"""From how many times as much on a number is said to be another, not nearly the same."""

Places = tuple[str, str]
"""The directories of the two versions on this machine. A path below the one is the same as that below the other."""


class Level(IntEnum):
    """How much a difference can weaken the gate; the lowest is told first."""

    TAKEN = 0
    """What decided is gone, or asks for less than it did."""
    LOWERED = 1
    """What a gate asks, where evidence comes from, what decides beside the checks."""
    SELECTED = 2
    """Which cells are run."""
    ASKED = 3
    """What a check asks."""
    STRICTER = 4
    """What decides asks for more than it did, or evidence is more."""
    AROUND = 5
    """What agent and checks find: services, fixtures, the task."""
    SLIGHT = 6
    """Numbers that are nearly the same."""
    NONE = 7
    """Words, and what came."""


@dataclass(frozen=True, slots=True)
class GateFinding:
    """A difference as a sentence. The gravest comes first: by level; then by `order`, which tells kinds of one level
    apart; then by `size`, the larger first; then by name."""

    level: Level
    text: str
    order: int = 0
    size: float = 0.0
    name: str = ""
    longest: int = 240

    @property
    def rank(self) -> tuple[int, int, float, str, str]:
        """What findings are sorted by."""
        return self.level, self.order, -self.size, self.name, self.text

    @property
    def sentence(self) -> str:
        """The text, cut where it is too long: one of endless names would leave no room for those after it."""
        return self.text if len(self.text) <= self.longest else f"{self.text[: self.longest - 1]}…"


class _Word:
    """Something that no value of a document is, as a sentence calls it."""

    def __init__(self, text: str) -> None:
        self.text = text


ABSENT = _Word("none")
"""No value at all."""
NULL = _Word("null")
"""A null that was written, where it means something else than no value."""


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """One place where two documents differ."""

    path: str
    old: Any
    new: Any

    @property
    def text(self) -> str:
        """`a.b 1 → 2`, or that it changed."""
        name = _WORDS.get(self.path, self.path)
        before, after = short_value(self.old), short_value(self.new)
        return f"{name} {before} → {after}" if before and after and before != after else f"{name} changed"

    @property
    def is_dropped(self) -> bool:
        """Whether nothing is there any more."""
        return _is_empty(self.new) and not _is_empty(self.old)

    @property
    def is_slight(self) -> bool:
        """Whether it is a number that is nearly the same."""
        return is_slight(self.old, self.new)


def changed_values(path: str, old: Any, new: Any, places: Places = ("", "")) -> Iterator[ChangedValue]:
    """Each place where two documents differ, the innermost, in the order of the documents. Values of two types differ,
    whatever Python says of `True == 1`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            below = f"{path}.{key}" if path else str(key)
            yield from changed_values(below, old.get(key, ABSENT), new.get(key, ABSENT), places)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        found = [
            change
            for index, (one, other) in enumerate(zip(old, new, strict=True))
            for change in changed_values(f"{path}[{index}]", one, other, places)
        ]
        # A crowd of entries is one difference: it is not to hide others.
        yield from found if len(found) <= _ENTRIES else [ChangedValue(path, old, new)]
    elif not _is_same(old, new, places):
        yield ChangedValue(path, old, new)


def is_same(old: Any, new: Any) -> bool:
    """Whether two documents are the same, types included."""
    return next(changed_values("", old, new), None) is None


def _is_same(old: Any, new: Any, places: Places) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, str) and all(places) and old.startswith(places[0]) and new.startswith(places[1]):
        rest = old[len(places[0]) :]
        return rest == new[len(places[1]) :] and rest[:1] in ("", "/")
    return bool(old == new) or (isinstance(old, float) and math.isnan(old) and math.isnan(new))


def _is_empty(value: Any) -> bool:
    return value is None or value is ABSENT or (isinstance(value, list | dict | str) and not value)


def is_slight(old: Any, new: Any) -> bool:
    """Whether both are numbers, and nearly the same."""
    return ratio(old, new) < _CONSIDERABLE


def ratio(old: Any, new: Any) -> float:
    """How many times as much the larger of two positive numbers is; infinite for anything else."""
    if any(isinstance(one, bool) or not isinstance(one, int | float) or not one > 0 for one in (old, new)):
        return math.inf
    return float(max(old / new, new / old))


def short_value(value: Any) -> str:
    """A short value as the file has it, quoted where one could not see what it is; empty for one that is too long to
    show."""
    if value is None:
        return ABSENT.text
    if isinstance(value, _Word):
        return value.text
    if isinstance(value, float):
        return f"{value:g}"
    is_plain = isinstance(value, str) and value.isprintable() and value.strip() == value and value
    text = value if is_plain else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN and not (isinstance(value, str) and "\n" in value) else ""


def join_names(names: list[str], longest: int = 120) -> str:
    """`a, b and 3 more`: as many as fit."""
    shown: list[str] = []
    for name in names:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(name) > longest:
            break
        shown.append(name if len(name) <= longest else f"{name[: longest - 1]}…")
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
