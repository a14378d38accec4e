"""Who owns what we lay out."""

from __future__ import annotations

import os
from pathlib import Path


def give_to_owner(workspace: Path, target: Path) -> None:
    """Make what we laid out below `workspace` belong to the workspace's owner; nothing is followed. Raises OSError."""
    owner = workspace.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    os.lchown(target, owner.st_uid, owner.st_gid)
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            os.lchown(Path(folder) / name, owner.st_uid, owner.st_gid)
