"""Globs over what an agent left (`*`, `?`, `[…]`, `**`), and the restoring of files that they protect.

The rules are those of `spec.globs`: bash's with globstar, matched against our own listing. A wildcard enters no folder
that is a link. A pattern that is also the literal name of something there (`app/[id]/page.tsx`) matches that as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.descent import Descent
from keystone_action.files.paths import (
    PathMissing,
    PathProblem,
    PathUnreadable,
    exists_inside,
    open_inside,
    read_inside,
    resolve_inside,
    stat_inside,
    write_inside,
)
from keystone_action.files.removal import remove_tree
from keystone_action.files.snapshot import Change, FileState
from keystone_action.spec.globs import Globs, PathMatcher, escape, has_wildcard

ENTRIES_LIMIT = 1_000_000
"""Entries that one glob looks at before it gives up with a sentence."""

VENDORED = frozenset({"venv", "node_modules", "vendor", "__pycache__", "site-packages", "bower_components"})
"""Directories that hold what others wrote, or what was made from it."""


def find_paths(workspace: Path, pattern: str) -> list[str]:
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


async def find_paths_in_thread(workspace: Path, pattern: str) -> list[str]:
    """`find_paths`, in a thread where it has to look through directories."""
    if not has_wildcard(pattern):
        return find_paths(workspace, pattern)
    import anyio.to_thread

    return await anyio.to_thread.run_sync(find_paths, workspace, pattern)


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


ORIGINAL_LIMIT = 1 << 30
"""Bytes of one protected file."""


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """Paths relative to the workspace, sorted."""

    restored: tuple[str, ...] = ()
    """They are as they were in the snapshot."""
    removed: tuple[str, ...] = ()
    """The agent's own files, which are gone now."""

    def __add__(self, further: RestoredFiles) -> RestoredFiles:
        restored, removed = {*self.restored, *further.restored}, {*self.removed, *further.removed}
        return RestoredFiles(tuple(sorted(restored)), tuple(sorted(removed)))


def restore_protected(
    workspace: Path, originals: Path | None, changes: Sequence[Change], patterns: Iterable[str]
) -> RestoredFiles:
    """Undo every change whose path matches one of the globs, or lies in a directory that does.

    workspace: a copy of what the agent left. originals: `keep_originals`, None when there was nothing.
    Raises PathProblem when an original can't be had: a file above ORIGINAL_LIMIT.
    """
    matches = matcher([pattern.rstrip("/") for pattern in patterns], dot=True, inside=True)
    wanted = [change for change in changes if matches(change.path)]
    removed = [change.path for change in wanted if change.before is None]
    restored = [change for change in wanted if change.before is not None]
    for change in wanted:
        _clear(workspace, change.path, keep_directory=change.before is not None and change.before.kind == "directory")
    for change in sorted(restored, key=lambda one: one.path):
        _restore(workspace, originals, change.path, change.before)
    return RestoredFiles(tuple(sorted(change.path for change in restored)), tuple(sorted(removed)))


def put_file(workspace: Path, path: str, content: bytes, originals: Path | None = None) -> None:
    """Write a file of the author's, in place of what the agent left there or on the way. Raises PathProblem."""
    _make_way(workspace, path, originals)
    _clear(workspace, path)
    write_inside(workspace, path, content)


def let_in(folder: Path) -> None:
    """Its owner may work in it: the sandbox that the tests run in, and we ourselves without root. Raises OSError."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & 0o700 != 0o700:
        folder.chmod(mode | 0o700)


def _restore(workspace: Path, originals: Path | None, path: str, state: FileState | None) -> None:
    if state is None or originals is None:
        return
    _make_way(workspace, path, originals)
    if state.kind == "directory":
        _make_way(workspace, f"{path}/.", originals)
    elif state.kind == "link":
        # As the copy of the originals has it: an absolute link into the workspace leads into its own tree there.
        (workspace / path).symlink_to((originals / path).readlink())
    elif state.kind == "file":
        write_inside(workspace, path, read_inside(originals, path, limit=ORIGINAL_LIMIT), state.mode & 0o777)


def _clear(workspace: Path, path: str, *, keep_directory: bool = False) -> None:
    """Remove what is at a path, if the way to it leads through directories of the workspace alone."""
    here = workspace
    let_in(here)
    for part in path.split("/")[:-1]:
        here = here / part
        if _kind(here) != stat.S_IFDIR:
            return
        let_in(here)
    place = workspace / path
    kind = _kind(place)
    if kind == stat.S_IFDIR:
        if not keep_directory:
            remove_tree(place)
            if _kind(place) is not None:
                raise PathProblem(f"{path} can't be removed")
    elif kind is not None:
        place.unlink()


def _make_way(workspace: Path, path: str, originals: Path | None) -> None:
    """Real directories, or the snapshot's own links, on the way to a path. Raises PathProblem where one of these leads
    out of the workspace."""
    parts = path.split("/")[:-1]
    owner, here = workspace.lstat(), workspace
    let_in(workspace)
    for end in range(1, len(parts) + 1):
        relative = "/".join(parts[:end])
        here = here / parts[end - 1]
        kind = _kind(here)
        if kind == stat.S_IFLNK and _same_link(here, originals, relative):
            # Where it leads may be a link of the agent's.
            here = resolve_inside(workspace, relative)
            kind = _kind(here)
        if kind == stat.S_IFDIR:
            let_in(here)
            continue
        if kind is not None:
            here.unlink()
        here.mkdir(0o755)
        if os.geteuid() == 0:
            os.chown(here, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _same_link(here: Path, originals: Path | None, relative: str) -> bool:
    if originals is None:
        return False
    try:
        return (originals / relative).readlink() == here.readlink()
    except OSError:
        return False


def _kind(path: Path) -> int | None:
    """The type bits of what is at a path, links not followed; None when there is nothing."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a name that the system refuses: no tool will open it either
        raise_unless_agent(error, "looking at a protected file")
        raise PathMissing(f"{path.name[:80]} can't be looked at: {error.strerror}") from None
