"""What a call is asked to do, with the commit that its specs are compared with. Both front doors make one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keystone_action.runner.options import RunOptions

if TYPE_CHECKING:
    from keystone_action.gate.base_commit import BaseCommit
    from keystone_action.gate.workflow_files import WorkflowFile


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedOptions(RunOptions):
    """spec_from: which commit's specs run. base: the commit that they are compared with. base_problem: why there is
    none although there should be one, empty otherwise. workflow: what runs this step, to be compared too; None outside
    of a workflow."""

    spec_from: Literal["head", "base"] = "head"
    base: BaseCommit | None = None
    base_problem: str = ""
    workflow: WorkflowFile | None = None
