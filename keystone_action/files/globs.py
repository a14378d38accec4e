"""Globs over what an agent left: `*`, `?`, `[…]` and `**`, matched against our own listing of the tree.

The rules of `spec.globs`, those of bash with globstar. Directories that are links are not entered by a wildcard. A
pattern that is also the literal name of something there (`app/[id]/page.tsx`) matches that as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.descent import Descent
from keystone_action.files.paths import (
    PathMissing,
    PathProblem,
    PathUnreadable,
    exists_inside,
    open_inside,
    stat_inside,
)
from keystone_action.spec.globs import Globs, PathMatcher, escape, has_wildcard

ENTRIES_LIMIT = 1_000_000
"""Entries that one glob looks at before it gives up with a sentence."""

VENDORED = frozenset({"venv", "node_modules", "vendor", "__pycache__", "site-packages", "bower_components"})
"""Directories that hold what others wrote, or what was made from it."""


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


async def find_apart(workspace: Path, pattern: str) -> list[str]:
    """`find`, in a thread where it has to look through directories."""
    if not has_wildcard(pattern):
        return find(workspace, pattern)
    import anyio.to_thread

    return await anyio.to_thread.run_sync(find, workspace, pattern)


def glob_inside(root: Path, pattern: str, *, dot: bool = False) -> list[str]:
    """Paths below `root` that match, sorted, relative to it. A pattern that ends with `/` matches directories only.

    Links that dangle are left out (they are absent, spec 5.3); links that lead out of the root are listed, and opening
    them is refused. Raises PathEscape when the part before the first wildcard leads out, PathUnreadable when
    there are more than ENTRIES_LIMIT entries to look at, HarnessError when it is this machine that fails.
    """
    found = set()
    directories_only = pattern.endswith("/")
    literal = pattern.rstrip("/") or pattern
    if exists_inside(root, literal) and _is_wanted(root, literal, directories_only):
        found.add(literal)
    start, rest = _split(literal)
    if rest:
        prefix = f"{start}/" if start else ""
        for path, is_directory in _walk(root, start, Globs([rest], dot=dot)):
            if (is_directory or not directories_only) and _is_there(root, prefix + path):
                found.add(prefix + path)
    return sorted(found)


def matcher(patterns: Iterable[str], *, dot: bool = False, inside: bool = False) -> Callable[[str], bool]:
    """A function that says whether a relative path matches any of the patterns; inside: or lies in a directory that
    does. For one thread at a time."""
    return PathMatcher(Globs(patterns, dot=dot), inside=inside)


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


def _split(pattern: str) -> tuple[str, str]:
    """The directories before the first part with a wildcard, and the rest."""
    parts = [part for part in pattern.split("/") if part != "."]
    for index, part in enumerate(parts):
        if has_wildcard(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return pattern, ""


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


def _walk(root: Path, start: str, globs: Globs) -> Iterator[tuple[str, bool]]:
    """What matches below `start`, relative to it, and whether it is a directory."""
    try:
        root_fd = open_inside(root, start or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PathMissing:
        return
    try:
        with Descent(root_fd) as descent:
            yield from _matches(descent, start, globs)
    finally:
        os.close(root_fd)


def _matches(descent: Descent, start: str, globs: Globs) -> Iterator[tuple[str, bool]]:
    todo = [("", globs.start)]
    seen = 0
    while todo:
        directory, state = todo.pop()
        for path, name, is_directory in _entries(descent, directory):
            seen += 1
            if seen > ENTRIES_LIMIT:
                raise PathUnreadable(f"more than {ENTRIES_LIMIT:,} entries below {start or 'the workspace'}")
            after = globs.step(state, name)
            if not after:
                continue
            if globs.accepts(after):
                yield path, is_directory
            if is_directory:
                todo.append((path, after))


def _entries(descent: Descent, directory: str) -> list[tuple[str, str, bool]]:
    """Path, name, and whether it is a directory."""
    try:
        with descent.listing(directory) as (_, entries):
            return [(path, entry.name, entry.is_dir(follow_symlinks=False)) for path, entry in entries]
    except OSError as error:
        raise_unless_agent(error, "listing the workspace")
        return []
