"""`files` (`004_722b8593dcd13c4e.txt`): expected files, byte for byte, and patterns over all text that was left."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.files.globs import is_set_aside, matches_any
from keystone_action.files.paths import PathProblem, display_path, read_head_inside, read_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.invariants.comparison import line_ends
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.spec.models.fields import AuthorPath, RegexPattern, WorkspacePath

_NonEmpty = Annotated[str, Field(min_length=1)]
_SHOWN = 10


class Files(Check):
    """Passes when the expected files are there byte for byte, and each pattern matches in some text file that was left.

    Give `expect_dir`, `patterns` or both. The score is the share that holds: one part for each expected file, one for
    each pattern. Text is what holds no NUL, read as UTF-8 (as UTF-16 where a mark says so), of files up to 64 MiB, each
    searched by itself.
    """

    type_name: ClassVar[str] = "files"
    origin: ClassVar[str] = "Touchstone"
    default_timeout: ClassVar[float] = 60.0
    late_fails: ClassVar[bool] = True

    expect_dir: Annotated[str, Field(min_length=1), AuthorPath("directory")] | None = None
    """Every file below it must be in the workspace, at the same relative path and with the same bytes.

    Example: `expected`
    """
    patterns: list[Annotated[_NonEmpty, RegexPattern()]] = Field(default_factory=list)
    r"""Regular expressions. Each must match somewhere in one of the text files of the workspace.

    Example: `['def reconcile\(']`
    """
    exclude: list[Annotated[_NonEmpty, WorkspacePath(glob=True)]] | None = None
    """Where `patterns` do not look: a glob covers a directory with all that is in it. Without it, directories that
    begin with a dot and vendored ones (`node_modules`, `vendor`, `venv`, …).

    Example: `[vendor, "*.min.js"]`
    """

    @model_validator(mode="after")
    def _has_something_to_check(self) -> Self:
        if self.expect_dir is None and not self.patterns:
            raise PydanticCustomError("nothing_to_check", "expected at least one of expect_dir, patterns")
        return self

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        expected = context.author_directory(self.expect_dir) if self.expect_dir is not None else {}
        deadline = time.monotonic() + context.timeout
        return await anyio.to_thread.run_sync(
            self._evaluate, context.evidence, expected, deadline, abandon_on_cancel=True
        )

    def _evaluate(self, evidence: Evidence, expected: Mapping[str, bytes], deadline: float) -> Outcome:
        problems = [problem for path, content in expected.items() if (problem := _differs(evidence, path, content))]
        found, late = self._search(evidence, deadline)
        missing = [number for number in range(len(self.patterns)) if number not in found]
        problems += [f"the pattern {self.patterns[number]!r} matches in no text file" for number in missing]
        total = len(expected) + len(self.patterns)
        held = total - len(problems)
        problems += [late] if late else []
        details: dict[str, Any] = {
            "expected_files": len(expected),
            "patterns": {self.patterns[number]: display_path(path) for number, path in found.items()},
            "held": held,
            "of": total,
        }
        if not problems:
            return passed(f"All {total} hold." if total > 1 else "It holds.", **details)
        more = [f"and {len(problems) - _SHOWN:,} more"] if len(problems) > _SHOWN else []
        lines = [f"{held} of {total} hold.", *(f"{one}." for one in [*problems[:_SHOWN], *more])]
        return failed("\n".join(lines), score=held / total, **details)

    def _search(self, evidence: Evidence, deadline: float) -> tuple[dict[int, str], str]:
        """The number of each pattern that matches with the first file it does in, and what was not looked at for want
        of time."""
        found: dict[int, str] = {}
        todo = set(range(len(self.patterns)))
        for path, text in self._texts(evidence) if todo else ():
            if time.monotonic() >= deadline:
                return found, "the time limit came before all files were searched"
            for number in sorted(todo):
                try:
                    if search_pattern(self.patterns[number], text, deadline=deadline):
                        found[number] = path
                except PatternTimeout as problem:
                    return found, f"{problem} in {display_path(path)}"
            todo -= found.keys()
            if not todo:
                break
        return found, ""

    def _texts(self, evidence: Evidence) -> Iterator[tuple[str, str]]:
        """Every text file that no exclusion covers. Links are left out: what they lead to inside is there itself."""
        covered = is_set_aside if self.exclude is None else matches_any(self.exclude, inside=True)
        for path in sorted(path for path, state in evidence.files.after.items() if state.kind == "file"):
            if covered(path):
                continue
            try:
                content = read_inside(evidence.workspace, path)
            except PathProblem:
                continue
            text = content.decode(_encoding(content), "replace")
            if "\0" not in text:
                yield path, text


def _encoding(content: bytes) -> str:
    """UTF-16 where a mark says so, else UTF-8: of a text in another encoding, what is ASCII is found."""
    return "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"


def _differs(evidence: Evidence, path: str, content: bytes) -> str:
    """What is wrong with the file that the agent left there; empty when it is the expected one."""
    shown = display_path(path)
    try:
        found, size = read_head_inside(evidence.workspace, path, limit=2 * len(content) + 1)
    except PathProblem as problem:
        return str(problem)
    if size == len(found) and (ends := line_ends(content, found)):
        return f"{shown} differs from what is expected in its line ends alone: expected {ends[0]}, found {ends[1]}"
    if size != len(content):
        return f"{shown} differs from what is expected: it has {size:,} bytes, expected {len(content):,}"
    if found != content:
        at = next(index for index, (one, other) in enumerate(zip(found, content, strict=True)) if one != other)
        line = content.count(b"\n", 0, at) + 1
        return f"{shown} differs from what is expected, first at byte {at:,} (line {line:,})"
    return ""
