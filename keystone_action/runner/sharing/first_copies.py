"""What the workspaces of a spec hold at first: copied from the checkout once, for all cells that start from the same.

Every such cell's workspace is a copy of this copy, which is also what the cell's changes are told from. Nobody but us
can reach it, so cells start alike also when the checkout is changed while the run goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from keystone_action.files.workspace import CopyReport, Snapshot, copy_again, keep_originals, snapshot


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """A workspace before anything was done in it."""

    directory: Path
    """Ours alone."""

    originals: Path | None
    """What changes are told from: the files without `.git`; None when there are none."""

    content: Snapshot
    notices: tuple[str, ...]
    """What people should know of the copy, in every cell."""

    def is_still(self, workspace: Snapshot) -> bool:
        """Whether a workspace holds this and nothing else."""
        return not workspace.unreadable and dict(workspace) == dict(self.content)


class FirstCopies:
    """The first copies of a run. place: a directory of ours alone."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[Hashable, FirstCopy] = {}
        self._locks: dict[Hashable, anyio.Lock] = {}

    async def lay_out(self, key: Hashable, copy: Callable[[Path], CopyReport], workspace: Path) -> FirstCopy:
        """Copy the first copy of this key to a workspace; the first cell that asks has it made, and others wait.

        copy: makes the directory. What it raises is that cell's error, and the next one tries again. Raises
        HarnessError.
        """
        async with self._locks.setdefault(key, anyio.Lock()):
            if key not in self._made:
                self._made[key] = await anyio.to_thread.run_sync(self._make, copy)
        first = self._made[key]
        await anyio.to_thread.run_sync(copy_again, first.directory, workspace)
        return first

    def _make(self, copy: Callable[[Path], CopyReport]) -> FirstCopy:
        directory = self._place / f"first-{secrets.token_hex(8)}"
        report = copy(directory)
        content = snapshot(directory)
        has_git = any(path.rpartition("/")[2] == ".git" for path in content)
        originals = directory if content else None
        if has_git:
            originals = keep_originals(directory, self._place / f"originals-{secrets.token_hex(8)}")
        return FirstCopy(directory, originals, content, report.notices)
