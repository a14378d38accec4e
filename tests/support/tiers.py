"""The tiers of a test, told from its room and from the fixtures that it asks for, and the order in which tests start.

Each test belongs to one target: `docker` to `make test-containers`, else `slow` to `make test-slow`, else to
`make test`. `make test-fast` runs the tests that have none of these marks; tests/README.md says what each tier is for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import chain, combinations, groupby
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import is_hypothesis_test

_TESTS = Path(__file__).parents[1]
_FIXTURES = {
    "docker": {"action_base", "action_image", "agent_installers", "containers", "engine", "image", "shared_containers"},
    "database": {"cell", "database", "mariadb", "own_database", "postgres", "watched_postgres", "world"},
    "sandbox": {"sandboxes"},
}
_ROOMS = {
    "command": {"action", "contract", "differential", "end_to_end", "faults", "hostile"},
    "sandbox": {"sandbox"},
    "slow": {"differential", "images"},
}
_IMPLIED = {"browser": "slow"}
_WORDS = {
    "docker": re.compile("|".join(["docker|DOCKER|attack_runs|database_worlds", *sorted(_FIXTURES["docker"])])),
    "slow": re.compile(r"\b(slow|slow_case|browser|squares)\b"),
    "property": re.compile(r"\bhypothesis\b"),
}
"""A file with tests of these tiers has one of these words, if its room does not say it."""
_SECONDS = {"waits": 60.0, "slow": 10.0, "docker": 4.0, "command": 1.0, "database": 0.3, "sandbox": 0.3}
"""About how long a test of a tier takes: an order of magnitude is enough to order by."""


def mark_tiers(items: list[pytest.Item]) -> None:
    """Give each test the marks of the tiers that it is in, and `property` where hypothesis chooses its inputs."""
    for item in items:
        for tier in _tiers_of(item):
            item.add_marker(tier)
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")


def require_words(items: list[pytest.Item]) -> None:
    """Raises UsageError for a test that `may_have` would not expect in its file. `make test` collects all files."""
    for item in items:
        for mark in item.iter_markers():
            if mark.name in _WORDS and mark.name not in _tiers_in(item.path):
                raise pytest.UsageError(f"{item.nodeid} is {mark.name}: its file must have one of _WORDS of tiers.py")


def may_have(path: Path, expression: str) -> bool:
    """Whether a file can have tests for which `-m` asks; if not, it need not be imported."""
    asked = {*re.findall(r"\w+", expression)} - {"and", "or", "not"}
    if not asked <= _WORDS.keys() or not path.name.startswith("test_"):
        return True
    chosen, tiers = Expression.compile(expression), _tiers_in(path)
    return any(
        chosen.evaluate(lambda name, marks=marks, **_: name in marks)  # type: ignore[misc]
        for marks in chain.from_iterable(combinations(tiers, size) for size in range(len(tiers) + 1))
    )


@functools.cache
def _tiers_in(path: Path) -> tuple[str, ...]:
    """Of the tiers of `_WORDS`, those that a test of this file may be in."""
    room, text = path.relative_to(_TESTS).parts[0], path.read_text("utf-8")
    return tuple(tier for tier, words in _WORDS.items() if room in _ROOMS.get(tier, ()) or words.search(text))


def start_long_tests_first(items: list[pytest.Item], workers: int) -> None:
    """Order them for `--dist worksteal`, which gives each worker one piece of the list, and later moves tests from the
    ends of pieces to workers that have nothing left: each piece begins with long tests and ends with short ones. Tests
    of a module stay together where they can, for its fixtures. Those that wait are all the first worker's: beside them
    there is work for the processors."""
    items.sort(key=_seconds, reverse=True)  # stable: the order of modules stays
    waiting = [item for item in items if _seconds(item) == _SECONDS["waits"]]
    groups = [list(group) for _, group in groupby(items[len(waiting) :], key=_seconds)]
    items[:] = waiting + [
        item
        for worker in range(workers)
        for group in groups
        for item in group[len(group) * worker // workers : len(group) * (worker + 1) // workers]
    ]


def _tiers_of(item: pytest.Item) -> Iterator[str]:
    fixtures = set(getattr(item, "fixturenames", ()))
    room = item.path.relative_to(_TESTS).parts[0]
    yield from (tier for tier, names in _FIXTURES.items() if fixtures & names)
    yield from (tier for tier, rooms in _ROOMS.items() if room in rooms)
    yield from (tier for mark, tier in _IMPLIED.items() if item.get_closest_marker(mark))


def _seconds(item: pytest.Item) -> float:
    return max((_SECONDS.get(mark.name, 0.0) for mark in item.iter_markers()), default=0.0)
