"""Globs over what an agent left: `*`, `?`, `[…]` and `**`, matched against our own listing of the tree.

Rules, those of bash with globstar: `*` and `?` stay within one name, `**` as a whole name spans directories, and a
name that begins with a dot is matched only by a pattern part that begins with one (or everywhere with `dot=True`, as
git's patterns do). Directories that are links are not entered by a wildcard. A pattern that is at the same time the
literal name of something there (`app/[id]/page.tsx`) matches that as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from keystone_action.sandbox.descent import Descent
from keystone_action.sandbox.paths import (
    PathMissing,
    PathProblem,
    PathUnreadable,
    exists_inside,
    open_inside,
)

ENTRIES_LIMIT = 1_000_000
"""Entries that one glob looks at before it gives up with a sentence."""


def glob_inside(root: Path, pattern: str, *, dot: bool = False) -> list[str]:
    """Paths below `root` that match, sorted, relative to it. A pattern that ends with `/` matches directories only.

    Links that dangle are left out (they are absent, spec 5.3); links that lead out of the root are listed, and opening
    them is refused. Raises PathEscape when the part before the first wildcard leads out, PathUnreadable when
    there are more than ENTRIES_LIMIT entries to look at.
    """
    found = set()
    directories_only = pattern.endswith("/")
    literal = pattern.rstrip("/") or pattern
    if exists_inside(root, literal) and _is_wanted(root, literal, directories_only):
        found.add(literal)
    start, rest = _split(literal)
    if rest:
        matches = matcher([rest], dot=dot)
        prefix = f"{start}/" if start else ""
        for path, is_directory in _walk(root, start, levels=_levels(rest), dot=dot or _asks_for_dots(rest)):
            if matches(path) and (is_directory or not directories_only) and _is_there(root, prefix + path):
                found.add(prefix + path)
    return sorted(found)


def matcher(patterns: Iterable[str], *, dot: bool = False) -> Callable[[str], bool]:
    """A function that says whether a relative path matches any of the patterns."""
    compiled = [_compiled(pattern, dot) for pattern in patterns]
    return lambda path: any(one.match(path) for one in compiled)


def escape(path: str) -> str:
    """The pattern that matches this very path."""
    from wcmatch import glob

    return str(glob.escape(path))


def has_wildcard(pattern: str) -> bool:
    """Whether a pattern is more than a literal path."""
    return any(char in pattern for char in "*?[\\")


@lru_cache(maxsize=512)
def _compiled(pattern: str, dot: bool) -> Any:
    from wcmatch import glob

    return glob.compile(pattern, flags=glob.GLOBSTAR | (glob.DOTGLOB if dot else 0), limit=0)


def _split(pattern: str) -> tuple[str, str]:
    """The directories before the first part with a wildcard, and the rest."""
    parts = [part for part in pattern.split("/") if part != "."]
    for index, part in enumerate(parts):
        if has_wildcard(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return pattern, ""


def _levels(pattern: str) -> int | None:
    parts = pattern.split("/")
    return None if "**" in parts else len(parts)


def _asks_for_dots(pattern: str) -> bool:
    return any(part.startswith((".", "[", "\\")) for part in pattern.split("/"))


def _is_wanted(root: Path, path: str, directories_only: bool) -> bool:
    if not directories_only:
        return True
    try:
        os.close(open_inside(root, path, os.O_RDONLY | os.O_DIRECTORY))
    except PathProblem:
        return False
    return True


def _is_there(root: Path, path: str) -> bool:
    try:
        return exists_inside(root, path)
    except PathProblem:
        return True


def _walk(root: Path, start: str, *, levels: int | None, dot: bool) -> Iterator[tuple[str, bool]]:
    try:
        root_fd = open_inside(root, start or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PathMissing:
        return
    try:
        with Descent(root_fd) as descent:
            yield from _listing(descent, start, levels=levels, dot=dot)
    finally:
        os.close(root_fd)


def _listing(descent: Descent, start: str, *, levels: int | None, dot: bool) -> Iterator[tuple[str, bool]]:
    todo = [("", 1)]
    seen = 0
    while todo:
        directory, level = todo.pop()
        for name, is_directory in _entries(descent, directory):
            seen += 1
            if seen > ENTRIES_LIMIT:
                raise PathUnreadable(f"more than {ENTRIES_LIMIT:,} entries below {start or 'the workspace'}")
            if name.startswith(".") and not dot:
                continue
            path = f"{directory}/{name}" if directory else name
            yield path, is_directory
            if is_directory and (levels is None or level < levels):
                todo.append((path, level + 1))


def _entries(descent: Descent, directory: str) -> list[tuple[str, bool]]:
    try:
        fd = descent.open(directory)
    except OSError:
        return []
    try:
        with os.scandir(fd) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    finally:
        os.close(fd)
