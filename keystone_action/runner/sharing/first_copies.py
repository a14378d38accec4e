"""What workspaces hold at first, where that is equal in all cells of a spec: copied from the checkout once.

Every cell's workspace is a copy of this copy, which is also what the cell's changes are told from. Nobody but us can
reach it, so cells start alike also when the checkout is changed while the run goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keystone_action.files.workspace import CopyReport, Snapshot, snapshot


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """directory: None when there is nothing in it. content: all that is in it. notices: what people should know of it,
    in every cell."""

    directory: Path | None
    content: Snapshot
    notices: tuple[str, ...]

    def is_still(self, workspace: Snapshot) -> bool:
        """Whether a workspace holds this and nothing else."""
        return not workspace.unreadable and dict(workspace) == dict(self.content)


class FirstCopies:
    """Those of a run, by the id of the spec. place: ours alone."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[str, FirstCopy] = {}

    def of_spec(self, spec_id: str, copy: Callable[[Path], CopyReport]) -> FirstCopy:
        """The copy, made by the first cell that asks. copy: makes the directory; what it raises is that cell's error,
        and the next one tries again."""
        if spec_id not in self._made:
            directory = self._place / f"first-{secrets.token_hex(8)}"
            report = copy(directory)
            content = snapshot(directory)
            self._made[spec_id] = FirstCopy(directory if content else None, content, report.notices)
        return self._made[spec_id]
