"""Scripts for PostgreSQL, split and run as `psql` does it, without `psql`: it would run programs that a script names.

What `pg_dump` writes is read (`COPY … FROM stdin` with its rows, `\\restrict`), and what people write by hand: `\\i`,
`\\ir`, `\\copy … from`, `\\set`, `\\connect` to this database. Every other command of psql's is an error. The text goes
to the server as it is, byte by byte, in the encoding that the script sets. Facts: PostgreSQL, "psql".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keystone_action.services.postgres.psql_splitter import PsqlCommand, StatementSplitter, arguments
from keystone_action.services.sql_script import (
    PassedOver,
    ScriptError,
    ScriptLines,
    SqlScript,
    Statement,
    begins,
    without_values,
)

if TYPE_CHECKING:
    import psycopg

_COPY = re.compile(
    r"""(?is)\s*(?P<table>(?:"[^"]*"|[^\s"'(;])+)\s*(?:(?P<columns>\([^)]*\))\s*)?\bfrom\s+
    (?P<file>'(?:[^']|'')*'(?!')|[^\s'";]+(?![^\s'";]))(?P<rest>[^;]*)(?:;\s*)?""",
    re.VERBOSE,
)
_INCLUDES = {"i": False, "include": False, "ir": True, "include_relative": True}
_FIXED = {b"AUTOCOMMIT": b"on", b"SINGLELINE": b"off", b"ON_ERROR_ROLLBACK": b"off"}
"""Variables by which psql works otherwise, and the only value that is taken."""
_UNSAFE = frozenset({"SJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "UHC", "JOHAB", "GB18030"})
"""Encodings in which a byte that looks like a backslash or a quote may be part of a letter."""
_MISSING_ROLE = "42704"
_OF_OTHERS = ("must be able to SET ROLE", "must be member of role")
_REFUSED = frozenset({"42501", "42704"})
_NO_EXTENSION = frozenset({"0A000", "58P01"})
_NOT_IN_ENCODING = "22021"
_NO_TABLE = "42P01"
_NAMES_IN = frozenset({"42704", "3F000", "42P07", "42710", "42P06", "3D000", "42501", "0A000", "58P01"})
_DEFINES = frozenset({"create", "alter", "drop", "comment", "grant", "revoke", "reset", "set"})


@dataclass
class PsqlScript:
    """One run of a script. connect: opens a session, each statement its own transaction. databases: the names by which
    a script may mean the one that it runs in. lacking: what to do about an extension that the server does not have."""

    script: SqlScript
    connect: Callable[[], psycopg.Connection[Any]]
    databases: Collection[str]
    lacking: str = ""
    passed_over: PassedOver = field(default_factory=PassedOver)
    _session: Any = None
    _variables: dict[bytes, bytes] = field(default_factory=dict)
    _key: bytes | None = None
    """While commands are restricted: what lifts that."""

    def run(self) -> tuple[str, ...]:
        """To its end; returns notices. Raises ScriptError at the first failure, psycopg.Error without a way in."""
        from psycopg.pq import TransactionStatus

        self._session = self.connect()
        try:
            with self.script.lines() as lines:
                self._run(lines)
            if self._session.info.transaction_status != TransactionStatus.IDLE:
                raise ScriptError(
                    f"{self.script.name}: it ends within a transaction that it began, and nothing of that is kept",
                    "It was cut off, or lacks a COMMIT.",
                )
        finally:
            self._session.close()
        return self.passed_over.notices(self.script)

    def _run(self, lines: ScriptLines) -> None:
        splitter = StatementSplitter(self._variables)
        try:
            for line in lines:
                splitter.standard_strings = self._standard_strings
                for found in splitter.feed(line, lines.line):
                    if isinstance(found, PsqlCommand):
                        self._command(found, lines)
                    else:
                        self._execute(found, lines)
                    splitter.standard_strings = self._standard_strings
        except ValueError as problem:
            raise ScriptError(f"{lines.at()}: {problem}") from None
        try:
            rest = splitter.finish()
        except ValueError as problem:
            raise ScriptError(
                f"{lines.at()}: the file ends within {problem}", "It was cut off, or a quote or bracket is missing."
            ) from None
        if rest is not None:
            with lines.last_statement():
                self._execute(rest, lines)
        self.passed_over.end(lines)

    @property
    def _standard_strings(self) -> bool:
        return bool(self._session.pgconn.parameter_status(b"standard_conforming_strings") != b"off")

    def _command(self, command: PsqlCommand, lines: ScriptLines) -> None:
        name = command.name
        if self._key is not None and name != "unrestrict":
            raise ScriptError(f"{lines.at()}: {command.shown} is not allowed between \\restrict and \\unrestrict")
        if name == "copy":
            self._copy_file(command.rest, lines)
            return
        if name not in (*_INCLUDES, "restrict", "unrestrict", "c", "connect", "set", "unset"):
            raise ScriptError(
                f"{lines.at()}: {command.shown} is a command of psql's that is not run here",
                "Of these only \\copy … from, \\i, \\ir, \\set, \\unset, \\connect, \\restrict and \\unrestrict are.",
            )
        given = arguments(command.rest, self._variables)
        if name in _INCLUDES:
            text = (given or [b""])[0].rstrip(b"; \t").decode("utf-8", "surrogateescape")
            with lines.include(text, from_here=_INCLUDES[name]) as further:
                self._run(further)
        elif name in ("restrict", "unrestrict"):
            self._restrict(name, given, lines)
        elif name in ("set", "unset"):
            self._set(name, given, lines)
        else:
            self._reconnect(given, lines)

    def _restrict(self, name: str, given: list[bytes], lines: ScriptLines) -> None:
        if len(given) != 1 or (name == "unrestrict" and given[0] != self._key):
            raise ScriptError(f"{lines.at()}: \\{name} needs the key that lifts the restriction")
        self._key = given[0] if name == "restrict" else None

    def _set(self, name: str, given: list[bytes], lines: ScriptLines) -> None:
        if not given:
            raise ScriptError(f"{lines.at()}: \\{name} needs the name of a variable")
        variable, value = given[0], b"".join(given[1:])
        wanted = _FIXED.get(variable)
        if name == "set" and wanted is not None and value.lower() != wanted:
            raise ScriptError(f"{lines.at()}: \\set {variable.decode()} other than {wanted.decode()} is not supported")
        if name == "set":
            self._variables[variable] = value
        else:
            self._variables.pop(variable, None)

    def _reconnect(self, given: list[bytes], lines: ScriptLines) -> None:
        from psycopg.pq import TransactionStatus

        words = [one.strip(b'"').decode("utf-8", "replace") for one in given if not one.startswith(b"-reuse-previous")]
        name = words[0] if words else "-"
        named = re.fullmatch(r"dbname='((?:[^'\\]|\\.)*)'", name)
        name = re.sub(r"\\(.)", r"\1", named[1]) if named is not None else name
        if (name != "-" and name not in self.databases) or any(word != "-" for word in words[1:]):
            raise ScriptError(
                f"{lines.at()}: \\connect leads to another database or user, where nothing is run",
                self._advice_of(name if name != "-" else ""),
            )
        if self._session.info.transaction_status != TransactionStatus.IDLE:
            raise ScriptError(
                f"{lines.at()}: \\connect ends a transaction that is open, and nothing of that would be kept",
                "Put a COMMIT before it.",
            )
        self._session.close()
        self._session = self.connect()

    def _advice_of(self, database: str) -> str:
        """What to do about a dump of another database than the service's."""
        named = f", or let the service have its name (`env: {{POSTGRES_DB: {database}}}`)" if database else ""
        return f"Dump one database, without --create{named}."

    def _copy_file(self, rest: bytes, lines: ScriptLines) -> None:
        found = _COPY.fullmatch(rest.decode("utf-8", "surrogateescape"))
        if found is None or found["file"].lower() in ("program", "pstdin"):
            raise ScriptError(
                f"{lines.at()}: of \\copy only `\\copy TABLE from FILE` is run here, and never a program",
            )
        text = f"COPY {found['table']} {found['columns'] or ''} FROM STDIN {found['rest']}"
        statement = Statement(text.encode("utf-8", "surrogateescape"), lines.line, ("copy",))
        file = found["file"]
        if file.lower() == "stdin":
            self._execute(statement, lines)
            return
        if file.startswith("'"):
            file = file[1:-1].replace("''", "'")
        with lines.include(file, rows=True) as further:
            self._send(statement, lines, lambda: _whole(further), further)

    def _execute(self, statement: Statement, lines: ScriptLines) -> None:
        if statement.words[:1] == ("copy",):
            self._send(statement, lines, lines.rows, lines)
            return
        found = _of_database(statement)
        if found is not None and _name(found["name"].decode("utf-8", "replace")) in self.databases:
            if statement.words[0] in ("create", "drop"):
                self.passed_over.add("statements that make or drop the database")
                return
            # It may have another name.
            own = b'"' + self._session.info.dbname.encode().replace(b'"', b'""') + b'"'
            statement = replace(
                statement, text=statement.text[: found.start("name")] + own + statement.text[found.end() :]
            )
        with self._named(statement, lines):
            if not self._spared(statement):
                self._session.execute(statement.text, prepare=False)
        if statement.words[:1] in (("set",), ("select",)) and self._session.pgconn.parameter_status(
            b"client_encoding"
        ).decode() in (_UNSAFE):
            raise ScriptError(f"{lines.at(statement.line)}: this client_encoding is not read here", "Dump it as UTF8.")

    def _send(
        self, statement: Statement, lines: ScriptLines, rows: Callable[[], Iterator[bytes]], source: ScriptLines
    ) -> None:
        from psycopg import ProgrammingError
        from psycopg.pq import ExecStatus

        first = source.line + 1
        with self._named(statement, lines, source, first), self._session.cursor() as cursor:
            try:
                with cursor.copy(statement.text) as copy:
                    result = cursor.pgresult
                    if result is not None and result.status == ExecStatus.COPY_IN:
                        for piece in rows():
                            copy.write(piece)
                    else:
                        for _ in copy:
                            pass
            except ProgrammingError as error:
                if error.sqlstate is not None:
                    raise
                # The server has read or written a file of its own, where its rights allowed that.

    @contextmanager
    def _named(
        self, statement: Statement, lines: ScriptLines, source: ScriptLines | None = None, first: int = 0
    ) -> Iterator[None]:
        """Turns what psycopg raises into a ScriptError that names the place."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            raise self._failure(error, statement, lines, source, first) from None

    def _failure(
        self, error: Any, statement: Statement, lines: ScriptLines, source: ScriptLines | None, first: int
    ) -> ScriptError:
        row = re.match(r"COPY .{1,200}?, line (\d+)", error.diag.context or "", re.DOTALL)
        position = error.diag.statement_position
        if source is not None and row is not None:
            place = source.at(first + int(row[1]) - 1)
        elif position:
            before = statement.text.decode("utf-8", "replace")[: int(position) - 1]
            blank = len(statement.text[: begins(statement.text)].decode("utf-8", "replace"))
            place = lines.at(statement.line + before.count("\n", min(blank, len(before))))
        else:
            place = lines.at(statement.line)
        advice = ""
        other = _of_database(statement)
        if other is not None and statement.words[0] in ("create", "drop"):
            advice = self._advice_of(_name(other["name"].decode("utf-8", "replace")))
        elif statement.words[:2] in (("create", "role"), ("create", "user"), ("alter", "role"), ("drop", "role")):
            advice = "A fixture makes no roles: dump one database with pg_dump, without roles."
        elif error.sqlstate in _NO_EXTENSION and statement.words[:2] == ("create", "extension"):
            advice = self.lacking
        elif error.sqlstate == _NOT_IN_ENCODING:
            advice = "Save the file as UTF-8, or let it begin with a SET client_encoding of what it is in."
        problem = f"{place}: {statement.shown}: {postgres_message(error, statement)}"
        return ScriptError(problem, advice, lost=self._session.closed)

    def _spared(self, statement: Statement) -> bool:
        """Runs a statement that may be passed over; False where it is of another kind, and was not run."""
        import psycopg
        from psycopg.pq import TransactionStatus

        on_extension = statement.words[:3] == ("comment", "on", "extension")
        concerned = role_passed_over(statement) if statement.words[:1] and not on_extension else None
        if not on_extension and concerned is None:
            return False
        session = self._session
        within = session.info.transaction_status == TransactionStatus.INTRANS
        if within:
            session.execute("SAVEPOINT keystone_passed_over")
        try:
            session.execute(statement.text, prepare=False)
        except psycopg.Error as error:
            if error.sqlstate not in _REFUSED or session.closed:
                raise
            if within:
                session.execute("ROLLBACK TO SAVEPOINT keystone_passed_over")
            if on_extension:
                self.passed_over.add("comments on extensions")
            elif concerned is not None and _is_of_role(error) and (missing := self._missing(concerned[1])):
                self.passed_over.add(concerned[0], *missing)
            elif concerned is not None and str(error.diag.message_primary).startswith(_OF_OTHERS):
                self.passed_over.add(concerned[0], *concerned[1])  # a superuser's, such as `postgres`
            else:
                raise
        if within:
            session.execute("RELEASE SAVEPOINT keystone_passed_over")
        return True

    def _missing(self, roles: Collection[str]) -> list[str]:
        known = "SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY(%s::pg_catalog.text[])"
        there = {row[0] for row in self._session.execute(known, ([*roles],), prepare=False).fetchall()}
        return [role for role in roles if role not in there]


def _is_of_role(error: Any) -> bool:
    """Whether it may say that a role is not there, and not a type or a language. In other languages nobody knows."""
    english = error.diag.severity_nonlocalized in (None, error.diag.severity)
    said_of_role = str(error.diag.message_primary).startswith('role "')
    return error.sqlstate == _MISSING_ROLE and (said_of_role or not english)


def postgres_message(error: Any, statement: Statement) -> str:
    """What a server says of a statement, without values, DETAIL and CONTEXT."""
    name, diag = type(error).__name__, error.diag
    if error.sqlstate is None or diag.message_primary is None:
        return f"the connection was lost ({name})"
    if diag.severity_nonlocalized not in (None, diag.severity) or error.sqlstate.startswith("P0"):
        # In another language, or an author's own words: nobody knows where values stand.
        return f"{name} ({error.sqlstate})"
    known = " ".join((statement.head, *filter(None, (diag.table_name, diag.column_name, diag.constraint_name))))
    defines = bool(statement.words) and statement.words[0] in _DEFINES
    names = error.sqlstate == _NO_TABLE or (defines and error.sqlstate in _NAMES_IN)
    message = diag.message_primary.partition(": 0x")[0]
    shown = without_values(" ".join(message.split()), known, names=names)
    return f"{shown} ({name})" if error.sqlstate.startswith("22") else shown


def _whole(lines: ScriptLines) -> Iterator[bytes]:
    """What `\\copy` sends of a file: all of it, up to a line that is `\\.`."""
    kept: list[bytes] = []
    for line in lines:
        if line.rstrip(b"\r\n") == b"\\.":
            break
        kept.append(line)
        if len(kept) >= 1_000:
            yield b"".join(kept)
            kept.clear()
    yield b"".join(kept)


_OF_DATABASE = re.compile(
    rb"""(?ix)
    (?:(?:create|drop|alter|comment\s+on)\s+|(?:grant|revoke)\s[\w\s,]{1,99}\son\s+)database\s+(?:if\s+exists\s+)?
    (?P<name>"(?:[^"]|"")+"|[\w$\x80-\xff]+)(?=\s|\Z)"""
)


