"""What a statement of a binary log makes, alters or drops. Only the start of it is understood, and the few words
further on by which an ALTER TABLE reaches another table; what is not understood is told as such.

A server writes most of them anew, but some stand there as their author sent them: with comments, with names in any
quotes, in any character set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_ANSI_QUOTES = 0x4
_NO_BACKSLASH_ESCAPES = 0x100000
_SPACE = re.compile(r"(?:[ \t-\r]|--(?=[\x00- ]|$)[^\n]*|#[^\n]*|/\*(?!!).*?\*/)+", re.DOTALL)
_VERSION = re.compile(r"/\*!(\d{5,6})?")
_WORD = re.compile(r"[0-9A-Za-z_$\x80-\uffff]+")
_NAMED_KINDS = frozenset({"TABLE", "VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "LIBRARY"})
_KINDS = _NAMED_KINDS | {"INDEX", "DATABASE", "SCHEMA"}
_SKIPPED = frozenset({"OR", "REPLACE", "AGGREGATE", "UNIQUE", "FULLTEXT", "SPATIAL", "ONLINE", "OFFLINE", "IGNORE"})
_NO_WRITES = frozenset(
    {
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "XA",
        "ANALYZE",
        "OPTIMIZE",
        "REPAIR",
        "CHECK",
        "FLUSH",
        "SET",
    }
)
"""SET is that of a password or a role."""
_ELSEWHERE = frozenset({"USER", "ROLE"})
"""What has no database. An agent's user may change its own password."""


class Made(NamedTuple):
    """schema: empty for the session's. name: empty for the database itself. if_so: only where it was there before, or,
    when it is made, where it was not. of_table: of a trigger that is made, its table."""

    what: str
    schema: str
    name: str
    operation: str
    if_so: bool = False
    of_table: str = ""


class NotUnderstood(Exception):  # noqa: N818 - said of a statement
    """Which tables a statement is about can't be told."""


class _Token(NamedTuple):
    """kind: `word`, `name` (quoted), `text` or the character itself."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def understand(statement: str, sql_mode: int, version: int) -> list[Made]:
    """version: the server's, as in `/*!80000`. Raises NotUnderstood."""
    tokens = _Tokens(list(_tokens(statement, sql_mode, version)))
    verb = tokens.next_word()
    if verb in _NO_WRITES:
        return []
    if verb == "TRUNCATE":
        tokens.skip("TABLE")
        return [Made("table", *tokens.name(), "truncate")]
    if verb == "RENAME" and tokens.next_word() in ("TABLE", "TABLES"):
        return list(_renamed(tokens))
    if verb in ("CREATE", "ALTER", "DROP"):
        return list(_defined(tokens, verb.lower()))
    raise NotUnderstood(verb)


def _renamed(tokens: _Tokens) -> Iterator[Made]:
    while True:
        yield Made("table", *tokens.name(), "drop")
        if not tokens.skip("TO"):
            raise NotUnderstood("RENAME")
        yield Made("table", *tokens.name(), "create")
        if not tokens.skip(","):
            return


def _defined(tokens: _Tokens, operation: str) -> Iterator[Made]:
    kind = _kind(tokens)
    if kind in ("TEMPORARY", *_ELSEWHERE):
        return
    if_so = tokens.skip("IF")
    if if_so:
        tokens.skip("NOT")
        if not tokens.skip("EXISTS"):
            raise NotUnderstood("IF")
    if kind in ("DATABASE", "SCHEMA"):
        named = operation != "alter" or tokens.peek().kind == "name" or _is_database(tokens)
        yield Made("database", tokens.simple_name() if named else "", "", operation, if_so)
        return
    first = tokens.name()
    if kind == "INDEX":
        yield Made("table", *_after_on(tokens), "alter")
        return
    if kind == "TRIGGER" and operation == "create":
        yield Made("trigger", *first, operation, if_so, _after_on(tokens)[1])
        return
    yield Made(kind.lower(), *first, operation, if_so)
    if operation == "drop":
        while tokens.skip(","):
            yield Made(kind.lower(), *tokens.name(), operation, if_so)
    elif kind == "TABLE":
        yield from _further(tokens, operation)
    elif operation == "alter" and kind == "EVENT":
        yield from (made._replace(what="event") for made in _further(tokens, operation))


def _after_on(tokens: _Tokens) -> tuple[str, str]:
    while not tokens.skip("ON"):
        tokens.next()
    return tokens.name()


