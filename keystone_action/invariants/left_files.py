"""What the file checks share: finding the files that an agent left, and saying which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from keystone_action.files.globs import glob_inside, matcher
from keystone_action.files.paths import PathMissing, display_path, stat_inside
from keystone_action.spec.globs import escape, has_wildcard

VENDORED = frozenset({"venv", "node_modules", "vendor", "__pycache__", "site-packages", "bower_components"})
"""Directories that hold what others wrote, or what was made from it."""


def is_set_aside(path: str) -> bool:
    """Whether a path is in a directory that begins with a dot, or in a vendored one."""
    return any(part.startswith(".") or part in VENDORED for part in path.split("/")[:-1])


def matches_any(patterns: Iterable[str], *, inside: bool = False) -> Callable[[str], bool]:
    """Whether a path is what any of these globs means; names that begin with a dot are names like any other.

    A pattern without wildcards also stands for everything below it, and with `inside` one with wildcards does, too.
    """
    plain = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
    globbed = matcher([pattern for pattern in plain if has_wildcard(pattern)], dot=True, inside=inside)
    literal = matcher([escape(pattern) for pattern in plain], dot=True, inside=True)
    return lambda path: literal(path) or globbed(path)


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
