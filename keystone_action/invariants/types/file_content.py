"""`file_content`: what is, and what is not, in the files that the agent left."""

from __future__ import annotations

import time
from io import StringIO
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.files.globs import find_paths
from keystone_action.files.paths import PathProblem, display_path, display_paths, name_paths, read_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.invariants.comparison import line_ends
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.spec.models.fields import RegexPattern, TextOrList, WorkspacePath

_NonEmpty = Annotated[str, Field(min_length=1)]
_Pattern = Annotated[str, Field(min_length=1), RegexPattern()]
_Texts = TextOrList[_NonEmpty, Annotated[list[_NonEmpty], Field(min_length=1)]]
_CONDITIONS = ("equals", "contains", "not_contains", "pattern")
_SHOWN = 80
"""Characters of a line that a message shows."""
_SHOWN_BEFORE = 20
"""Of these, before the first that differs, where that is further on."""


class FileContent(Check):
    """Passes when the files at a path hold what they should, and nothing that they should not.

    Give at least one of `equals`, `contains`, `not_contains` and `pattern`; all that are given must hold, in every file
    that `path` matches. Text is UTF-8 and compared as it is, upper and lower case being different. No match, a
    directory, a file that is not UTF-8 or above 64 MiB, and a pattern that hits its time limit fail, also with
    `not_contains` alone.
    """

    type_name: ClassVar[str] = "file_content"
    origin: ClassVar[str] = "Keystone"
    default_timeout: ClassVar[float] = 10.0
    late_fails: ClassVar[bool] = True

    path: Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]
    """The file, relative to the workspace; with a glob, every file that matches.

    Example: `report.txt`
    """
    equals: TextOrList[str, Annotated[list[str], Field(min_length=1)]] | None = None
    r"""The whole text of the file, with the end of its last line if it has one.

    Example: `"42\n"`
    """
    contains: _Texts | None = None
    """Texts that must all be in the file.

    Example: `Total`
    Example: `[Ada, Grace]`
    """
    not_contains: _Texts | None = None
    """Texts that must not be in the file.

    Example: `TODO`
    """
    pattern: TextOrList[_Pattern, Annotated[list[_Pattern], Field(min_length=1)]] | None = None
    r"""Regular expressions that must all match somewhere in the file. `^` and `$` mean the whole text unless the
    expression says `(?m)`.

    Example: `'\b42\b'`
    """

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if all(getattr(self, name) is None for name in _CONDITIONS):
            raise PydanticCustomError("missing_condition", f"expected at least one of {', '.join(_CONDITIONS)}")
        return self

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(self._evaluate, context, abandon_on_cancel=True)

    def _evaluate(self, context: CheckContext) -> Outcome:
        workspace, deadline = context.evidence.workspace, time.monotonic() + context.timeout
        try:
            found = find_paths(workspace, self.path)
            if not found:
                return failed(f"{display_path(self.path)} does not exist.")
            problems: list[str] = []
            for path in found:
                text = _decode(read_inside(workspace, path))
                problems += [f"{display_path(path)} {problem}" for problem in self._problems(text, deadline)]
        except PathProblem as problem:
            return failed(f"{problem}.")
        except PatternTimeout as problem:
            return failed(f"{problem}.")
        details: dict[str, Any] = {"matches": display_paths(found)}
        if problems:
            more = f"\nand {len(problems) - 10} more." if len(problems) > 10 else ""
            return failed("\n".join(problems[:10]) + more, **details)
        return passed(f"{name_paths(found)}: all conditions hold.", **details)

    def _problems(self, text: str | None, deadline: float) -> list[str]:
        if text is None:
            return ["is not text: its bytes are not UTF-8."]
        problems = [_difference(text, wanted) for wanted in _as_list(self.equals) if wanted != text]
        problems += [f"does not contain {wanted!r}." for wanted in _as_list(self.contains) if wanted not in text]
        for unwanted in _as_list(self.not_contains):
            at = text.find(unwanted)
            if at >= 0:
                problems.append(f"contains {unwanted!r} (line {text.count(chr(10), 0, at) + 1}).")
        problems += [
            f"does not match the pattern {pattern!r}."
            for pattern in _as_list(self.pattern)
            if not search_pattern(pattern, text, deadline=deadline)
        ]
        if problems and text.startswith("\ufeff"):
            problems.append("begins with a byte order mark, which is a character of its text.")
        return problems


def _difference(text: str, wanted: str) -> str:
    """Where two texts that differ begin to, and in how many lines more they do."""
    pairs = list(zip_longest(StringIO(text, newline="\n"), StringIO(wanted, newline="\n")))  # lines with their ends
    differing = [(number, *pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]]
    number, found, expected = differing[0]
    column = next(
        (n for n, (one, other) in enumerate(zip(found or "", expected or "", strict=False)) if one != other), 0
    )
    start = column - _SHOWN_BEFORE if column >= _SHOWN else 0  # else both would be shown as the same text
    more = f" (lines that differ: {len(differing):,})" if len(differing) > 1 else ""
    ends = line_ends(wanted.encode("utf-8", "replace"), text.encode())
    only = f"; only line ends differ: expected {ends[0]}, found {ends[1]}" if ends else ""
    return f"differs in line {number}: expected {_shown(expected, start)}, found {_shown(found, start)}{more}{only}."


def _shown(line: str | None, start: int) -> str:
    if line is None:
        return "no such line"
    part = line[start : start + _SHOWN]
    return f"{'…' if start else ''}{part!r}{'…' if len(line) > start + _SHOWN else ''}"


def _as_list(value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _decode(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
