"""The directories of a run and of its cells, and how they are removed."""

from __future__ import annotations

import atexit
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import SandboxError
from keystone_action.files.descent import walk_down
from keystone_action.files.removal import remove_tree

if TYPE_CHECKING:
    from keystone_action.spec.plan import Cell


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


def make_readable(directory: Path) -> None:
    """Let every user read (and run what was executable in) a directory of ours, and nobody but us write."""
    for _, folder, entries in walk_down(directory):
        os.fchmod(folder, 0o755)
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                os.chmod(entry.name, 0o755 if mode & 0o100 else 0o644, dir_fd=folder)
