"""Documents that must not be larger than a place allows: everything, else less of it, else as many lines as fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Level = Literal["everything", "unprompted", "failures"]
"""`unprompted`: all but what agents were asked. `failures`: without what passed, too."""

SUMMARY_LIMIT = 1_048_576
"""Bytes of one job summary; the runner drops a larger one."""
COMMENT_LIMIT = 65_536
"""Characters of one comment; counted here as bytes, which are never fewer."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_DETAILS = re.compile(r"<(/?)details\b", re.IGNORECASE)

_NOTICE = "\n\n> [!WARNING]\n> **Cut here:** this place takes no more. The whole report is in `report.html`.\n"


def fit(
    render: Callable[[Level], Iterable[str]], limit: int, levels: Sequence[Level] = ("everything", "failures")
) -> str:
    """The document at the highest level of detail that takes at most `limit` bytes of UTF-8.

    render: the pieces of the document for a level; it is not asked for more than fit. levels: the highest first. When
    the last is too large, it is cut at a line, what is open is closed and a notice says that the rest is in
    `report.html`. The first line is never lost while it fits into limit itself.
    """
    text = ""
    for level in levels:
        text, complete = _take(render(level), limit)
        if complete:
            return text
    return cut(text, limit, notice=_NOTICE)


def cut(text: str, limit: int, *, notice: str) -> str:
    """The longest prefix of whole lines of text that, with fences and `<details>` closed and notice after it, takes
    at most limit bytes."""
    kept: list[str] = []
    size, state = 0, _Open()
    for line in text.splitlines(keepends=True):
        after = state.after(line)
        if size + _bytes(line) + _bytes(after.closing()) + _bytes(notice) > limit:
            break
        kept.append(line)
        size, state = size + _bytes(line), after
    if kept:
        return "".join(kept) + state.closing() + notice
    return text.split("\n", 1)[0].encode()[: max(limit, 0)].decode(errors="ignore")


def _take(pieces: Iterable[str], limit: int) -> tuple[str, bool]:
    taken: list[str] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += _bytes(piece)
        if size > limit:
            return "".join(taken), False
    return "".join(taken), True


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


class _Open:
    """Which fence and how many `<details>` are open after a line."""

    def __init__(self, fence: str = "", details: int = 0) -> None:
        self.fence = fence
        self.details = details

    def after(self, line: str) -> _Open:
        match = _FENCE.match(line)
        if self.fence:
            closes = match is not None and match[1].startswith(self.fence) and not line[match.end() :].strip()
            return _Open("" if closes else self.fence, self.details)
        if match is not None and not (match[1][0] == "`" and "`" in line[match.end() :]):
            return _Open(match[1], self.details)
        change = sum(-1 if tag[1] else 1 for tag in _DETAILS.finditer(line))
        return _Open("", max(0, self.details + change)) if change else self

    def closing(self) -> str:
        return (f"\n{self.fence}\n" if self.fence else "") + "\n\n</details>\n" * self.details
