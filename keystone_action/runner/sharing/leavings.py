"""What cells that wrote little leave: removed many at a time, since a file system takes long over each removal.

A cell waits for its own removal only where it left much, so that a later cell does not miss the room.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import anyio.to_thread

if TYPE_CHECKING:
    from keystone_action.runner.under_way import CellRoots

_MANY = 2048
_MUCH = 1 << 28
"""Cells, and bytes of them all, that are removed together. When ext4 looks for an inode for a new file, it passes over
all that were removed within the last minutes: removing what earlier cells left makes later cells slow. What is left at
the end goes with the run's own directory."""
_LEAST_BYTES = 4 * _MUCH
_LEAST_FILES = 1 << 17
"""With less room than this on the disk, nothing waits."""


class Leavings:
    """The directories of cells that ended, on their way to be removed."""

    def __init__(self) -> None:
        self._waiting: list[CellRoots] = []
        self._size = 0

    async def add(self, roots: CellRoots, size: int) -> None:
        """Close the directories of a cell to everybody else; they are removed with those of later cells. size: bytes
        in them, about."""
        with contextlib.suppress(OSError):  # it would be removed, and what can't be removed stays
            roots.area.chmod(0o700)
        self._waiting.append(roots)
        self._size += size
        if len(self._waiting) >= _MANY or self._size >= _MUCH or _is_short_of_room(roots):
            ended, self._waiting, self._size = self._waiting, [], 0
            await anyio.to_thread.run_sync(_remove_all, ended)


def _is_short_of_room(roots: CellRoots) -> bool:
    with contextlib.suppress(OSError):
        room = os.statvfs(roots.private)
        few_files = room.f_files > 0 and room.f_favail < _LEAST_FILES  # some file systems have no such limit
        return few_files or room.f_bavail * room.f_frsize < _LEAST_BYTES
    return True


def _remove_all(ended: list[CellRoots]) -> None:
    for roots in ended:
        roots.remove()
