"""Who owns what we lay out."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_action.files.descent import walk_down


def give_to_owner(workspace: Path, target: Path) -> None:
    """Make what we laid out below `workspace` belong to the workspace's owner; nothing is followed. Raises OSError."""
    owner = workspace.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    os.lchown(target, owner.st_uid, owner.st_gid)
    if target.is_dir() and not target.is_symlink():
        for _, folder, entries in walk_down(target):
            for entry in entries:
                os.chown(entry.name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
