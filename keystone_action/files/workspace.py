"""The workspace of a cell: copied in, and copied out for checks. Snapshot, diff and patch are beside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.files.copies import copy_entries
from keystone_action.files.descent import is_empty
from keystone_action.files.git.history import GitDirectories
from keystone_action.files.patch import write_patch
from keystone_action.files.paths import PathEscape, PathProblem, display_path, resolve_inside
from keystone_action.files.removal import remove_tree
from keystone_action.files.snapshot import Snapshot, compare_entries, compare_whole, snapshot, snapshot_git
from keystone_action.files.tree_digest import TreeDigest, TreeDigester
from keystone_action.spec.globs import text_pattern

__all__ = [
    "CopyReport",
    "Snapshot",
    "TreeDigest",
    "TreeDigester",
    "compare_entries",
    "compare_whole",
    "copy_again",
    "copy_as_left",
    "copy_tree",
    "digest_tree",
    "keep_originals",
    "remove_tree",
    "snapshot",
    "snapshot_git",
    "write_patch",
]


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What copying a tree came to, as POSIX paths relative to it."""

    files: int = 0
    outside_links: tuple[str, ...] = ()
    """Links kept as they are, though they lead out of the tree (they dangle for the agent)."""
    special: tuple[str, ...] = ()
    """Sockets, FIFOs and devices that were not copied."""
    withheld: tuple[str, ...] = ()
    """What was left out."""
    history: tuple[str, ...] = ()
    """A sentence for each `.git` whose history was replaced or left out."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences for people; empty when there is nothing to say."""
        found = list(self.history)
        if self.outside_links:
            found.append(f"links that lead out of the workspace and dangle there: {_list_of(self.outside_links)}")
        if self.special:
            found.append(f"sockets, FIFOs and devices that were not copied: {_list_of(self.special)}")
        return tuple(found)


def _never(_: Path) -> bool:
    return False


def copy_tree(
    source: Path,
    destination: Path,
    *,
    withheld: Collection[Path] = (),
    results: Collection[Path] = (),
    ignore: Collection[str] = (),
    holds_results: Callable[[Path], bool] = _never,
    without_history: str = "",
) -> CopyReport:
    """Copy the author's directory `source` to `destination`, which is made when it is not there.

    withheld: absolute files and directories that the agent must not see (spec 5.2); where a copied `.git` holds
    one of them, its history becomes one commit. Every copied `.git` loses its hooks and all configuration that could
    hold a credential. results: absolute directories that are left out too, but whose content, always another, does
    not cause a history to be replaced. holds_results: whether a folder is such a one, too. ignore: names, and globs of
    names, left out at any depth. without_history: why every history becomes one commit; empty when it need not.
    Raises HarnessError: unreadable source, something in the way, disk full, a source that is withheld as a whole.
    """
    try:
        if is_empty(source):
            destination.mkdir(parents=True, exist_ok=True)
            return CopyReport()
        source, places = source.resolve(), _places(withheld)
        selection = _Selection(source, (*places, *_places(results)), ignore, holds_results, destination.resolve())
        return _copy_tree(source, destination, places, selection, without_history)
    except OSError as error:
        raise _copy_failed(source, error) from error


def copy_again(source: Path, destination: Path) -> None:
    """Copy what `copy_tree` copied, to a directory that exists. Raises HarnessError."""
    try:
        copied = copy_entries(source, destination)
    except OSError as error:
        raise _copy_failed(source, error) from error
    if copied.unreadable:
        raise HarnessError(f"the workspace can't be copied: no permission to read {_list_of(copied.unreadable)}")


def digest_tree(
    digester: TreeDigester,
    source: Path,
    *,
    withheld: Collection[Path] = (),
    results: Collection[Path] = (),
    ignore: Collection[str] = (),
    holds_results: Callable[[Path], bool] = _never,
) -> TreeDigest:
    """What `copy_tree` with these arguments would copy, as a digest. Raises HarnessError, as it does, for a source
    that is withheld as a whole."""
    source = source.resolve()
    selection = _Selection(source, (*_places(withheld), *_places(results)), ignore, holds_results)
    return digester.folder(source, selection)


def _places(paths: Collection[Path]) -> tuple[Path, ...]:
    # By `os.path`, which asks the kernel as often and makes no Path for each step: every cell asks.
    return tuple(sorted({Path(real(path)) for path in paths for real in (os.path.abspath, os.path.realpath)}))


