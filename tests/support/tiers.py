"""The tiers of a test, told from its room and from the fixtures that it asks for.

`make test-fast` runs the tests that have none of these marks; tests/README.md says what each tier is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_FIXTURES = {
    "docker": {"action_base", "action_image", "containers", "engine", "image", "shared_containers"},
    "database": {"cell", "mariadb", "postgres", "world"},
    "sandbox": {"sandboxes"},
}
_ROOMS = {
    "command": {"action", "contract", "differential", "end_to_end", "faults", "hostile"},
    "sandbox": {"sandbox"},
}


def mark_tiers(items: list[pytest.Item]) -> None:
    """Give each test the marks of the tiers that it is in."""
    for item in items:
        for tier in _tiers_of(item):
            item.add_marker(tier)


def _tiers_of(item: pytest.Item) -> Iterator[str]:
    fixtures = set(getattr(item, "fixturenames", ()))
    room = item.path.relative_to(_TESTS).parts[0]
    yield from (tier for tier, names in _FIXTURES.items() if fixtures & names)
    yield from (tier for tier, rooms in _ROOMS.items() if room in rooms)
