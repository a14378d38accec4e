"""Globs and patterns of URL paths, matched in time that grows with the text alone: never backwards over a wildcard.

The text comes from an agent, or from a stranger's pull request. A matcher that tries every way to divide a path among
the wildcards would never come back from a pattern with three of them and a deep tree, and no time limit would reach it.

`Globs` match paths: `*` and `?` stay within one name, `**` as a whole name spans directories, and a name that begins
with a dot is matched only by a pattern part that begins with one, or everywhere with `dot=True`. A `text_pattern` takes
the whole text as one name: `*` crosses everything.

Routes of a mock and filters of assertions have patterns of URL paths: `/users/{id}`, `/api/*`, `/files/**`. They are
compared with the percent-decoded path, case-sensitively and from end to end:

- `{name}` is one or more characters within a segment, handed out by that name; segments end at `/`;
- `*` is any characters within a segment; a segment that is only `*` needs at least one;
- `**`, as a segment of its own, is any number of segments, also none: `/api/**` matches `/api` and `/api/a/b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

_ANY = "."
_GAP, _FOLDERS = "*", "**/"
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "ascii": r"\x00-\x7f",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\r\n\v\f",
    "upper": "A-Z",
    "word": "a-zA-Z0-9_",
    "xdigit": "A-Fa-f0-9",
}


def has_wildcard(pattern: str) -> bool:
    """Whether a pattern is more than a literal path."""
    return any(char in pattern for char in "*?[\\")


def escape(path: str) -> str:
    """The pattern that matches this very path."""
    return re.sub(r"([*?\[\\])", r"\\\1", path)


class Globs:
    """Several patterns of paths, as one automaton that reads names.

    A state is a number whose bits are the places that the patterns have got to; 0 leads nowhere any more. Walk a tree
    with `start`, `step` and `accepts`, or ask a `PathMatcher`.
    """

    def __init__(self, patterns: Iterable[str], *, dot: bool = False) -> None:
        self._dot = dot
        self._literals: dict[str, int] = {}
        self._wildcards: list[tuple[re.Pattern[str], int]] = []
        self._spans = self._ends = starts = place = 0
        by_name: dict[str, int] = {}
        for pattern in patterns:
            starts |= 1 << place
            for name in _names(pattern):
                if name == "**":
                    self._spans |= 1 << place
                else:
                    by_name[name] = by_name.get(name, 0) | 1 << place
                place += 1
            self._ends |= 1 << place
            place += 1
        for name, bits in by_name.items():
            units = list(_units(name, escapes=True))
            if all(kind == "literal" for kind, _ in units):
                text = "".join(char for _, char in units)
                self._literals[text] = self._literals.get(text, 0) | bits
            else:
                self._wildcards.append((_name_pattern(name, dot), bits))
        self.start = self._add_spans(starts)

    def step(self, state: int, name: str, *, spans: bool = True) -> int:
        """The state one name further down; spans: whether `**` may stand for this name."""
        after = (state & self._literals.get(name, 0)) << 1
        for pattern, bits in self._wildcards:
            if state & bits and pattern.match(name):
                after |= (state & bits) << 1
        if spans and (self._dot or not name.startswith(".")):
            after |= state & self._spans
        return self._add_spans(after)

    def accepts(self, state: int) -> bool:
        """Whether the names so far are a path that one of the patterns means."""
        return bool(state & self._ends)

    def _add_spans(self, state: int) -> int:
        return state | (state & self._spans) << 1  # no two `**` follow each other


class PathMatcher:
    """Says of one path after the other whether any of the patterns means it. For one thread at a time: of a path below
    the one before only the rest is read, since a tree of 5,000 levels has paths of 25 million characters."""

    def __init__(self, globs: Globs, *, inside: bool = False) -> None:
        """inside: what lies in a directory that matches matches, too."""
        self._globs = globs
        self._inside = inside
        self._above: list[tuple[str, int, bool]] = [("", globs.start, False)]

    def __call__(self, path: str) -> bool:
        while not path.startswith(self._above[-1][0]):
            self._above.pop()
        read, state, within = self._above[-1]
        *folders, name = path[len(read) :].split("/")
        for folder in folders:
            read += f"{folder}/"
            state = self._globs.step(state, folder)
            within = within or self._globs.accepts(state)
            self._above.append((read, state, within))
        return (self._inside and within) or self._globs.accepts(self._globs.step(state, name))


@lru_cache(maxsize=512)
def text_pattern(glob: str) -> re.Pattern[str]:
    """A whole text: `*` is any characters, `/` among them, `?` one, `[…]` one of these, nothing else is special."""
    return re.compile(_expression(list(_units(glob, escapes=False))), re.DOTALL)


@lru_cache(maxsize=512)
def path_text_pattern(glob: str) -> re.Pattern[str]:
    """As `text_pattern`, but `**/` at the beginning or after `/` is any number of directories, also none."""
    units: list[tuple[str, str]] = []
    for index, part in enumerate(re.split(r"(?:^|(?<=/))(?:\*\*/)+", glob)):
        units += [(_FOLDERS, "")] if index else []
        units += _units(part, escapes=False)
    return re.compile(_expression(units), re.DOTALL)


def label_pattern(glob: str) -> re.Pattern[str]:
    """One part of a name of a host, in which `*` alone is special."""
    units = [(_GAP, "") if char == "*" else ("literal", char) for char in glob]
    return re.compile(_expression(units), re.DOTALL)


def _names(pattern: str) -> Iterator[str]:
    """The parts of a pattern, `**` never twice in a row and never last."""
    unescaped = re.sub(r"\\(.)", lambda found: "/" if found[1] == "/" else found[0], pattern, flags=re.DOTALL)
    parts = re.sub("/+", "/", unescaped).split("/")
    before = ""
    for part in parts:
        if part != "**" or before != "**":
            yield part
        before = part
    if before == "**":
        yield "*"  # what lies in a directory, not itself


@lru_cache(maxsize=1024)
def _name_pattern(name: str, dot: bool) -> re.Pattern[str]:
    units = list(_units(name, escapes=True))
    begins = "(?!\\.{1,2}\\Z)" if dot else "(?!\\.)"
    if units[0] == ("literal", "."):
        begins = ""
    return re.compile(f"(?=.){begins}{_expression(units)}", re.DOTALL)


def _expression(units: list[tuple[str, str]]) -> str:
    """A regular expression that takes each stretch between two gaps at its first place and never gives it back. If a
    text matches at all, it matches so: what a stretch leaves over, the next gap takes."""
    stretches: list[tuple[str, str]] = [("", "")]
    for kind, text in units:
        if kind in (_GAP, _FOLDERS):
            if kind == _GAP and stretches[-1] == (_GAP, ""):
                continue
            stretches.append((kind, ""))
        else:
            gap, before = stretches[-1]
            stretches[-1] = (gap, before + (re.escape(text) if kind == "literal" else text))
    (_, expression), *others = stretches
    gaps = {_GAP: "", _FOLDERS: "(?<![^/])"}
    for gap, stretch in others[:-1]:
        expression += f"(?>.*?{gaps[gap]}{stretch})"
    for gap, stretch in others[-1:]:
        expression += f".*{gaps[gap]}{stretch}"
    return f"{expression}\\Z"


def _units(glob: str, *, escapes: bool) -> Iterator[tuple[str, str]]:
    """`literal` and the character, `set` and an expression for one character, or a gap. escapes: whether `\\` makes the
    next character literal, and whether sets know `[:alpha:]` and the like."""
    place = 0
    while place < len(glob):
        char = glob[place]
        place += 1
        if char == "*":
            yield _GAP, ""
        elif char == "?":
            yield "set", _ANY
        elif char == "\\" and escapes:
            if place < len(glob):
                yield "literal", glob[place]
            place += 1
        elif char == "[" and (found := _set(glob, place, escapes=escapes)) is not None:
            expression, place = found
            yield "set", expression
        else:
            yield "literal", char


def _set(glob: str, place: int, *, escapes: bool) -> tuple[str, int] | None:
    """The expression of a set whose first character is at `place`, and where it ends; None when it has no end."""
    negated = glob[place : place + 1] in ("!", "^") if escapes else glob[place : place + 1] == "!"
    place += negated
    pieces: list[str] = []
    characters: list[str] = []
    first = True
    while place < len(glob) and (first or glob[place] != "]"):
        named = re.compile(r"\[:([a-z]+):\]").match(glob, place) if escapes else None
        if named is not None and named[1] in _CLASSES:
            pieces += [*_ranges(characters), _CLASSES[named[1]]]
            characters = []
            place = named.end()
        else:
            if glob[place] == "\\" and escapes:
                place += 1
                if place >= len(glob):
                    return None
                characters.append(f"\\{glob[place]}")
            else:
                characters.append(glob[place])
            place += 1
        first = False
    if place >= len(glob):
        return None
    inner = "".join((*pieces, *_ranges(characters)))
    if not inner:
        return (_ANY if negated else "(?!)"), place + 1
    return f"[{'^' if negated else ''}{inner}]", place + 1


def _ranges(characters: list[str]) -> Iterator[str]:
    """Single characters and ranges, escaped; a range whose end comes before its start holds nothing."""
    place = 0
    while place < len(characters):
        start = characters[place][-1]
        if characters[place + 1 : place + 2] == ["-"] and place + 2 < len(characters):
            end = characters[place + 2][-1]
            if start <= end:
                yield f"{re.escape(start)}-{re.escape(end)}"
            place += 3
        else:
            yield re.escape(start)
            place += 1


_WILDCARD = re.compile(r"\*+|\{[^{}]*\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Segment:
    """One name of a path pattern: text and wildcards alternate."""

    literals: tuple[str, ...]
    """One item more than wildcards."""
    wildcards: tuple[tuple[str, int], ...]
    """Pairs of (name or "", minimum of characters)."""

    def match(self, text: str) -> tuple[str, ...] | None:
        """What each wildcard stands for, or None. Every inner literal is taken at its leftmost place: if there is a
        match at all, there is one with that choice."""
        if not self.wildcards:
            return () if text == self.literals[0] else None
        if not text.startswith(self.literals[0]):
            return None
        position = len(self.literals[0])
        found: list[str] = []
        for (_, minimum), literal in zip(self.wildcards[:-1], self.literals[1:-1], strict=True):
            place = text.find(literal, position + minimum)
            if place < 0:
                return None
            found.append(text[position:place])
            position = place + len(literal)
        end = len(text) - len(self.literals[-1])
        if end - position < self.wildcards[-1][1] or not text.endswith(self.literals[-1]):
            return None
        return (*found, text[position:end])


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A compiled pattern of a URL path."""

    text: str
    runs: tuple[tuple[_Segment, ...], ...]
    """The segments between two `**`."""
    literal: bool

    def match(self, path: str) -> dict[str, str] | None:
        """The parameters by name, or None when the path does not match."""
        if self.literal:
            return {} if path == self.text else None
        segments = path.split("/")
        first, last = self.runs[0], self.runs[-1]
        if len(self.runs) == 1:
            return _parameters(first, segments) if len(first) == len(segments) else None
        end = len(segments) - len(last)
        if end < len(first):
            return None
        parameters = _parameters(first, segments[: len(first)])
        ending = _parameters(last, segments[end:])
        if parameters is None or ending is None:
            return None
        position = len(first)
        for run in self.runs[1:-1]:
            while True:
                if position + len(run) > end:
                    return None
                inner = _parameters(run, segments[position : position + len(run)])
                if inner is not None:
                    break
                position += 1
            parameters |= inner
            position += len(run)
        return parameters | ending