def _copy_tree(
    source: Path, destination: Path, places: tuple[Path, ...], selection: _Selection, without_history: str
) -> CopyReport:
    from keystone_action.files.git import commands as git
    from keystone_action.files.git import history as git_history

    destination.mkdir(parents=True, exist_ok=True)
    copied = copy_entries(source, destination, leave_out=selection)
    if copied.unreadable:
        raise HarnessError(
            f"{source} can't be copied: no permission to read {_list_of(copied.unreadable)}",
            help="make them readable, or name a workspace without them",
        )
    history: list[str] = []
    if copied.repositories:
        gone = git_history.Withheld(tuple(sorted(selection.relative)), places)
        try:
            history = git_history.settle(source, destination, copied.repositories, gone, replaced=without_history)
        except git.GitFailed as error:
            raise HarnessError(f"the git history of {source} could not be replaced: {error}") from error
    return CopyReport(
        files=copied.files,
        outside_links=tuple(sorted(path for path, _ in copied.links if _leads_out(source, path))),
        special=tuple(sorted(copied.special)),
        withheld=tuple(sorted(selection.left_out)),
        history=tuple(history),
    )


class _Selection:
    """Says for each entry whether it is left out, and remembers what was."""

    def __init__(
        self,
        source: Path,
        places: Collection[Path],
        ignore: Collection[str],
        holds_results: Callable[[Path], bool],
        destination: Path | None = None,
    ) -> None:
        self.source, self.holds_results = source, holds_results
        self.ignore = [text_pattern(glob) for glob in sorted(set(ignore))]
        self.relative: set[str] = set()
        self.inodes: set[tuple[int, int]] = set()
        self.left_out: list[str] = []
        root = f"{str(source).rstrip('/')}/"
        for place in places:
            if root.startswith(f"{str(place).rstrip('/')}/"):
                raise HarnessError(
                    f"{source} can't be the workspace: it lies in {place}, which the agent must not see",
                    help="move the workspace out of the directory of hidden files",
                )
            if str(place).startswith(root):
                self.relative.add(str(place)[len(root) :])
            self._remember_inode(place)
        # A copy into itself would not end.
        inside = destination is not None and destination.is_relative_to(source)
        self.own = destination.relative_to(source).as_posix() if destination is not None and inside else None

    def _remember_inode(self, place: Path) -> None:
        try:
            status = place.lstat()
        except OSError:
            return
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:  # the same file may have a second name
            self.inodes.add((status.st_dev, status.st_ino))

    def __call__(self, path: str, status: os.stat_result) -> bool:
        name = path.rpartition("/")[2]
        if path == self.own or any(pattern.match(name) for pattern in self.ignore):
            return True
        if path in self.relative or (self.inodes and (status.st_dev, status.st_ino) in self.inodes):
            self.left_out.append(path)
            return True
        return stat.S_ISDIR(status.st_mode) and self.holds_results(self.source / path)


def copy_as_left(workspace: Path, destination: Path, *, drop_outside_links: bool) -> tuple[str, ...]:
    """Copy what the agent left to a new directory, for a check that executes or for a script on the host.

    Permissions are kept, owners are ours (the sandbox that is opened on the copy gives it to its user), FIFOs, sockets
    and devices are left out, and so is what we may not read. Returns the links that lead out of the workspace, which
    were left out, when `drop_outside_links`; otherwise links are kept and nothing is returned. Absolute
    links into the workspace lead into the copy. A copy without outside links is for our own user, so git directories
    in it can run no program (see `disarm`).
    Raises HarnessError (disk full, no permission on the destination).
    """
    removed: list[str] = []
    repositories = GitDirectories()

    def leads_out(path: str, status: os.stat_result) -> bool:
        repositories.see(path)
        if stat.S_ISLNK(status.st_mode) and _leads_out(workspace, path):
            removed.append(path)
            return True
        return False

    try:
        destination.mkdir(parents=True)
        copy_entries(workspace, destination, leave_out=leads_out if drop_outside_links else None)
        repositories.disarm(destination)
    except OSError as error:
        closed = isinstance(error, PermissionError) and not os.access(workspace, os.R_OK | os.X_OK)
        if closed or isinstance(error, FileNotFoundError):
            return ()  # the agent closed or deleted its workspace: the copy is as empty as that
        raise _copy_failed(workspace, error) from error
    return tuple(sorted(removed))


def keep_originals(workspace: Path, destination: Path) -> Path | None:
    """Keep what the workspace holds before the agent starts, for the patch and for restoring protected files.

    None when there is nothing to keep. `.git` directories are not kept. Raises HarnessError.
    """
    try:
        if is_empty(workspace):
            return None
        destination.mkdir(mode=0o700, parents=True)
        copy_entries(workspace, destination, leave_out=lambda path, _: path.rpartition("/")[2] == ".git")
    except OSError as error:
        raise _copy_failed(workspace, error) from error
    return destination


def _leads_out(root: Path, path: str) -> bool:
    try:
        resolve_inside(root, path)
    except PathEscape:
        return True
    except PathProblem:
        return False
    return False


def _copy_failed(source: Path, error: OSError) -> HarnessError:
    where = f" ({display_path(str(error.filename))})" if error.filename else ""
    return HarnessError(f"{source} can't be copied: {error.strerror or error}{where}")


def _list_of(paths: Collection[str]) -> str:
    shown = [display_path(path) for path in list(paths)[:5]]
    return ", ".join(shown) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
