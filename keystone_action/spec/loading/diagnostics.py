"""What is wrong with a file, where, and what to do about it; and how that is shown.

evals/keystone.yaml:7:5: unknown key 'comand', expected one of command, exit_code, did you mean 'command'?
    comand: make test
    ^
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError

SHOWN_AT_MOST = 50
"""Diagnostics printed in full; the rest is counted."""
_LINE_WIDTH = 120
_ALIKE = 0.65
"""The share of their letters that two words must have in common, in order, for one to be a slip of the other: one wrong
letter in three (`rnu`, `run`), not two in five (`image`, `usage`)."""
_LETTERS = 4
_TABS = str.maketrans("\t", " ")
# Control characters (ANSI sequences begin with one), line separators, and everything that reorders or hides text.
_HIDDEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in a file."""

    path: str
    line: int = 1
    """Counted from 1."""
    column: int = 1
    """Counted from 1, in characters."""
    source_line: str = ""
    """The line's text."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong at a place of a file. Texts may be empty, but for the message."""

    path: str
    line: int
    column: int
    message: str
    expected: str = ""
    found: str = ""
    suggestion: str = ""
    """A word of the file's vocabulary: "did you mean …?"."""
    source_line: str = ""
    help: str = ""
    """What to do, as a sentence."""

    @classmethod
    def at(
        cls,
        position: SourcePosition,
        message: str,
        *,
        expected: str = "",
        found: str = "",
        suggestion: str = "",
        help: str = "",  # noqa: A002 - the field's name
    ) -> Diagnostic:
        """The diagnostic at a position."""
        where = (position.path, position.line, position.column)
        return cls(*where, message, expected, found, suggestion, position.source_line, help)

    @property
    def sentence(self) -> str:
        """What is wrong, on one line, without the place."""
        parts = [self.message]
        if self.found:
            parts.append(f"found {self.found}")
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.suggestion:
            parts.append(f"did you mean '{self.suggestion}'?")
        text = ", ".join(parts)
        return escape_controls(f"{text}; {self.help}" if self.help else text)

    def render(self) -> str:
        """The sentence after its place, the source line and a caret under the column."""
        head = f"{escape_controls(self.path)}:{self.line}:{self.column}: {self.sentence}"
        if not self.source_line.strip():
            return head
        line, offset = _window(self.source_line, self.column - 1)
        return f"{head}\n    {line}\n    {' ' * offset}^"


class SpecError(UsageError):
    """A bad spec file (exit 2). The message is all of its diagnostics, by position."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(dict.fromkeys(diagnostics), key=lambda one: (one.path, one.line, one.column)))
        show_value = [one.render() for one in self.diagnostics[:SHOWN_AT_MOST]]
        if len(self.diagnostics) > SHOWN_AT_MOST:
            show_value.append(f"… and {len(self.diagnostics) - SHOWN_AT_MOST} more errors")
        super().__init__("\n".join(show_value))

    @classmethod
    def join(cls, errors: Iterable[SpecError]) -> SpecError:
        """One error with the diagnostics of several files."""
        return cls(one for error in errors for one in error.diagnostics)


def escape_controls(text: str) -> str:
    """The text with control, ANSI and bidirectional characters made visible (`\\x1b`); tabs become a space."""
    return _HIDDEN.sub(_escape, text.translate(_TABS))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def show_value(value: Any, limit: int = 60) -> str:
    """A value of the file as a message shows it: texts in quotes, long ones cut, kinds by the words of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= limit else value[: limit - 1] + "…"
        return f"'{escape_controls(text)}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "a very long number"
    return f"the number {text if len(text) <= limit else text[: limit - 1] + '…'}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that this one is most likely a slip of. Empty when none is like it, or when the word itself is
    known: to suggest it again would explain nothing."""
    import difflib

    words = list(known)
    by_folded = {_fold(candidate): candidate for candidate in words}
    if word in words:
        return ""
    found = difflib.get_close_matches(_fold(word), by_folded, n=1, cutoff=_ALIKE)
    return by_folded[found[0]] if found else ""


def slip_of(word: str, known: Iterable[str]) -> str:
    """The known word that this one is with one letter changed, missing or added, or two neighbouring letters swapped,
    whatever the case: `mehtod` is `method`. Empty when there is none, or when the word itself is known. Words of less
    than four letters are too much alike for that, and digits don't count as letters: `level2` is not a slip of
    `level1`."""
    words = list(known)
    return "" if word in words else next((one for one in words if _is_slip(word.lower(), one.lower())), "")


def _is_slip(word: str, meant: str) -> bool:
    if len(meant) < _LETTERS or abs(len(word) - len(meant)) > 1 or _digits(word) != _digits(meant):
        return False
    start = next((at for at, (a, b) in enumerate(zip(word, meant, strict=False)) if a != b), min(len(word), len(meant)))
    one, other = word[start:], meant[start:]
    is_swap = len(one) > 1 and one[:2] == other[1::-1] and one[2:] == other[2:]
    return is_swap or one[1:] == other[1:] or one[1:] == other or one == other[1:]


def _digits(word: str) -> str:
    return "".join(filter(str.isdigit, word))


def _fold(word: str) -> str:
    """Without what people rarely mean: case, the kind of dash, and the dashes that every option begins with."""
    return word.lower().lstrip("-").replace("-", "_")


def listing(words: Iterable[str]) -> str:
    """`a, b, c`"""
    return ", ".join(words)


def _window(line: str, column: int) -> tuple[str, int]:
    """At most _LINE_WIDTH characters of a line around a column, and how many cells stand before the column."""
    column = min(max(column, 0), len(line))
    start = 0 if len(line) <= _LINE_WIDTH else max(0, min(column - _LINE_WIDTH // 2, len(line) - _LINE_WIDTH))
    part = line[start : start + _LINE_WIDTH]
    before = escape_controls(line[start:column])
    lead = "…" if start else ""
    tail = "…" if start + _LINE_WIDTH < len(line) else ""
    return f"{lead}{escape_controls(part)}{tail}", len(lead) + _cells(before)


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def with_short_paths(error: SpecError, directory: Path) -> SpecError:
    """The same errors with the paths of files below directory relative to it, as people write and editors open them."""
    return SpecError(with_short_path(one, directory) for one in error.diagnostics)


def with_short_path(diagnostic: Diagnostic, directory: Path) -> Diagnostic:
    """The same with a path that is relative to directory, where the file is below it."""
    path = Path(diagnostic.path)
    return replace(diagnostic, path=str(path.relative_to(directory))) if path.is_relative_to(directory) else diagnostic
