"""Patterns of URL paths: `/users/{id}`, `/api/*`, `/files/**`. Routes of a mock and filters of assertions share them.

A pattern is compared with the percent-decoded path, case-sensitively and from end to end:

- `{name}` is one or more characters within a segment, handed out by that name; segments end at `/`;
- `*` is any characters within a segment; a segment that is only `*` needs at least one;
- `**`, as a segment of its own, is any number of segments, also none: `/api/**` matches `/api` and `/api/a/b`.

Matching never backtracks over wildcards, because paths come from the agent: the time is at most the length of the path
times that of the pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WILDCARD = re.compile(r"\*+|\{[^{}]*\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Segment:
    """literals has one item more than wildcards: text and wildcards alternate. A wildcard is (name or "", minimum)."""

    literals: tuple[str, ...]
    wildcards: tuple[tuple[str, int], ...]

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
    """A compiled pattern. runs: the segments between two `**`."""

    text: str
    runs: tuple[tuple[_Segment, ...], ...]
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
