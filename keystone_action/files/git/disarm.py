"""Git directories that an agent left, made safe for scripts of ours that call git there.

git takes programs to run from the repository that it finds (`core.fsmonitor`, filters, hooks, `diff.external`), and it
finds one in any directory that looks like it. `git status` in a copy of a hostile workspace would be the agent's code
under our own user, outside of every sandbox. So what git would read is rewritten, wherever it could find it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from keystone_action.files.descent import walk_down
from keystone_action.files.removal import remove_tree

_NAMES = frozenset({".git", "HEAD", "commondir", "objects", "refs"})
_POINTER_BYTES = 8192


class GitDirectories:
    """Collects, during a copy, what git could take for a repository."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}

    def see(self, path: str) -> None:
        """Call it with every path of the copy."""
        directory, _, name = path.rpartition("/")
        if name in _NAMES:
            self._found.setdefault(directory, set()).add(name)

    def disarm(self, copy: Path) -> None:
        """Leave of each nothing that could run a program, or lead out of the copy."""
        for directory, names in self._found.items():
            place = copy / directory
            for name, prefix in ((".git", b"gitdir:"), ("commondir", b"")):
                if name in names and _leads_out(place / name, prefix, copy):
                    _remove(place / name)
            if _git_reads(names):
                _disarm(place, copy)


def disarm_tree(tree: Path) -> None:
    """The same in a tree that stays where it is, and in which nothing runs now. Raises OSError."""
    repositories = GitDirectories()
    for directory, _, entries in walk_down(tree, _unless_closed):
        for entry in entries:
            repositories.see(f"{directory}/{entry.name}" if directory else entry.name)
    repositories.disarm(tree)


def _unless_closed(error: OSError) -> None:
    """A directory that we may not read git can't read for us either. Raises OSError for anything else."""
    if not isinstance(error, PermissionError):
        raise error


def _git_reads(names: set[str]) -> bool:
    """Whether git accepts a directory with these names: as a repository, as the half of one that a work tree has to
    itself, or as the half that all its work trees share."""
    return {"objects", "refs"} <= names or {"HEAD", "commondir"} <= names


def _leads_out(pointer: Path, prefix: bytes, copy: Path) -> bool:
    """Whether this file is one that names another directory, one outside of the copy."""
    try:
        if not pointer.is_file():
            return False
        with pointer.open("rb") as file:
            text = file.read(_POINTER_BYTES)
        if not text.startswith(prefix):
            return False
        target = pointer.parent / os.fsdecode(text[len(prefix) :]).strip()
        return not Path(os.path.realpath(target)).is_relative_to(os.path.realpath(copy))
    except (OSError, ValueError):
        return True


def _disarm(directory: Path, copy: Path) -> None:
    from keystone_action.files.git import commands as git
    from keystone_action.files.git.history import clean

    for name in ("hooks", "worktrees", "config.worktree"):
        _remove(directory / name)
    try:
        clean(directory, within=copy)
    except (git.GitFailed, OSError, ValueError):
        _remove(directory / "config")  # git then takes its defaults


def _remove(path: Path) -> None:
    """Also a link, which is not followed."""
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return
    if is_directory:
        remove_tree(path)
    else:
        path.unlink()
