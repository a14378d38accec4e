"""Evidence of an agent that turned one directory into another: what `runner/cell/seal.py` observes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.context import grade

from keystone_action.files.workspace import compare_entries, keep_originals, snapshot, write_patch
from keystone_action.invariants.check import Outcome

Act = Callable[[Path], object]


def grade_changes(document: dict[str, Any], workspace: Path, agent: Act, **fields: Any) -> Outcome:
    """The outcome of a check after `agent` has worked on the workspace."""
    originals = keep_originals(workspace, workspace.parent / "originals")
    before = snapshot(workspace)
    agent(workspace)
    after = snapshot(workspace)
    found = compare_entries(before, after)
    patch = write_patch(originals, workspace, found)
    parts = {"patch": patch.text, "patch_cut": patch.cut}
    evidence = {"before": before, "after": after, "changes": found, "originals": originals, **parts}
    return grade(document, workspace, evidence=evidence, **fields)
