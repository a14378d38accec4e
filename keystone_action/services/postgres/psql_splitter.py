"""Splits scripts for PostgreSQL into statements, and commands of psql's, at the places where `psql` does.

Facts: PostgreSQL, "Lexical Structure", and "psql" on variables and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from keystone_action.services.sql_script import Statement

_DEEPEST = 20
"""Variables that stand for others."""
_WORDS_KEPT = 4
_TOKEN = re.compile(
    rb"""
    (?P<blank>[\s]+)
  | (?P<comment>--)
  | (?P<block>/\*)
  | (?P<word>[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*)
  | (?P<number>[0-9][A-Za-z0-9_.\x80-\xff]*)
  | (?P<quote>['"])
  | (?P<dollar>\$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$)
  | (?P<cast>::|:=)
  | (?P<variable>:(?:'[A-Za-z0-9_\x80-\xff]+'|"[A-Za-z0-9_\x80-\xff]+"|[A-Za-z0-9_\x80-\xff]+))
  | (?P<defined>:\{\?[A-Za-z0-9_\x80-\xff]+\})
  | (?P<open>\()
  | (?P<close>\))
  | (?P<end>;)
  | (?P<command>\\)
  | (?P<other>[^\sA-Za-z0-9_\x80-\xff'"$:();/\\-]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_PREFIXES = {b"e": (b"'", b"E'"), b"b": (b"'", b"'"), b"x": (b"'", b"'"), b"u": (b"&'", b"'")}
"""Of texts in quotes: what follows, and how they end."""
_OF_PSQL = (
    "! ? a bind bind_named c C cd close_prepared connect conninfo copy copyright crosstabview e echo edit ef elif else"
    " encoding endif endpipeline errverbose ev f flush flushrequest g gdesc getenv getresults gexec gset gx h H help"
    " html i if include include_relative ir l list lo_export lo_import lo_list lo_unlink o out p parse password print"
    " prompt pset q qecho quit r reset restrict s sendpipeline set setenv sf startpipeline sv syncpipeline t T timing"
    " unrestrict unset w warn watch write x z"
)
_DESCRIBES = (
    "A Ac Af Ao Ap b c C d D dp e es et eu ew f F Fd Fp Ft g i l L m n o O p P rds rg Rp Rs s S t T u v x X y config"
)
_KNOWN = re.compile(
    rf"(?:{'|'.join(map(re.escape, _OF_PSQL.split()))}|d(?:{'|'.join(_DESCRIBES.split())})?)[S+x]{{0,3}}"
)
_ESCAPE_OR_QUOTE = re.compile(rb"[\\']")
_BLOCK_ENDS = re.compile(rb"/\*|\*/")


@dataclass(frozen=True, slots=True)
class PsqlCommand:
    """A command of psql's: the name, and what follows on its line."""

    name: str
    rest: bytes

    @property
    def shown(self) -> str:
        """As messages call it: by its name only where psql has one of that name. A backslash in a text that is
        misread as the end of one is followed by anything."""
        return f"\\{self.name}" if _KNOWN.fullmatch(self.name) else "\\…"


@dataclass
class StatementSplitter:
    """Takes the lines of one file and gives back statements and commands, in their order.

    standard_strings, variables: may change between two of these.
    """

    variables: dict[bytes, bytes] = field(default_factory=dict)
    standard_strings: bool = True
    opened: int = 0
    """The line in which the statement, or what is quoted in it, begins."""
    _parts: list[bytes] = field(default_factory=list)
    _inside: bytes = b""
    """What ends it: a quote, a dollar quote, `*/`; `E'` for a quote with escapes; empty outside of all these."""
    _depth: int = 0
    """Of nested comments."""
    _brackets: int = 0
    _blocks: int = 0
    """BEGIN and CASE without END, in the body of a routine."""
    _words: list[str] = field(default_factory=list)
    _begun: bool = False
    _line: int = 0
    _expanding: int = 0
    """Variables in the value of which we are."""

    def feed(self, line: bytes, number: int) -> Iterator[Statement | PsqlCommand]:
        """What a line completes."""
        at = start = 0
        while at < len(line):
            if self._inside:
                at = self._go_on(line, at)
                continue
            found = _TOKEN.match(line, at)
            assert found is not None
            kind, at = str(found.lastgroup), found.end()
            if kind == "blank":
                continue
            if kind == "comment":
                at = line.find(b"\n", at) % (len(line) + 1)
            elif kind in ("variable", "defined"):
                self._parts.append(line[start : found.start()])
                yield from self._expand(found[0], number)
                start = at
            elif kind == "command":
                self._parts.append(line[start : found.start()])
                yield _command(line[at:])
                return
            elif kind == "end" and not self._brackets and not self._blocks:
                self._parts.append(line[start : found.start()])
                start = at
                if (statement := self._take()) is not None:
                    yield statement
            else:
                self._note(kind, found[0], number)
                at = self._open(kind, found[0], line, number, at)
        self._parts.append(line[start:])

    def finish(self) -> Statement | None:
        """What is left at the end of a file: psql sends it, too. Raises ValueError where something in it is open."""
        if self._inside:
            what = {b"*/": "a comment", b'"': "a name in quotes"}.get(self._inside, "a text in quotes")
            raise ValueError(f"{what} that begins in line {self.opened:,}")
        if self._begun and (self._brackets or self._blocks):
            what = "a bracket" if self._brackets else "a body (BEGIN … END)"
            raise ValueError(f"{what} of the statement that begins in line {self._line:,}")
        return self._take()

    def _open(self, kind: str, text: bytes, line: bytes, number: int, at: int) -> int:
        """Where to go on after a token that may open something quoted or commented."""
        ends = b""
        if kind == "block":
            ends, self._depth = b"*/", 1
        elif kind == "dollar":
            ends = text
        elif kind == "quote":
            ends = b"E'" if text == b"'" and not self.standard_strings else text
        elif kind == "word" and (prefix := _PREFIXES.get(text.lower())) and line.startswith(prefix[0], at):
            at += len(prefix[0])
            ends = prefix[1]
        if ends:
            self._inside, self.opened = ends, number
        return at

    def _go_on(self, line: bytes, at: int) -> int:
        """Where what is quoted or commented ends, or the line does."""
        if self._inside == b"*/":
            for found in _BLOCK_ENDS.finditer(line, at):
                self._depth += 1 if found[0] == b"/*" else -1
                if not self._depth:
                    self._inside = b""
                    return found.end()
            return len(line)
        if self._inside == b"E'":
            while (special := _ESCAPE_OR_QUOTE.search(line, at)) is not None:
                at = special.end()
                if special[0] == b"\\" or line[at : at + 1] == b"'":
                    at += 1
                else:
                    self._inside = b""
                    return at
            return len(line)
        end = line.find(self._inside, at)
        if end < 0:
            return len(line)
        end += len(self._inside)
        self._inside = b""
        return end

    def _note(self, kind: str, text: bytes, number: int) -> None:
        if not self._begun and kind != "block":
            self._begun, self._line = True, number
        if kind == "open":
            self._brackets += 1
        elif kind == "close":
            self._brackets = max(0, self._brackets - 1)
        elif kind == "word":
            word = text.decode("utf-8", "replace").lower()
            if len(self._words) < _WORDS_KEPT:
                self._words.append(word)
            if word in ("begin", "case", "end") and not self._brackets and self._is_routine():
                if word == "end":
                    self._blocks = max(0, self._blocks - 1)
                elif word == "begin" or self._blocks:
                    self._blocks += 1

    def _is_routine(self) -> bool:
        words = self._words[1:] if self._words[1:3] != ["or", "replace"] else self._words[3:]
        return self._words[:1] == ["create"] and words[:1] in (["function"], ["procedure"])

    def _expand(self, text: bytes, number: int) -> Iterator[Statement | PsqlCommand]:
        """What a variable stands for, in its place; the text itself where it is not one that was set."""
        value = self.variables.get(text[1:].strip(b"'\""))
        if text[1:2] not in (b"'", b'"', b"{") and value is not None:
            if self._expanding == _DEEPEST:
                raise ValueError("a variable stands for itself")
            self._expanding += 1
            yield from self.feed(value, number)
            self._expanding -= 1
            return
        if text.startswith(b":{?"):
            text = b"TRUE" if text[3:-1] in self.variables else b"FALSE"
        elif value is not None and text[1:2] == b"'":
            escapes = b" E" if b"\\" in value else b""
            text = escapes + b"'" + value.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"
        elif value is not None:
            text = b'"' + value.replace(b'"', b'""') + b'"'
        self._note("other", text, number)
        self._parts.append(text)

    def _take(self) -> Statement | None:
        text, words, begun = b"".join(self._parts), tuple(self._words), self._begun
        self._parts, self._words, self._begun = [], [], False
        self._brackets = self._blocks = 0
        return Statement(text, self._line, words) if begun else None


def _command(text: bytes) -> PsqlCommand:
    found = re.match(rb"[^\s\\]*", text)
    assert found is not None
    return PsqlCommand(found[0].decode("utf-8", "replace") or "\\", text[found.end() :])


_ARGUMENT = re.compile(rb"""'(?:[^'\\]|\\.|'')*'|"(?:[^"]|"")*"|[^\s'"`\\]""", re.DOTALL)


def arguments(rest: bytes, variables: dict[bytes, bytes]) -> list[bytes]:
    """The arguments of a command, as psql takes them apart. Raises ValueError for a backtick, which would run a
    program, for a further command, and for a quote that is open."""
    found: list[bytes] = []
    at, begins = 0, True
    while at < len(rest):
        if rest[at : at + 1].isspace():
            at, begins = at + 1, True
            continue
        token = _ARGUMENT.match(rest, at)
        if token is None:
            raise ValueError("programs, further commands and open quotes are not read here")
        at, text = token.end(), token[0]
        if text.startswith(b"'"):
            text = re.sub(rb"\\(.)|''", lambda one: _ESCAPES.get(one[1], one[1]) if one[1] else b"'", text[1:-1])
        elif begins and text == b":" and (name := re.match(rb"[A-Za-z0-9_\x80-\xff]+", rest[at:])) is not None:
            text = variables.get(name[0], b":" + name[0])
            at += name.end()
        found[len(found) if begins else len(found) - 1 :] = [text if begins else found[-1] + text]
        begins = False
    return found


_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}
