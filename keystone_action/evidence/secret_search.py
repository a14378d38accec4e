"""Searching what an agent wrote for secrets, in whatever pieces it arrives.

A secret is found as it is and in the shapes in which programs print it (`printed_shapes` in `masking.py`). White space
and NUL bytes are ignored: a value that is broken over lines, indented, printed letter by letter or in UTF-16 is still
that value. Hex is read in any case, with what programs write between bytes, and so are the lines of hexdump and xxd.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO

from keystone_action.evidence.masking import ENCODING, encodings, printed_shapes, spelled_out

MINIMUM = 8
"""Characters of a secret that is looked for, white space not counted (spec.md 5.6)."""
_CHUNK = 1 << 20
_WHITE = b" \t\r\n\v\f"
_BLANK = _WHITE + b"\0"
_WORD = re.compile(rb"[0-9A-Za-z]+")
"""What most shapes leave as it is."""
_LONGEST_LINE, _LONGEST_OFFSET = 4096, 16
"""Bytes of a line of a dump, and of the offset at its beginning."""


@dataclass(frozen=True, slots=True)
class Found:
    """A secret in a stream."""

    line: int
    """The line in which it first ends, counted from 1."""
    times: int
    """About how often it is there: shapes that overlap count each."""


class SecretSearch:
    """values: name → value. Immutable, for any number of threads."""

    def __init__(self, values: Mapping[str, str]) -> None:
        long = {name: value.strip() for name, value in values.items() if is_long_enough(value)}
        raw = {name: _Patterns(encodings(text)) for name, text in long.items()}
        in_hex = {name: _Patterns(one.hex().encode() for one in encodings(text)) for name, text in long.items()}
        self._views = (
            _View(_without_blanks, {name: _shapes(text) for name, text in long.items()}),
            _View(_digits, in_hex, by_lines=True),
            _View(_dumped, raw, by_lines=True),
            _View(_dumped_in_words, raw, by_lines=True),
        )
        self._is_needed = bool(long)

    def __bool__(self) -> bool:
        """Whether there is something to look for."""
        return self._is_needed

    def in_stream(self, pieces: Iterable[bytes]) -> dict[str, Found]:
        """What is in a stream, by name, in memory for two pieces."""
        found: dict[str, Found] = {}
        looks = [_Look(view, found) for view in self._views]
        for piece in pieces:
            for look in looks:
                look.take(piece)
        for look in looks:
            look.end()
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
    """What stands for one value. Patterns that hold `word` are looked for only where that word is: with a few quotes in
    it a value has a thousand of them."""

    def __init__(self, patterns: Iterable[bytes], word: bytes = b"") -> None:
        found = sorted({one for one in patterns if len(one) >= MINIMUM})
        self._word = word
        self._with_word = [one for one in found if word in one]
        self._others = [one for one in found if word not in one]
        self.longest = max(map(len, found))

    def found_in(self, window: bytes) -> list[bytes]:
        """Those that are in it."""
        patterns = self._with_word + self._others if self._word in window else self._others
        return [one for one in patterns if one in window]


@dataclass(frozen=True, slots=True)
class _View:
    """One way to read a stream."""

    read: Callable[[bytes], bytes]
    """Turns a piece of the stream into what is searched."""
    patterns: Mapping[str, _Patterns]
    """Name of a secret → what to look for there."""
    by_lines: bool = False
    """Whether pieces have to end where lines do."""


@dataclass(slots=True)
class _Look:
    """Reads one stream in one way and puts what is there into `found`."""

    view: _View
    found: dict[str, Found]
    _tail: bytes = b""
    _rest: bytes = b""
    _lines: int = 0
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        self._longest = max((one.longest for one in self.view.patterns.values()), default=1)

    def take(self, piece: bytes) -> None:
        """The next of the stream."""
        if self.view.by_lines:
            piece = self._rest + piece
            cut = piece.rfind(b"\n") + 1
            if not cut and len(piece) < _LONGEST_LINE:
                self._rest = piece
                return
            cut = cut or len(piece) - 1  # a line that is too long for a dump: `0x` stays together, at least
            piece, self._rest = piece[:cut], piece[cut:]
        self._read(piece)

    def end(self) -> None:
        """There is no more."""
        self._read(self._rest)

    def _read(self, piece: bytes) -> None:
        window = self._tail + self.view.read(piece)
        for name, patterns in self.view.patterns.items():
            there = patterns.found_in(window)
            if there and (times := _count(window, there) - _count(self._tail, there)) > 0:
                before = self.found.get(name)
                end = min(window.find(one) + len(one) for one in there)
                at = max(end, len(self._tail) + 1) - len(self._tail)
                line = 1 + self._lines + _lines_up_to(piece, at, self.view.read) if before is None else before.line
                self.found[name] = Found(line, times + (before.times if before is not None else 0))
        self._lines += piece.count(b"\n")
        self._tail = window[max(0, len(window) - self._longest + 1) :]


def _count(window: bytes, patterns: Iterable[bytes]) -> int:
    return sum(window.count(one) for one in patterns)


def _lines_up_to(piece: bytes, end: int, read: Callable[[bytes], bytes]) -> int:
    """The ends of lines before the byte that is number `end` of what is made of the piece."""
    low, high = 0, len(piece)
    while low < high:
        middle = (low + high) // 2
        if len(read(piece[:middle])) < end:
            low = middle + 1
        else:
            high = middle
    return piece.count(b"\n", 0, low)


def _shapes(text: str) -> _Patterns:
    shapes = (one.encode(*ENCODING) for one in (*printed_shapes(text), *spelled_out(text)))
    word = max(_WORD.findall(text.encode(*ENCODING)), key=len, default=b"")
    return _Patterns(map(_without_blanks, (*shapes, *encodings(text))), word)


def _without_blanks(piece: bytes) -> bytes:
    return piece.translate(None, _BLANK)


def _digits(lines: bytes) -> bytes:
    """Without what programs write between the bytes of hex: `74:6F`, `0x74, 0x6f`, `\\x74\\x6f`, `%74%6F`."""
    bare = lines.lower().replace(b"\\x", b"").replace(b"0x", b"")
    return bare.translate(None, _BLANK + b":,;.-_|\\%'\"[](){}")


_BYTES = rb"(?:[0-9A-Fa-f]{2})+"
_DUMP_LINE = re.compile(
    rb"[0-9A-Fa-f]{4,16}(?::[ \t]{1,2}(" + _BYTES + rb"(?: " + _BYTES + rb")*)"
    rb"|[ \t]{1,4}(" + _BYTES + rb"(?:[ \t]{1,4}" + _BYTES + rb")*)[ \t]*(?:\||\r?\Z))"
)
"""An offset, and bytes one by one or in words; then, after two spaces or a bar, what they are as text."""
_KINDS = bytes(
    ord("0") if chr(code) in "0123456789abcdefABCDEF" else ord(" ") if chr(code) in " \t" else code
    for code in range(256)
)
_BEGINNING = re.compile(rb"0000(?:: {1,2}00|00 {1,4}00)")
"""Of such a line, with 0 for each digit."""


def _dumped(lines: bytes) -> bytes:
    """The bytes that hexdump, xxd, od and the like printed there."""
    return _read_dump(lines)[0]


def _dumped_in_words(lines: bytes) -> bytes:
    """The same where words were printed with their last byte first, as `hexdump` does without options."""
    return _read_dump(lines)[1]


@lru_cache(maxsize=2)
def _read_dump(lines: bytes) -> tuple[bytes, bytes]:
    kinds, plain, words, at = lines.translate(_KINDS), bytearray(), bytearray(), 0
    while (begins := _BEGINNING.search(kinds, at)) is not None:
        start = lines.rfind(b"\n", 0, begins.start()) + 1
        end = lines.find(b"\n", begins.start())
        at = len(lines) if end < 0 else end
        found = _DUMP_LINE.search(lines, max(start, begins.start() - _LONGEST_OFFSET), min(at, start + _LONGEST_LINE))
        if found is not None:
            text = (found[1] or found[2]).decode("ascii")
            plain += bytes.fromhex(text)
            words += b"".join(bytes.fromhex(word)[::-1] for word in text.split())
    return bytes(plain), bytes(words)
