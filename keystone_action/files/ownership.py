"""Who owns what we lay out, and what a step that runs as root leaves behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from keystone_action.files.descent import walk_down


def give_to_owner(workspace: Path, target: Path) -> None:
    """Make what we laid out below `workspace` belong to the workspace's owner; nothing is followed. Raises OSError."""
    owner = workspace.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        _give(target, owner)


def missing_folders(path: Path, workspace: Path) -> list[Path]:
    """The folders between the workspace and the path, the path included, that don't exist yet."""
    return [
        folder
        for folder in (path, *path.parents)
        if folder != workspace and folder.is_relative_to(workspace) and not folder.exists()
    ]


def hand_over(paths: Iterable[Path], workspace: Path) -> None:
    """Give files and folders with all that is in them to the owner of the workspace; links are not followed.

    What a container action leaves in the workspace belongs to root, and the next checkout on the same machine could not
    remove it. Only root can give; for others, and where a file system refuses, nothing changes.
    """
    if os.geteuid() != 0:
        return
    owner = workspace.stat()
    for path in paths:
        # A path that was never made, or went away meanwhile, leaves the others to be done.
        with suppress(OSError):
            _give(path, owner, OSError)


def _give(top: Path, owner: os.stat_result, *ignored: type[OSError]) -> None:
    """ignored: errors that leave one entry, or what is in one folder, as it is."""
    os.lchown(top, owner.st_uid, owner.st_gid)
    if not top.is_dir() or top.is_symlink():
        return
    for _, folder, entries in walk_down(top, (lambda _: None) if ignored else None):
        for entry in entries:
            with suppress(*ignored):
                os.chown(entry.name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
