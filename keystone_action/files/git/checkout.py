"""A copy of the checkout for the author's own scripts, which run as a user that may not read the checkout itself.

What no script may read is not in it: our results, and what a repository knows besides its history. The job's token can
stand in `.git` (actions/checkout keeps it in `http.<url>.extraheader`); see `git_history`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.files.copying import copy_entries
from keystone_action.files.git import commands as git
from keystone_action.files.git import history as git_history
from keystone_action.spec.walking import walk

_FOR_ALL = 0o444


@dataclass(frozen=True, slots=True)
class CheckoutCopy:
    """source: the checkout. place: the copy. secret: what below `source` no script may read."""

    source: Path
    place: Path
    secret: tuple[Path, ...]

    def inside(self, path: Path) -> Path | None:
        """Where the copy has this file of the checkout; None for one that lies elsewhere."""
        real = Path(os.path.realpath(path))
        return self.place / real.relative_to(self.source) if real.is_relative_to(self.source) else None


def copy_checkout(source: Path, place: Path, left_out: Collection[Path]) -> CheckoutCopy:
    """Copy a checkout to the new directory `place`. Files that its owner alone may read are readable in the copy for
    all who may enter it; what we may not read ourselves is not there. left_out: absolute paths; `source` itself leaves
    nothing.

    Raises HarnessError.
    """
    source = Path(os.path.realpath(source))
    gone = {Path(os.path.realpath(path)) for path in (*left_out, place)}
    relative = {path.relative_to(source).as_posix() for path in gone if path.is_relative_to(source)}
    try:
        place.mkdir(mode=0o700)
        if source in gone:
            return CheckoutCopy(source, place, (source,))
        copied = copy_entries(source, place, leave_out=lambda path, _: path in relative, link=_may_be_linked)
        git_history.settle(source, place, copied.repositories, git_history.Withheld((), ()))
        _open(place)
    except OSError as error:
        raise HarnessError(f"{source} can't be copied for scripts on the host: {error.strerror or error}") from error
    except git.GitFailed as error:
        raise HarnessError(f"the git history of {source} can't be copied: {error}") from error
    secret = gone | {source / path for path in copied.repositories}
    return CheckoutCopy(source, place, tuple(sorted(path for path in secret if path.is_relative_to(source))))


def _may_be_linked(path: str, status: os.stat_result) -> bool:
    """Whether the copy may have the very file: one that all may read already and only its owner writes, and that we
    don't rewrite, as we do what a repository has besides its objects."""
    parts = path.split("/")
    if ".git" in parts and parts[parts.index(".git") + 1 :][:1] != ["objects"]:
        return False
    return status.st_mode & 0o7022 == 0 and _open_mode(status) == stat.S_IMODE(status.st_mode)


def _open(place: Path) -> None:
    """Let everybody who can enter `place` read all that is in it."""
    for folder, folders, files in walk(place):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode) and _open_mode(status) != stat.S_IMODE(status.st_mode):
                path.chmod(_open_mode(status))


def _open_mode(status: os.stat_result) -> int:
    runs = status.st_mode & stat.S_IXUSR or stat.S_ISDIR(status.st_mode)
    return stat.S_IMODE(status.st_mode) | _FOR_ALL | (0o111 if runs else 0)
