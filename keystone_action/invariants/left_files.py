"""What the file checks share: finding the files that an agent left, and saying which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keystone_action.sandbox.globs import glob_inside
from keystone_action.sandbox.paths import PathMissing, display_path, stat_inside


def find(workspace: Path, pattern: str) -> list[str]:
    """The paths that match, sorted; each is there and inside. A dangling link is absent (spec 5.3).

    Raises PathEscape when a match leads out of the workspace, PathUnreadable, and PathMissing only when the
    workspace itself is gone.
    """
    stat_inside(workspace, ".")
    found = []
    for path in glob_inside(workspace, pattern):
        try:
            stat_inside(workspace, path)
        except PathMissing:
            continue
        found.append(path)
    return found


def listed(paths: Sequence[str], *, limit: int = 5) -> str:
    """`a.txt, b.txt and 7 more`."""
    first = ", ".join(display_path(path) for path in paths[:limit])
    return first if len(paths) <= limit else f"{first} and {len(paths) - limit} more"


def shown(paths: Sequence[str], *, limit: int = 100) -> list[str]:
    """The first paths, for an outcome's details: names that are no UTF-8 made so."""
    return [display_path(path) for path in paths[:limit]]
