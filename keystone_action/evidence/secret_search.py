"""Looking for secrets in what an agent wrote, whatever pieces it comes in.

A secret is found as it is and in the shapes that programs print it in (`secret_shapes`). White space counts nowhere: a
value that is broken over lines, indented or printed letter by letter is that value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from keystone_action.evidence.secret_shapes import ENCODING, printed_shapes, spelled_out

MINIMUM = 8
"""Characters of a secret that is looked for, white space not counted (spec.md 5.6)."""
_CHUNK = 1 << 20
_WHITE = b" \t\r\n\v\f"
_WORD = re.compile(rb"[0-9A-Za-z]+")
"""What most shapes leave as it is."""


@dataclass(frozen=True, slots=True)
class Found:
    """A secret in a stream. line: where it first ends, counted from 1. times: how often it is there, about: shapes that
    overlap count each."""

    line: int
    times: int


class SecretSearch:
    """values: name → value. Immutable, for any number of threads."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._patterns = {name: _Patterns(value) for name, value in values.items() if is_long_enough(value)}
        self._longest = max((one.longest for one in self._patterns.values()), default=1)

    def __bool__(self) -> bool:
        """Whether there is something to look for."""
        return bool(self._patterns)

    def in_stream(self, pieces: Iterable[bytes]) -> dict[str, Found]:
        """What is in a stream, by name, in memory for two pieces."""
        found: dict[str, Found] = {}
        tail, lines = b"", 0
        for piece in pieces:
            window = tail + piece.translate(None, _WHITE)
            for name, patterns in self._patterns.items():
                there = patterns.found_in(window)
                if there and (times := _count(window, there) - _count(tail, there)) > 0:
                    before = found.get(name)
                    end = min(window.find(shape) + len(shape) for shape in there)
                    at = max(end, len(tail) + 1) - len(tail)
                    line = 1 + lines + _lines_up_to(piece, at) if before is None else before.line
                    found[name] = Found(line, times + (before.times if before is not None else 0))
            lines += piece.count(b"\n")
            tail = window[max(0, len(window) - self._longest + 1) :]
        return found

    def in_text(self, text: str) -> dict[str, Found]:
        """What is in a text, by name."""
        return self.in_stream([text.encode(*ENCODING)]) if self else {}


def is_long_enough(value: str) -> bool:
    """Whether a value is looked for."""
    return len("".join(value.split())) >= MINIMUM


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """A file in pieces. Raises OSError."""
    while piece := file.read(_CHUNK):
        yield piece


class _Patterns:
    """The shapes of one value. Those that hold its longest word are looked for only where that word is: with a few
    quotes in it a value has a thousand of them."""

    def __init__(self, value: str) -> None:
        text = value.strip()
        shapes = {one.encode(*ENCODING).translate(None, _WHITE) for one in (*printed_shapes(text), *spelled_out(text))}
        self._word = max(_WORD.findall(text.encode(*ENCODING)), key=len, default=b"")
        found = sorted(shape for shape in shapes if len(shape) >= MINIMUM)
        self._with_word = [shape for shape in found if self._word in shape]
        self._others = [shape for shape in found if self._word not in shape]
        self.longest = max(map(len, found))

    def found_in(self, window: bytes) -> list[bytes]:
        """Those that are in it."""
        shapes = self._with_word + self._others if self._word in window else self._others
        return [shape for shape in shapes if shape in window]


def _count(window: bytes, shapes: Iterable[bytes]) -> int:
    return sum(window.count(shape) for shape in shapes)


def _lines_up_to(piece: bytes, end: int) -> int:
    """The ends of lines before the byte that is number `end` of those which are no white space."""
    low, high = 0, len(piece)
    while low < high:
        middle = (low + high) // 2
        if len(piece[:middle].translate(None, _WHITE)) < end:
            low = middle + 1
        else:
            high = middle
    return piece.count(b"\n", 0, low)