def _of_database(statement: Statement) -> re.Match[bytes] | None:
    """The beginning of a statement about a whole database, up to its name."""
    if statement.words[:1] not in _ABOUT_DATABASES:
        return None
    return _OF_DATABASE.match(statement.text, begins(statement.text))


_ABOUT_DATABASES = frozenset((word,) for word in ("create", "drop", "alter", "comment", "grant", "revoke"))


def _name(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


_OPENS = re.compile(r"[()]")


def role_passed_over(statement: Statement) -> tuple[str, tuple[str, ...]] | None:
    """Of a statement that does nothing but make a role an owner, or give or take its rights: what it is, and the roles
    that it names; None for any other. One that does more at once, or for several roles, is another."""
    if statement.words[0] not in ("alter", "grant", "revoke"):
        return None
    names: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return "''"
        names.append(found[0][1:-1].replace('""', '"'))
        return f"\0{len(names) - 1}\0"

    text = _outside(re.sub(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""", stand_in, statement.plain)).rstrip()

    def role(word: str) -> str:
        return names[int(word.strip("\0"))] if word.startswith("\0") else word.lower()

    owner = _OWNER.search(text)
    if statement.words[0] == "alter" and owner is not None and "," not in text:
        return "changes of owner", (role(owner[1]),)
    right = _RIGHT.fullmatch(text)
    if right is None:
        return None
    found = (role(word) for word in (right["of"], right["to"]) if word is not None)
    return "rights", tuple(one for one in dict.fromkeys(found) if one not in _NOT_ROLES)


_ROLE = r"(\0\d+\0|[\w$]+)"
_OWNER = re.compile(rf"(?i)\sowner\s+to\s+{_ROLE}$")
_RIGHT = re.compile(
    rf"""(?ix)
    (?:alter\s+default\s+privileges\s+(?:for\s+(?:role|user)\s+(?P<of>{_ROLE})\s+)?(?:in\s+schema\s+\S+\s+)?)?
    (?:grant|revoke)\s.*\s(?:to|from)\s+(?:group\s+)?(?P<to>{_ROLE})
    (?:\s+with\s+(?:grant|admin|inherit|set)\s+\w+)?(?:\s+granted\s+by\s+{_ROLE})?(?:\s+(?:cascade|restrict))?
    """
)
_NOT_ROLES = ("public", "current_user", "session_user", "current_role")


def _outside(text: str) -> str:
    """Without what is in brackets."""
    kept, depth, at = [], 0, 0
    for found in _OPENS.finditer(text):
        if not depth:
            kept.append(text[at : found.start()])
        depth = max(0, depth + (1 if found[0] == "(" else -1))
        at = found.end()
    return "".join((*kept, "" if depth else text[at:]))
