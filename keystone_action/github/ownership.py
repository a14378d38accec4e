"""What a container action leaves in the workspace belongs to root, and the next checkout on the same machine could
not remove it: so it is handed to the workspace's owner."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def missing_folders(path: Path, workspace: Path) -> list[Path]:
    """The folders between the workspace and the path, the path included, that don't exist yet."""
    return [
        folder
        for folder in (path, *path.parents)
        if folder != workspace and folder.is_relative_to(workspace) and not folder.exists()
    ]


def hand_over(paths: Iterable[Path], workspace: Path) -> None:
    """Gives files and folders with all that is in them to the owner of the workspace; links are not followed.

    Only root can; for others, and where a file system refuses, nothing changes.
    """
    if os.geteuid() != 0:
        return
    owner = workspace.stat()
    for path in paths:
        # A path that was never made, or went away meanwhile, leaves the others to be done.
        with suppress(OSError):
            _give(path, owner.st_uid, owner.st_gid)


def _give(path: Path, uid: int, gid: int) -> None:
    os.chown(path, uid, gid, follow_symlinks=False)
    if not path.is_dir() or path.is_symlink():
        return
    for _, folders, files, descriptor in os.fwalk(path):
        for name in (*folders, *files):
            with suppress(OSError):
                os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
