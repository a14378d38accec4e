"""Removing a tree that may be hostile."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a file or tree: closed modes are opened where we own them, nothing is followed, and depth does not matter
    (every directory is first moved up to the top, so that no path gets long). What can't be removed stays.
    Never raises."""
    top = os.fspath(path)
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return
    if not is_directory:
        _quietly(os.unlink, top)
        return
    token, moved = secrets.token_hex(4), 0
    todo = [top]
    while todo:
        folder = todo.pop()
        for entry in _entries(folder):
            if not entry.is_dir(follow_symlinks=False):
                _quietly(os.unlink, entry.path)
                continue
            if folder == top:
                todo.append(entry.path)
                continue
            moved += 1
            target = f"{top}/.removing-{token}-{moved}"
            _quietly(os.chmod, entry.path, 0o700)  # moving a directory writes its `..`
            if _quietly(os.rename, entry.path, target):
                todo.append(target)
        _quietly(os.rmdir, folder)
    _quietly(os.rmdir, top)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    _quietly(os.chmod, folder, 0o700)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _quietly(function: object, *arguments: object) -> bool:
    try:
        if callable(function):
            function(*arguments)
    except OSError:
        return False
    return True