def _is_database(tokens: _Tokens) -> bool:
    """Whether a word is a database's name: ALTER DATABASE can do without."""
    return tokens.peek().word not in {"DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "ENCRYPTION", "READ"}


def _kind(tokens: _Tokens) -> str:
    """The word for what is defined, past all that can stand before it."""
    while True:
        word = tokens.next_word()
        if word in _KINDS or word in _ELSEWHERE or word == "TEMPORARY":
            return word
        if word in ("ALGORITHM", "DEFINER") and tokens.skip("="):
            tokens.next()
            if tokens.skip("@"):
                tokens.next()
            if tokens.skip("("):
                tokens.next()
        elif word == "SQL" and tokens.skip("SECURITY"):
            tokens.next()
        elif word not in _SKIPPED:
            raise NotUnderstood(word)


def _further(tokens: _Tokens, operation: str) -> Iterator[Made]:
    """The other tables that CREATE TABLE or ALTER TABLE reaches."""
    while tokens.left:
        word = tokens.next().word
        if word == "RENAME" and operation == "alter" and tokens.peek().word not in ("COLUMN", "INDEX", "KEY"):
            _ = tokens.skip("TO") or tokens.skip("AS") or tokens.skip("=")
            yield Made("table", *tokens.name(), "create")
        elif word == "EXCHANGE" and tokens.skip("PARTITION"):
            tokens.next()
            if not (tokens.skip("WITH") and tokens.skip("TABLE")):
                raise NotUnderstood("EXCHANGE")
            yield Made("table", *tokens.name(), "change")
        elif word == "UNION":
            tokens.skip("=")
            if tokens.skip("(") and tokens.peek().word not in ("SELECT", "WITH", "TABLE", "VALUES"):
                while not tokens.skip(")"):
                    yield Made("table", *tokens.name(), "change")
                    tokens.skip(",")


class _Tokens:
    def __init__(self, tokens: list[_Token]) -> None:
        self.left = tokens[::-1]

    def peek(self) -> _Token:
        return self.left[-1] if self.left else _Token("end", "")

    def next(self) -> _Token:
        """Raises NotUnderstood at the end."""
        if not self.left:
            raise NotUnderstood("its end")
        return self.left.pop()

    def next_word(self) -> str:
        return self.next().word

    def skip(self, text: str) -> bool:
        """Whether this word or character comes next; then it is passed."""
        found = self.peek().word == text or (self.peek().kind == text)
        if found:
            self.left.pop()
        return found

    def simple_name(self) -> str:
        token = self.next()
        if token.kind not in ("word", "name"):
            raise NotUnderstood(token.text)
        return token.text

    def name(self) -> tuple[str, str]:
        """Schema, if any, and name."""
        first = self.simple_name()
        return (first, self.simple_name()) if self.skip(".") else ("", first)


def _tokens(statement: str, sql_mode: int, version: int) -> Iterator[_Token]:
    """Raises NotUnderstood for what never ends, and for a comment whose content another server would skip."""
    at, inside = 0, False
    quotes = '`"' if sql_mode & _ANSI_QUOTES else "`"
    while at < len(statement):
        if space := _SPACE.match(statement, at):
            at = space.end()
        elif comment := _VERSION.match(statement, at):
            if comment[1] and int(comment[1]) > version:
                raise NotUnderstood("a comment for another version")
            at, inside = comment.end(), True
        elif inside and statement.startswith("*/", at):
            at, inside = at + 2, False
        elif statement.startswith("/*", at):
            raise NotUnderstood("a comment")
        elif statement[at] in "`\"'":
            text, at = _quoted(statement, at, backslashes=statement[at] not in quotes, sql_mode=sql_mode)
            yield _Token("name" if statement[at - 1] in quotes else "text", text)
        elif word := _WORD.match(statement, at):
            at = word.end()
            yield _Token("word", word[0])
        else:
            yield _Token(statement[at], statement[at])
            at += 1


def _quoted(statement: str, at: int, *, backslashes: bool, sql_mode: int) -> tuple[str, int]:
    """What stands between the quotes, and where it ends."""
    quote, found = statement[at], []
    backslashes = backslashes and not sql_mode & _NO_BACKSLASH_ESCAPES
    at += 1
    while at < len(statement):
        one = statement[at]
        if one == "\\" and backslashes:
            found.append(statement[at + 1 : at + 2])
            at += 2
        elif one != quote:
            found.append(one)
            at += 1
        elif statement.startswith(quote * 2, at):
            found.append(quote)
            at += 2
        else:
            return "".join(found), at + 1
    raise NotUnderstood("a quote that never ends")
