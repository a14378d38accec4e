"""Taking back what the agent did to files that decide how its work is graded: test configuration, test runners.

Works on a copy that no code runs in. What changed is known from the snapshots, so no tree is walked and no link of the
agent's is followed: a link or a file where the snapshot had a directory is replaced by a directory. A directory that
the agent closed is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.changes.entries import Change, FileState
from keystone_action.files.globs import matcher
from keystone_action.files.paths import PathMissing, PathProblem, read_inside, resolve_inside, write_inside
from keystone_action.files.removal import remove_tree

ORIGINAL_LIMIT = 1 << 30
"""Bytes of one protected file."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Paths relative to the workspace, sorted. restored: as they were in the snapshot. removed: the agent's own."""

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __add__(self, further: TakenBack) -> TakenBack:
        restored, removed = {*self.restored, *further.restored}, {*self.removed, *further.removed}
        return TakenBack(tuple(sorted(restored)), tuple(sorted(removed)))


def take_back(workspace: Path, originals: Path | None, changes: Sequence[Change], patterns: Iterable[str]) -> TakenBack:
    """Undo every change whose path matches one of the globs, or lies in a directory that does.

    workspace: a copy of what the agent left. originals: `keep_originals`, None when there was nothing.
    Raises PathProblem when an original can't be had: a file above ORIGINAL_LIMIT.
    """
    matches = matcher([pattern.rstrip("/") for pattern in patterns], dot=True, inside=True)
    wanted = [change for change in changes if matches(change.path)]
    removed = [change.path for change in wanted if change.before is None]
    restored = [change for change in wanted if change.before is not None]
    for change in wanted:
        _clear(workspace, change.path, keep_directory=_is_directory(change.before))
    for change in sorted(restored, key=lambda one: one.path):
        _restore(workspace, originals, change.path, change.before)
    return TakenBack(tuple(sorted(change.path for change in restored)), tuple(sorted(removed)))


def put(workspace: Path, path: str, content: bytes, originals: Path | None = None) -> None:
    """Write a file of the author's, in place of what the agent left there or on the way. Raises PathProblem."""
    _make_way(workspace, path, originals)
    _clear(workspace, path)
    write_inside(workspace, path, content)


def let_in(folder: Path) -> None:
    """Its owner may work in it: the sandbox that the tests run in, and we ourselves without root. Raises OSError."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & 0o700 != 0o700:
        folder.chmod(mode | 0o700)


def _is_directory(state: FileState | None) -> bool:
    return state is not None and state.kind == "directory"


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
