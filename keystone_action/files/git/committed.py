"""What the commit that is checked out holds, so that a change has brought it along."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.files.git import commands as git
from keystone_action.files.git.commit_tree import submodules_of


def is_committed(directory: Path, path: Path) -> bool:
    """Whether the commit that is checked out holds this file, or something in this folder, or names the commit of a
    submodule that it is in. One that a step has put there is not part of the change."""
    try:
        start = checkout_of(directory, path)
        top = os.fsdecode(git.run("rev-parse", "--show-toplevel", directory=start).rstrip(b"\n"))
        if not path.is_relative_to(top):
            return False
        place = path.relative_to(top)
        words = ("ls-tree", "-z", "HEAD", "--")
        if git.run(*words, place.as_posix(), directory=Path(top)):
            return True
        folders = (folder.as_posix() for folder in place.parents if folder.name)
        return any(submodules_of(git.run(*words, folder, directory=Path(top))) for folder in folders)
    except git.GitFailed:
        return False


def checkout_of(directory: Path, path: Path) -> Path:
    """A folder of the checkout: a job can have it in a folder of its own, below the one that it works in."""
    with suppress(git.GitFailed):
        git.run("rev-parse", "--show-toplevel", directory=directory)
        return directory
    inside = (folder for folder in reversed(path.parents) if folder.is_relative_to(directory))
    return next((folder for folder in inside if os.path.lexists(folder / ".git")), directory)


def refuse_committed_link(directory: Path, output: Path) -> None:
    """Results are written where nobody's commit leads us: not through a link that is in the repository. output: as it
    was named, relative to the directory or absolute. One that its user made is its user's. Raises UsageError."""
    directory = directory.resolve()
    here = Path(output.anchor) if output.is_absolute() else directory
    for part in output.parts[len(Path(output.anchor).parts) :]:
        here = here / part
        if os.path.islink(here) and is_committed(directory, here):  # noqa: PTH114 - which never raises
            shown = os.path.relpath(here, directory)
            raise UsageError(
                f"{shown} is a link in the repository, and results would be written where it leads",
                help="remove it, or name another folder with --output",
            )
