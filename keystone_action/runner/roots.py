"""The directories of a run and of its cells, and how they are removed."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action.errors import SandboxError
from keystone_action.files.removal import remove_tree

if TYPE_CHECKING:
    from keystone_action.plan import Cell

_MANY = 2048
_MUCH = 1 << 28
"""Cells, and bytes of them all, that are removed together. When ext4 looks for an inode for a new file, it passes over
all that were removed within the last minutes: removing what earlier cells left makes later cells slow. What is left at
the end goes with the run's own directory."""
_LEAST_BYTES = 4 * _MUCH
_LEAST_FILES = 1 << 17
"""With less room than this on the disk, nothing waits."""


class Roots:
    """The run's directory in a temporary directory: `private` is ours alone, `cells` can be entered, but not listed, by
    the users that agents run as. Removed at the end unless `keep`. parent: None = the system's temporary directory."""

    def __init__(self, run_id: str, parent: Path | None = None) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"keystone-{run_id}-", dir=parent))
        except OSError as error:
            raise SandboxError(
                f"no temporary directory can be made: {error.strerror}", help="set TMPDIR to a directory with room"
            ) from error
        # Agents of other users must pass through to their own workspace, whose name they can't guess or list.
        self.path.chmod(0o711)
        self.private = self._make("private", 0o700)
        self.cells = self._make("cells", 0o711)
        self.sandboxes = self._make("sandboxes", 0o711)

    def _make(self, name: str, mode: int) -> Path:
        path = self.path / name
        path.mkdir()
        path.chmod(mode)
        return path

    def cell(self, cell: Cell) -> CellRoots:
        """The directories of one attempt at a cell."""
        token = secrets.token_hex(8)
        private, area = self.private / f"{cell.id}.{token}", self.cells / token
        private.mkdir(mode=0o700)
        area.mkdir()
        area.chmod(0o711)  # our umask may have taken some of it away
        workspace = area / "workspace"
        workspace.mkdir()
        return CellRoots(private, area, workspace)

    def remove(self) -> None:
        """Remove all of it; what can't be removed stays and is not an error of the run."""
        remove_tree(self.path)
        if self.path.exists():  # once more when the process ends, and with it what took the last descriptors
            atexit.register(remove_tree, self.path)


@dataclass(frozen=True, slots=True)
class CellRoots:
    """private: ours. area: can be entered by the cell's users; holds the workspace and its copies."""

    private: Path
    area: Path
    workspace: Path

    @property
    def audit_log(self) -> Path:
        """Ours, there from the start and empty."""
        return self.private / "audit.jsonl"

    @property
    def trace(self) -> Path:
        """Ours, there from the start and empty."""
        return self.private / "trace.jsonl"

    def remove(self) -> None:
        """Remove what this attempt left."""
        remove_tree(self.area)
        remove_tree(self.private)


class Leavings:
    """The directories of cells that ended, on their way to be removed.

    Those of cells that wrote little are removed many at a time, since a file system takes long over each removal. A
    cell waits for its own removal only where it left much, so that a later cell does not miss the room.
    """

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
