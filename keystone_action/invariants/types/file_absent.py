"""`file_absent`: the agent left nothing at this path."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from keystone_action.files.globs import find_paths_in_thread
from keystone_action.files.paths import PathProblem, display_path, display_paths, name_paths
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.spec.models.fields import WorkspacePath


class FileAbsent(Check):
    """Passes when the agent left nothing at a path: no file, no directory, nothing.

    A dangling link counts as absent. What can't be looked at (a closed directory, a link that leads out of the
    workspace, a workspace that is gone) fails.
    """

    type_name: ClassVar[str] = "file_absent"
    origin: ClassVar[str] = "Keystone"

    path: Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]
    """Where nothing may be, relative to the workspace. With a glob, nothing may match.

    Example: `"*.tmp"`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        try:
            found = await find_paths_in_thread(context.evidence.workspace, self.path)
        except PathProblem as problem:
            return failed(f"{problem}.")
        if found:
            are = "exists" if len(found) == 1 else "exist"
            return failed(
                f"{name_paths(found)} {are}; nothing was expected at {display_path(self.path)}.",
                matches=display_paths(found),
            )
        return passed(f"{display_path(self.path)} does not exist.")
