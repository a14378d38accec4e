"""How many lines each change added and removed: read from the patch, or counted where the patch does not show it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.changes.entries import Change, FileState
from keystone_action.files.changes.patch import UNSHOWN, header_line, one_kind
from keystone_action.files.paths import PathProblem, open_inside

COUNT_LIMIT = 256 << 20
"""Bytes of one file whose lines are counted."""
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LineCount:
    """Lines of one path; None where they can't be counted. in_patch: they are those of the patch; else every line of
    both sides counts (a binary file, one that is too large to be shown)."""

    path: str
    added: int | None
    removed: int | None
    in_patch: bool


def line_counts(patch: str, changes: Sequence[Change], originals: Path | None, workspace: Path) -> Iterator[LineCount]:
    """The counts of every change that changed content, in order. originals: see `keep_originals`.

    What the agent wrote can't make a change count for less: a section begins only at the header of the change that is
    due, a hunk ends where its own header says, and a change without a whole hunk is counted from the files.
    """
    single = [part for change in changes if change.change != "mode" for part in one_kind(change)]
    shown = _count_shown_lines(patch, single)
    for index, change in enumerate(single):
        if index in shown:
            added, removed = shown[index]
            yield LineCount(change.path, added, removed, in_patch=True)
        else:
            yield LineCount(
                change.path,
                _lines(workspace, change.path, change.after),
                _lines(originals, change.path, change.before),
                in_patch=False,
            )


def _count_shown_lines(patch: str, single: Sequence[Change]) -> dict[int, tuple[int, int]]:
    """Added and removed lines of each change whose hunks are all there, by its number."""
    headers = [header_line(change) for change in single]
    counts: dict[int, tuple[int, int]] = {}
    cut: set[int] = set()
    current = -1
    lines = iter(patch.split("\n"))
    for line in lines:
        due = current + 1
        if due < len(headers) and line.removeprefix(UNSHOWN) == headers[due]:
            current = due
        elif current >= 0 and (hunk := _HUNK.match(line)):
            old, new = (1 if text is None else int(text) for text in hunk.groups())
            if old + new == 0:  # no hunk: a note on a file that is named like one
                continue
            added, removed, whole = _hunk(lines, old, new)
            before = counts.get(current, (0, 0))
            counts[current] = before[0] + added, before[1] + removed
            if not whole:
                cut.add(current)
    return {index: count for index, count in counts.items() if index not in cut}


def _hunk(lines: Iterator[str], old: int, new: int) -> tuple[int, int, bool]:
    """Added and removed lines of a hunk of so many lines on either side, and whether all of it was there."""
    added = removed = 0
    while old > 0 or new > 0:
        sign = next(lines, "?")[:1]
        if sign == "+":
            added, new = added + 1, new - 1
        elif sign == "-":
            removed, old = removed + 1, old - 1
        elif sign == " ":
            old, new = old - 1, new - 1
        elif sign != "\\":
            return added, removed, False
    return added, removed, True


def _lines(root: Path | None, path: str, state: FileState | None) -> int | None:
    """The lines of a file, its last one counted without a line break, too; None when it can't be read."""
    if state is None or state.kind == "other" or (state.kind == "file" and state.size == 0):
        return 0
    if state.kind == "link":
        return 1
    if root is None or state.size > COUNT_LIMIT:
        return None
    try:
        fd = open_inside(root, path)
    except PathProblem:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        count, last, left = 0, b"\n", COUNT_LIMIT
        while chunk := os.read(fd, _CHUNK):
            count, last, left = count + chunk.count(b"\n"), chunk[-1:], left - len(chunk)
            if left < 0:
                return None
    except OSError as error:
        raise_unless_agent(error, "counting changed lines")
        return None
    finally:
        os.close(fd)
    return count + (last != b"\n")
