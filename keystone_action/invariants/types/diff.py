"""`diff`: which files the agent changed, and how much of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.files.globs import matches_any
from keystone_action.files.patch import LineCount, line_counts
from keystone_action.files.paths import PathProblem, display_path, display_paths, name_paths, read_inside
from keystone_action.files.snapshot import Change
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.invariants.comparison import line_ends
from keystone_action.spec.models.fields import WorkspacePath

_Glob = Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]
_Limit = Annotated[int, Field(ge=0)]
_MOST_COMPARED = 8 << 20
"""Bytes of a file that is looked at for its line ends."""


class Diff(Check):
    """Passes when the agent changed only what it may, and no more than it may.

    It compares the workspace as left with what the agent started from. Give at least one field; all that are given must
    hold. Paths that were added, modified or removed, or whose permissions changed, count. In globs a name that begins
    with a dot is a name like any other, and a pattern without wildcards also stands for all that is below it.

    Lines are those of the unified diff. Of a file that it does not show (binary, above 1 MiB) every line counts as
    added, and as removed where there was one before. An agent that changes nothing passes. What git keeps in `.git` is
    not part of it. Score 1 or 0.
    """

    type_name: ClassVar[str] = "diff"
    default_timeout: ClassVar[float] = 60.0
    late_fails: ClassVar[bool] = True

    only: Annotated[list[_Glob], Field(min_length=1)] | None = None
    """Every path that changed matches one of these.

    Example: `["src/**"]`
    """
    never: Annotated[list[_Glob], Field(min_length=1)] | None = None
    """No path that changed matches any of these.

    Example: `[tests, "*.lock"]`
    """
    max_files: _Limit | None = None
    """At most so many files changed; directories don't count.

    Example: `5`
    """
    max_lines: _Limit | None = None
    """At most so many lines were added and removed together.

    Example: `200`
    """
    max_added: _Limit | None = None
    """At most so many lines were added.

    Example: `150`
    """
    max_removed: _Limit | None = None
    """At most so many lines were removed.

    Example: `50`
    """

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        rules = [name for name in type(self).model_fields if name != "type"]
        if all(getattr(self, name) is None for name in rules):
            raise PydanticCustomError("missing_rule", f"expected at least one of {', '.join(rules)}")
        return self

    @property
    def judges_changes(self) -> bool:
        """Always."""
        return True

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        deadline = time.monotonic() + context.timeout
        return await anyio.to_thread.run_sync(self._evaluate, context.evidence, deadline, abandon_on_cancel=True)

    def _evaluate(self, evidence: Evidence, deadline: float) -> Outcome:
        changes, originals = evidence.files.changes, evidence.files.originals
        files = [change.path for change in changes if not _is_directory(change)]
        problems = self._places(changes)
        if self.max_files is not None and len(files) > self.max_files:
            problems.append(
                f"{_count_words(len(files), 'file')} changed, at most {self.max_files:,} may: {name_paths(files)}"
            )
        details: dict[str, Any] = {"files": len(files), "changed": display_paths(files)}
        summary = f"{_count_words(len(files), 'file')} changed"
        if (self.max_lines, self.max_added, self.max_removed) != (None, None, None):
            counts = []
            for count in line_counts(evidence.files.patch, changes, originals, evidence.workspace):
                counts.append(count)
                if time.monotonic() >= deadline:
                    return failed("The time limit came before all changed lines were counted.", **details)
            added, removed = sum(one.added or 0 for one in counts), sum(one.removed or 0 for one in counts)
            details |= {"added": added, "removed": removed}
            summary += f", {_count_words(added, 'line')} added, {removed:,} removed"
            problems += self._lines(counts, added, removed)
        if problems:
            problems += _of_line_ends(changes, originals, evidence.workspace, deadline)
            return failed("\n".join(f"{problem}." for problem in problems), **details)
        return passed(f"{summary}.", **details)

    def _places(self, changes: Sequence[Change]) -> list[str]:
        problems = []
        if self.only is not None:
            allowed = matches_any(self.only)
            outside = [change.path for change in changes if not allowed(change.path)]
            if outside:
                globs = ", ".join(display_path(glob) for glob in self.only)
                problems.append(f"{name_paths(outside)} changed; only {globs} may")
        if self.never is not None:
            refused = matches_any(self.never)
            inside = [change.path for change in changes if refused(change.path)]
            if inside:
                globs = ", ".join(display_path(glob) for glob in self.never)
                problems.append(f"{name_paths(inside)} changed; {globs} must not")
        return problems

    def _lines(self, counts: Sequence[LineCount], added: int, removed: int) -> list[str]:
        limits = (
            ("added and removed", added + removed, self.max_lines, ("added", "removed")),
            ("added", added, self.max_added, ("added",)),
            ("removed", removed, self.max_removed, ("removed",)),
        )
        whole = [one.path for one in counts if not one.in_patch and (one.added or one.removed)]
        note = f" (of {name_paths(whole, limit=3)} every line counts: no diff shows it line by line)" if whole else ""
        problems = []
        for words, found, limit, sides in limits:
            if limit is None:
                continue
            unknown = [one.path for one in counts if any(getattr(one, side) is None for side in sides)]
            if found > limit:
                problems.append(f"{_count_words(found, 'line')} {words}, at most {limit:,} may be{note}")
            elif unknown:
                problems.append(
                    f"the lines of {name_paths(unknown)} can't be counted, and at most {limit:,} may be {words}"
                )
        return problems


def _of_line_ends(changes: Sequence[Change], originals: Path | None, workspace: Path, deadline: float) -> Iterator[str]:
    """A sentence for files in which nothing but line ends changed, by how they did."""
    found: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        states = (change.before, change.after)
        if originals is None or any(one is None or one.kind != "file" or one.size > _MOST_COMPARED for one in states):
            continue
        if time.monotonic() >= deadline:
            return
        try:
            before, after = (read_inside(root, change.path) for root in (originals, workspace))
        except PathProblem:
            continue
        if ends := line_ends(before, after):
            found.setdefault(ends, []).append(change.path)
    for (old, new), paths in found.items():
        yield f"Only line ends changed in {name_paths(paths)}: {old} → {new}"


def _is_directory(change: Change) -> bool:
    return all(state is None or state.kind == "directory" for state in (change.before, change.after))


def _count_words(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s"
