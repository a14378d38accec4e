"""`file_exists`: the agent left something at this path."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from keystone_action.files.globs import find_paths_in_thread
from keystone_action.files.paths import PathProblem, display_path, display_paths, name_paths
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.spec.models.fields import WorkspacePath


class FileExists(Check):
    """Passes when the agent left something at a path: a file, a directory or anything else.

    A dangling link counts as absent. A link that leads out of the workspace fails the check. What is in the file is for
    `file_content`; an empty file exists.
    """

    type_name: ClassVar[str] = "file_exists"
    origin: ClassVar[str] = "Keystone"

    path: Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]
    """What must be there, relative to the workspace. With a glob, at least one match; `out/` is a directory only.

    Example: `report.txt`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        try:
            found = await find_paths_in_thread(context.evidence.workspace, self.path)
        except PathProblem as problem:
            return failed(f"{problem}.")
        if not found:
            return failed(f"{display_path(self.path)} does not exist.")
        return passed(
            f"{name_paths(found)} exists." if len(found) == 1 else f"{name_paths(found)} exist.",
            matches=display_paths(found),
        )
