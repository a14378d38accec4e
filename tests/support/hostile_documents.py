"""Documents of ours in which one value is another one, as somebody else's file may have it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["pass", "../../x", "\x1b[2J", "\ud800", 10**400, -1, 1e308, 0.1, "2026-01-01", "9999-12-31T23:59:59Z"]
    )
    | st.lists(st.none() | st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.floats() | st.text(max_size=3), max_size=2)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed
