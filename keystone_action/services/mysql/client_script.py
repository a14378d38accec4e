"""Scripts for MySQL and MariaDB, split and run as their clients do it, without a client: it would run programs that a
script names.

What `mysqldump` and `mariadb-dump` write is read (`DELIMITER`, comments with a version, triggers and routines with who
defined them), and `USE` and `source` of people's own. Every other command of the client's is an error. The text goes to
the server as it is, byte by byte. Facts: MySQL, "mysql Client Commands" and "Comments".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from keystone_action.services.mysql.server import quote_name
from keystone_action.services.sql_script import (
    PassedOver,
    ScriptError,
    ScriptLines,
    SqlScript,
    Statement,
    without_values,
)

_WORDS_KEPT = 1
_CLIENT = (
    "charset clear connect edit ego exit go help nopager notee nowarning pager print prompt query_attributes quit"
    " rehash resetconnection sandbox ssl_session_data_print status system tee warnings"
)
_COMMANDS = frozenset(_CLIENT.split())
_NAMED = re.compile(rb"\s*(delimiter|source)(?:[ \t\r\n]+|$)(.*)", re.IGNORECASE | re.DOTALL)
_FIRST_WORD = re.compile(rb"\s*(?:\\[^\s]|([A-Za-z_]+))[ \t]*")
_TOKEN = re.compile(
    rb"""
    (?P<blank>\s+)
  | (?P<version>/\*M?!)
  | (?P<hint>/\*\+)
  | (?P<block>/\*)
  | (?P<line>\#|--(?=[\s\x00]|$))
  | (?P<quote>['"`])
  | (?P<word>[A-Za-z0-9_$\x80-\xff]+)
  | (?P<command>\\)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_MARKS = re.compile(rb"/\*|\*/")  # within a comment too, the star of `/*` cannot be that of `*/`


@dataclass(frozen=True, slots=True)
class ClientCommand:
    """A command of the client's: `delimiter`, `source`, or the name of one that is not run here."""

    name: str
    rest: bytes


@dataclass
class ClientSplitter:
    """Takes the lines of one file and gives back statements and commands, in their order. escapes: whether a backslash
    in a text in quotes escapes what follows; may change between two of these."""

    delimiter: bytes = b";"
    escapes: bool = True
    opened: int = 0
    """The line in which what is quoted begins."""
    _parts: list[bytes] = field(default_factory=list)
    _inside: bytes = b""
    _words: list[str] = field(default_factory=list)
    _begun: bool = False
    _line: int = 0

    def feed(self, line: bytes, number: int) -> Iterator[Statement | ClientCommand]:
        """What a line completes."""
        at = 0
        if not self._begun and not self._inside and (command := self._command(line)) is not None:
            yield command
            return
        while at < len(line):
            if self._inside:
                at = self._go_on(line, at)
            elif line.startswith(self.delimiter, at):
                at += len(self.delimiter)
                if (statement := self._take()) is not None:
                    yield statement
                if (named := _NAMED.match(line, at)) is not None and named[1].lower() == b"delimiter":
                    yield ClientCommand("delimiter", named[2])
                    return
            elif self._words and (plain := _plain(self.delimiter, self.escapes).match(line, at)):
                self._parts.append(plain[0])
                at = plain.end()
            else:
                found = _TOKEN.match(line, at)
                assert found is not None
                kind = str(found.lastgroup)
                if line.startswith(
                    b"\\-", at
                ):  # the sandbox that dumps of MariaDB ask for: nothing outside is run here
                    at += 2
                elif kind == "command" and line[at + 1 : at + 2] != b"N":
                    yield ClientCommand(f"\\{line[at + 1 : at + 2].decode('latin-1')}", line[at + 2 :])
                    return
                else:
                    at = self._token(kind, found, line, number)

    def _command(self, line: bytes) -> ClientCommand | None:
        """Of a line on which a statement may begin."""
        named = _NAMED.fullmatch(line)
        if named is not None and (named[1].lower() == b"delimiter" or self.delimiter not in line.rstrip()[:-1]):
            return ClientCommand(named[1].lower().decode(), named[2])
        first = _FIRST_WORD.match(line)
        if first is None or first[1] is None or first[1].lower().decode() not in _COMMANDS:
            return None
        return ClientCommand(first[1].lower().decode(), line[first.end() :])

    def _token(self, kind: str, found: re.Match[bytes], line: bytes, number: int) -> int:
        """Where to go on after one."""
        text, at = found[0], found.end()
        if kind == "line" or (text == b"-" and not self._begun and line.startswith(b"--", found.start())):
            return len(line) - line.endswith(b"\n")
        if kind in ("block", "hint"):
            self._inside, self.opened = (b"*/" if kind == "block" else b"+*/"), number
            if kind == "hint":
                self._parts.append(text)
            return at
        if kind == "other" and self.delimiter[:1] != text:
            while at < len(line) and line[at : at + 1] in b",()=+.<>@" and line[at : at + 1] != self.delimiter[:1]:
                at += 1
        if kind == "word" and (end := line.find(self.delimiter, found.start(), at)) >= 0:
            at = end  # `go$$`: what could be a part of a name ends a statement
        self._parts.append(line[found.start() : at])
        if kind != "blank":
            if not self._begun:
                self._begun, self._line = True, number
            if kind == "word" and len(self._words) < _WORDS_KEPT:
                self._words.append(text.decode("utf-8", "replace").lower())
            elif kind == "quote":
                self._inside, self.opened = text, number
        return at

    def _go_on(self, line: bytes, at: int) -> int:
        """Where what is quoted or commented ends, or the line does. Comments are left out, hints are not."""
        if self._inside.endswith(b"*/"):
            end = next((one.end() for one in _MARKS.finditer(line, at) if one[0] == b"*/"), None)
            if self._inside == b"+*/":
                self._parts.append(line[at:end])
            elif end is not None and self._parts and not self._parts[-1][-1:].isspace():
                self._parts.append(b" ")
            if end is not None:
                self._inside = b""
            return len(line) if end is None else end
        start = at
        escapes = self.escapes and self._inside != b"`"
        pattern = _ENDS[self._inside + (b"\\" if escapes else b"")]
        while (special := pattern.search(line, at)) is not None:
            at = special.end()
            if special[0] == b"\\":
                at += 1
            else:
                self._inside = b""
                break
        else:
            at = len(line)
        self._parts.append(line[start:at])
        return at

    def finish(self) -> Statement | None:
        """What is left at the end of a file: the client sends it, too. Raises ValueError where something is open."""
        if self._inside:
            what = "a comment" if self._inside.endswith(b"*/") else "a text in quotes"
            raise ValueError(f"{what} that begins in line {self.opened:,}")
        return self._take()

    def _take(self) -> Statement | None:
        text, words, begun = b"".join(self._parts).strip(), tuple(self._words), self._begun
        self._parts, self._words, self._begun = [], [], False
        return Statement(text, self._line, words) if begun else None


@lru_cache(maxsize=16)
def _plain(delimiter: bytes, escapes: bool) -> re.Pattern[bytes]:
    """Of a statement that has begun: all up to what may be a comment, the delimiter, a command or a text that does not
    end in this line. A line of a dump may have a million values."""
    first = delimiter[:1]
    texts = [
        quote
        + (rb"[^%b\\]*+(?:\\[\s\S][^%b\\]*+)*" % (quote, quote) if escapes and quote != b"`" else b"[^%b]*+" % quote)
        + quote
        for quote in (b"'", b'"', b"`")
        if quote != first
    ]
    # So many at a time: what a repeated group may go back to is kept. (A possessive group is wrong before 3.11.5.)
    return re.compile(rb"(?:[^'\"`\\#/*%b-]++|%b){1,1000}" % (re.escape(first), b"|".join(texts)))


_ENDS = {
    quote + escape: re.compile(b"[" + quote + (rb"\\" if escape else b"") + b"]")
    for quote in (b"'", b'"', b"`")
    for escape in (b"", b"\\")
}
_USE = re.compile(r"(?i)use\s+(?P<name>`(?:[^`]|``)+`|[^\s`;]+)\s*")
_OF_DATABASE = re.compile(
    rb"""(?ix)(?P<lead>\s*(?:/\*M?!\d*\s*)?)(?P<what>create(?P<anew>\s+or\s+replace)?|drop|alter)
    \s+(?:database|schema)\s+
    (?P<only>(?:/\*M?!\d*\s*)?if\s+(?:not\s+)?exists(?:\s*\*/)?\s*)?(?P<name>`(?:[^`]|``)+`|[^\s`;*/]+)"""
)
_OF_REPLICATION = re.compile(rb"(?i)\s*set\s+@@(?:global\.gtid_purged|session\.sql_log_bin)\b")
_IS_VERSIONED = re.compile(rb"\s*/\*M?!\d*\s*")
_DEFINER = re.compile(
    rb"""(?ix)
    (?P<before>\s*(?:/\*M?!\d*\s*)?(?:create|alter)\b[\s\w=*/!]{0,200}?)
    \bdefiner\s*=\s*(?P<user>(?:`[^`]*`|'[^']*'|"[^"]*"|[\w$%.-]+)(?:\s*@\s*(?:`[^`]*`|'[^']*'|"[^"]*"|[\w$%.:-]+))?
    |current_user(?:\(\))?|current_role)
    """
)
_NOT_ALLOWED = frozenset({1227, 1449})
"""A right is needed (to make others its definer), or they are not here."""
_MISSING_ROLE = frozenset({1133, 1410})
_RIGHT = re.compile(r"(?is)(?:grant|revoke)\s.*\s(?:to|from)\s+([^\s,]+)(?:\s+with\s+grant\s+option)?")
_NAMES_IN = frozenset(
    {1007, 1008, 1044, 1045, 1046, 1049, 1050, 1051, 1061, 1115, 1142, 1193, 1227, 1231, 1273, 1286, 1304, 1305, 1347,
     1356, 1359, 1370, 1396, 1419, 1449, 3675}
)  # fmt: skip
"""Errors in which what looks like a name is one."""
_NO_TABLE = 1146
_DEFINES = frozenset({"create", "alter", "drop", "grant", "revoke", "set", "use", "lock", "unlock"})
_OWN_WORDS = 1644
_LOCAL_FILES = frozenset({1148, 3948, 4166})
_NOT_IN_ENCODING = re.compile("Incorrect string value|Invalid utf8")
_ENCODING = "If it is not UTF-8, save it as UTF-8, or let the file begin with a SET NAMES of what it is in."
_SYNTAX = 1064
_LOST = frozenset({0, 2006, 2013, 1927, 4031, 1053, 1317})


@dataclass
class ClientScript:
    """One run of a script. connect: opens a session, each statement committed. databases: the names by which a script
    may mean `database`, the one that it runs in."""

    script: SqlScript
    connect: Callable[[], Any]
    database: str
    databases: Collection[str] = ()
    passed_over: PassedOver = field(default_factory=PassedOver)
    _session: Any = None
    _delimiter: bytes = b";"
    _is_dropped: bool = False

    def run(self) -> tuple[str, ...]:
        """To its end; returns notices. Raises ScriptError at the first failure, pymysql's errors without a way in."""
        self._session = self.connect()
        try:
            with self.script.lines() as lines:
                self._run(lines)
            if self._session.server_status & _IN_TRANSACTION:
                raise ScriptError(
                    f"{self.script.name}: it ends within a transaction that it began, and nothing of that is kept",
                    "It was cut off, or lacks a COMMIT.",
                )
            if self._is_dropped and not self._is_there():
                raise ScriptError(
                    f"{self.script.name}: it drops the database, and does not make it again",
                    "It was cut off, or lacks a CREATE DATABASE.",
                )
        finally:
            self._session._force_close()  # without a goodbye, for which a lost server would be waited for
        return self.passed_over.notices(self.script)

    def _run(self, lines: ScriptLines) -> None:
        splitter = ClientSplitter(self._delimiter, self._escapes)
        for line in lines:
            for found in splitter.feed(line, lines.line):
                if isinstance(found, ClientCommand):
                    self._command(found, lines)
                    splitter.delimiter = self._delimiter
                else:
                    self._execute(found, lines)
                splitter.escapes = self._escapes
        try:
            rest = splitter.finish()
        except ValueError as problem:
            raise ScriptError(
                f"{lines.at()}: the file ends within {problem}", "It was cut off, or a quote is missing."
            ) from None
        if rest is not None:
            with lines.last_statement():
                self._execute(rest, lines)
        self.passed_over.end(lines)

    @property
    def _escapes(self) -> bool:
        return not self._session.server_status & _NO_BACKSLASH_ESCAPES

    def _command(self, command: ClientCommand, lines: ScriptLines) -> None:
        words = command.rest.split()
        if command.name == "delimiter":
            if not words or b"\\" in words[0]:
                raise ScriptError(
                    f"{lines.at()}: DELIMITER needs what ends statements from now on, without a backslash"
                )
            self._delimiter = words[0]
        elif command.name in ("source", "\\."):
            text = command.rest.strip().decode("utf-8", "surrogateescape").removesuffix(";").strip()
            with lines.include(text) as further:
                self._run(further)
        else:
            raise ScriptError(
                f"{lines.at()}: {command.name} is a command of the client's that is not run here",
                "Of these only DELIMITER, USE and source are.",
            )

    def _execute(self, statement: Statement, lines: ScriptLines) -> None:
        import pymysql

        try:
            self._send(statement)
        except UnicodeError:
            raise ScriptError(f"{lines.at(statement.line)}: {statement.shown}: its answer can't be read") from None
        except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
            message = mysql_message(error, statement)
            lost = bool(error.args) and error.args[0] in _LOST
            advice = _ENCODING if _NOT_IN_ENCODING.match(message) else ""
            other = _USE.fullmatch(statement.plain) or _OF_DATABASE.match(statement.text)
            found: str | bytes = other["name"] if other is not None else ""
            name = _name(found if isinstance(found, str) else found.decode("utf-8", "replace"))
            if name and name not in self.databases:
                advice = (
                    "Dump one database, without --databases, or let the service have its name"
                    f" (`env: {{MYSQL_DATABASE: {name}}}`)."
                )
            raise ScriptError(f"{lines.at(statement.line)}: {statement.shown}: {message}", advice, lost=lost) from None

    def _send(self, statement: Statement) -> None:
        import pymysql

        use = _USE.fullmatch(statement.plain) if statement.words[:1] == ("use",) else None
        if use is not None:
            name = _name(use["name"])
            self._session.select_db(self.database if name in self.databases else name)
            return
        of_database = _OF_DATABASE.match(statement.text)
        if of_database is not None and _name(of_database["name"].decode("utf-8", "replace")) in self.databases:
            self._send_of_own(of_database, statement.text[of_database.end() :])
            return
        try:
            self._query(statement.text)
        except pymysql.err.MySQLError as error:
            number = error.args[0] if error.args else 0
            definer = _DEFINER.match(statement.text)
            if number in _NOT_ALLOWED and definer is not None:
                self._query(definer["before"] + statement.text[definer.end() :])
                self.passed_over.add("definers", definer["user"].decode("utf-8", "replace"))
            elif number in _NOT_ALLOWED and _OF_REPLICATION.match(statement.text):
                self.passed_over.add("settings of replication")
            elif number in _MISSING_ROLE and (right := _RIGHT.fullmatch(statement.plain)) is not None:
                self.passed_over.add("rights", right[1])
            else:
                raise

    def _send_of_own(self, found: re.Match[bytes], rest: bytes) -> None:
        """What makes, drops or changes the script's database does so to the cell's, whatever the names of both. One
        that is there already takes on the options of the new one. found: up to the name."""
        import pymysql

        own, before = quote_name(self.database).encode(), found.string[: found.start("name")]
        if found["anew"] or found["what"].lower() != b"create":
            self._query(before + own + rest)
            self._is_dropped |= found["what"].lower() == b"drop"
            return
        was_there = self._is_there()
        self._query(before + (b"" if found["only"] else b"IF NOT EXISTS ") + own + rest)
        if was_there:
            if not found["only"]:
                self.passed_over.add("statements that make the database, which is there")
            try:
                self._query(found["lead"] + b"ALTER DATABASE " + own + rest)
            except pymysql.err.MySQLError as error:
                if error.args[0] != _SYNTAX:  # it has no options: that it has no other fault is known by now
                    raise

    def _is_there(self) -> bool:
        with self._session.cursor() as cursor:
            cursor.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self.database,))
            return cursor.fetchone() is not None

    def _query(self, text: bytes) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(text)
            while cursor.nextset():
                pass


def _name(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def script_session(keywords: Mapping[str, Any]) -> Any:
    """A session for a script. keywords: of `pymysql.connect`. Raises pymysql's errors."""
    import pymysql

    own = {"autocommit": True, "local_infile": False, "use_unicode": False, "charset": "utf8mb4"}
    return pymysql.connect(**{**keywords, **own})


_IN_TRANSACTION = 1
_NO_BACKSLASH_ESCAPES = 512


def mysql_message(error: Exception, statement: Statement) -> str:
    """What a server says of a statement, without values."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number in _LOCAL_FILES or (isinstance(error, RuntimeError) and "LOAD_LOCAL" in str(error)):
        return "LOAD DATA LOCAL is not run here: it reads files of this machine"
    if number in _LOST or len(error.args) < 2:
        return f"the connection was lost ({number or type(error).__name__})"
    if number == _OWN_WORDS:  # of SIGNAL, an author's own words
        return f"a trigger or routine refused it (error {number})"
    defines = bool(statement.words) and statement.words[0] in _DEFINES
    names = number == _NO_TABLE or (defines and number in _NAMES_IN)
    message = " ".join(str(error.args[1]).split())
    return f"{without_values(message, statement.head, names=names)} (error {number})"