def _parameters(run: tuple[_Segment, ...], segments: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for segment, text in zip(run, segments, strict=True):
        found = segment.match(text)
        if found is None:
            return None
        for (name, _), value in zip(segment.wildcards, found, strict=True):
            if name:
                parameters[name] = value
    return parameters


def compile_path(text: str) -> PathPattern:
    """Raises ValueError with a sentence that says what was expected."""
    if not text.startswith(("/", "*")):
        raise ValueError(f"expected a path that starts with /, found {text!r}")
    if "?" in text or "#" in text:
        raise ValueError(f"expected a path without ? and # (a query has a field of its own), found {text!r}")
    names: set[str] = set()
    runs: list[tuple[_Segment, ...]] = []
    run: list[_Segment] = []
    for part in text.split("/"):
        if part == "**":
            runs.append(tuple(run))
            run = []
        else:
            run.append(_segment(part, text, names))
    runs.append(tuple(run))
    literal = len(runs) == 1 and not any(segment.wildcards for segment in run)
    return PathPattern(text, tuple(runs), literal)


def _segment(part: str, text: str, names: set[str]) -> _Segment:
    literals: list[str] = []
    wildcards: list[tuple[str, int]] = []
    position = 0
    for match in _WILDCARD.finditer(part):
        literals.append(part[position : match.start()])
        position = match.end()
        if match[0].startswith("{"):
            name = match[0][1:-1]
            if not _NAME.fullmatch(name):
                raise ValueError(f"expected a name of letters, digits and _ in {match[0]!r} of {text!r}")
            if name in names:
                raise ValueError(f"the name {name!r} is used twice in {text!r}")
            names.add(name)
            wildcards.append((name, 1))
        elif match[0] == "*":
            wildcards.append(("", 1 if part == "*" else 0))
        else:
            raise ValueError(f"expected ** as a whole segment, like /files/**, found {part!r} in {text!r}")
    literals.append(part[position:])
    if any(brace in literal for literal in literals for brace in "{}"):
        raise ValueError(f"{{ and }} don't pair up in {text!r}")
    if "" in literals[1:-1]:
        raise ValueError(f"expected text between two wildcards, found {part!r} in {text!r}")
    return _Segment(tuple(literals), tuple(wildcards))
