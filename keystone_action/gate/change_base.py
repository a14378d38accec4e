"""What a change is compared with, as the front doors found it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keystone_action.gate.base_commit import BaseCommit
    from keystone_action.gate.workflow_files import WorkflowFile


@dataclass(frozen=True, slots=True)
class ChangeBase:
    """The base commit of a change, with what else there is to compare."""

    commit: BaseCommit | None = None
    """The commit whose specs are compared with those of the checkout; None = nothing is compared."""
    problem: str = ""
    """Why there is no commit although there should be one; empty otherwise."""
    workflow: WorkflowFile | None = None
    """What runs this step, to be compared too; None outside of a workflow."""


NO_BASE = ChangeBase()
"""Nothing is compared."""
