"""What the machine ran out of while a command ran: then its failure says nothing about the command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keystone_action.errors import SandboxError
from keystone_action.files.tree_size import TooDeep, human, tree_size
from keystone_action.system.shortage import refused_processes, smallest_cap

if TYPE_CHECKING:
    from keystone_action.command import Completed

_FULL = 1 << 20
"""Bytes: with less left on a file system, programs fail to write."""
_FEW_FILES = 16


class ShortageError(SandboxError):
    """A command failed while the machine ran out of something. completed: how it ended."""

    def __init__(self, message: str, completed: Completed) -> None:
        how = f"exit code {completed.exit_code}" if completed.exit_code is not None else f"signal {completed.signal}"
        super().__init__(f"{message}, and the command failed ({how}): that may be why")
        self.completed = completed


class Supplies:
    """What the machine had when a command started. roots: the directories that are the command's own."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._free = [_free(root) for root in roots]
        self._refused = refused_processes()

    def check(self, completed: Completed) -> None:
        """Raise ShortageError when the command failed, and what was lacking is not its own doing."""
        ended_by_itself = not (completed.timed_out or completed.limit or completed.not_found)
        if not ended_by_itself or completed.exit_code == 0:
            return
        lacking = self._space() or self._processes(completed)
        if lacking:
            raise ShortageError(lacking, completed)

    def _space(self) -> str:
        for root, before in zip(self._roots, self._free, strict=True):
            now = _free(root)
            if now is None or before is None or now >= _FULL:
                continue
            if before < _FULL or _size(self._roots) < before:  # else the command may have filled it by itself
                return f"there is no space left on this machine for {root} ({human(now)})"
        return ""

    def _processes(self, completed: Completed) -> str:
        refused = refused_processes() - self._refused
        most = smallest_cap()
        if refused <= 0 or most is None or completed.leftovers > most / 2:  # the last is a bomb
            return ""
        return f"the machine caps processes (pids.max is {most}) and refused {refused} more meanwhile"


def _free(root: str) -> int | None:
    """Bytes that users may still write there; 0 where no more files can be made."""
    with contextlib.suppress(OSError):
        found = os.statvfs(root)
        out_of_files = found.f_files > 0 and found.f_favail < _FEW_FILES
        return 0 if out_of_files else found.f_bavail * found.f_frsize
    return None


def _size(roots: Sequence[str]) -> int:
    try:
        return next((size for size in tree_size(list(roots)) if size is not None), 0)
    except TooDeep:
        return 0
