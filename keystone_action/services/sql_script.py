"""Scripts of SQL fixtures: which files they are made of, their lines, and how a failure in one is told.

What the readers of both dialects share (`postgres/psql_script.py`, `mysql/client_script.py`). A script is read line by
line, so a dump may be larger than the memory. No message has a row in it: a statement is shown up to its table, and of
what a server says only what can't be a value.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from keystone_action.errors import ServiceError

_DEEPEST = 20
"""Files that include each other."""
_PIECE = 1 << 16
_SHOWN = 80
_ROLES_SHOWN = 5
CUT = "…"
"""Stands for what is left out of a server's message."""


class ScriptError(Exception):
    """A script can't be run to its end. problem: with the place, without rows. lost: since its session ended."""

    def __init__(self, problem: str, advice: str = "", *, lost: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice
        self.lost = lost


@dataclass(frozen=True)
class SqlScript:
    """What a fixture runs. includes: further files that it may name, known before the run started; None where any file
    below `directory` will do."""

    name: str
    """As messages call it: the path in the spec."""
    text: str | None = None
    path: Path | None = None
    directory: Path = field(default_factory=Path)
    """The spec's. Names of further files are relative to it."""
    includes: frozenset[Path] | None = frozenset()
    interrupted: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when nobody waits for it any more."""

    @contextmanager
    def lines(self) -> Iterator[ScriptLines]:
        """Its own lines. Raises ScriptError where the file can't be read."""
        if self.path is None:
            yield ScriptLines(self.name, BytesIO((self.text or "").encode("utf-8", "surrogateescape")), self)
            return
        with _open_script(self.path, self.name) as stream:
            yield ScriptLines(self.name, stream, self)

    def read_text(self) -> str:
        """All of it, for a database that takes it so. Raises ScriptError."""
        if self.path is None:
            return self.text or ""
        with _open_script(self.path, self.name) as stream:
            try:
                return stream.read().removeprefix(codecs.BOM_UTF8).decode("utf-8")
            except UnicodeDecodeError:
                raise ScriptError(f"{self.name} is not UTF-8", "Save it as UTF-8.") from None


@dataclass
class ScriptLines:
    """The lines of one file of a script. line: the number of the last that was read."""

    name: str
    stream: BinaryIO
    script: SqlScript
    above: tuple[Path, ...] = ()
    """The files that led here, this one included."""
    folder: Path | None = None
    """Where this file lies."""
    line: int = 0
    is_rows: bool = False
    """It is not a script: what `\\copy` sends."""
    dump: str = ""
    """What program wrote it, until what it writes last was read."""

    def __iter__(self) -> Iterator[bytes]:
        """Each with its end."""
        while line := self.stream.readline():
            self.line += 1
            self.stop_if_interrupted()
            if b"\0" in line and not self.is_rows:
                raise ScriptError(f"{self.at()}: there is a NUL byte in it, where a statement would end", _NO_NUL)
            if line.startswith(b"-- "):
                self._note_dump(line)
            yield line.removeprefix(codecs.BOM_UTF8) if self.line == 1 else line

    def _note_dump(self, line: bytes) -> None:
        for program, first, last in _DUMPS:
            if line.startswith(last):
                self.dump = ""
            elif line.startswith(first):
                self.dump = program

    @contextmanager
    def last_statement(self) -> Iterator[None]:
        """Around running what stands at the end of the file, with nothing that ends it: where it fails, that is the
        likely reason."""
        try:
            yield
        except ScriptError as error:
            advice = error.advice or "It is the last of the file, and nothing ends it: the file may have been cut off."
            raise ScriptError(error.problem, advice, lost=error.lost) from None

    def stop_if_interrupted(self) -> None:
        """Raises ScriptError where nobody waits for the script any more."""
        if self.script.interrupted.is_set():
            raise ScriptError(f"{self.at()}: interrupted")

    def rows(self) -> Iterator[bytes]:
        """The lines that follow, up to one that is `\\.`, in pieces of any size. Raises ScriptError where the file ends
        before it."""
        first, kept = self.line + 1, bytearray()
        begins = True
        while piece := self.stream.readline(_PIECE):
            if begins and piece in (b"\\.\n", b"\\.\r\n", b"\\."):
                self.line += 1
                if kept:
                    yield bytes(kept)
                return
            begins = piece.endswith(b"\n")
            self.line += begins
            kept += piece
            if len(kept) >= _PIECE:
                self.stop_if_interrupted()
                yield bytes(kept)
                kept.clear()
        last = self.at(self.line + (not begins))
        raise ScriptError(
            f"{last}: the file ends within the rows of COPY that begin in line {first:,}, before \\.",
            "It was cut off: dump it again.",
        )

    def at(self, line: int | None = None) -> str:
        """`dump.sql:12`."""
        return f"{self.name}:{self.line if line is None else line}"

    @contextmanager
    def include(self, text: str, *, from_here: bool = False, rows: bool = False) -> Iterator[ScriptLines]:
        """Another file that is named in the last line. from_here: relative to this file, not to the spec. rows: it is
        not a script. Raises
        ScriptError for one that is not below the spec's folder, was not known when the run started, includes itself, or
        can't be read."""
        script = self.script
        base = script.directory
        if from_here:
            base = self.folder or (script.path.parent if script.path is not None else base)
        path = named_file(text, base, script.directory)
        if path is None or (script.includes is not None and path not in script.includes):
            raise ScriptError(
                f"{self.at()}: there is no file {text!r} below the spec's folder",
                "Names of further files are relative to the spec, and end where a blank or a quote does.",
            )
        above = self.above or ((script.path.resolve(),) if script.path is not None else ())
        if path in above or len(above) >= _DEEPEST:
            raise ScriptError(f"{self.at()}: {text!r} includes itself, or files that are {_DEEPEST} deep")
        name = os.path.relpath(path, script.directory.resolve())
        with (_open if rows else _open_script)(path, name) as stream:
            yield ScriptLines(name, stream, script, (*above, path), path.parent, is_rows=rows)


def named_file(text: str, base: Path, directory: Path) -> Path | None:
    """The file that a script means, where it is one below the spec's folder."""
    try:
        path = (base / text).resolve(strict=True)
        inside = path.is_relative_to(directory.resolve()) and stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError, RuntimeError):
        return None
    return path if inside else None


def _open(path: Path, name: str) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ScriptError(f"{name} can't be read: {error.strerror}") from None


def _open_script(path: Path, name: str) -> BinaryIO:
    stream = _open(path, name)
    begins = stream.read(_LONGEST_MARK)
    stream.seek(0)
    if not begins:
        stream.close()
        raise ScriptError(f"{name} is empty", "Dump it again, or leave it out.")
    for mark, what, advice in _OTHER_FORMS:
        if begins.startswith(mark):
            stream.close()
            raise ScriptError(f"{name} is {what}, not a script", advice)
    return stream


_PLAIN_DUMP = "Dump it with `pg_dump --format=plain`, or let `pg_restore --file=dump.sql` make a script of it."
_UNPACK = "Unpack it, and name what comes out."
_SAVE = "Save it as UTF-8. In PowerShell, let the program write the file (`--file`, `--result-file`) instead of `>`."
_OTHER_FORMS = (
    (b"PGDMP", "a dump of pg_dump in its custom format", _PLAIN_DUMP),
    (b"toc.dat\0", "a dump of pg_dump in its tar format", _PLAIN_DUMP),
    (b"\x1f\x8b", "compressed (gzip)", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", _UNPACK),
    (b"\xfd7zXZ\0", "compressed (xz)", _UNPACK),
    (b"BZh", "compressed (bzip2)", _UNPACK),
    (b"PK\x03\x04", "a ZIP archive", _UNPACK),
    (b"SQLite format 3\0", "a database of SQLite", "Dump it with `sqlite3 FILE .dump`."),
    (codecs.BOM_UTF16_LE, "encoded in UTF-16", _SAVE),
    (codecs.BOM_UTF16_BE, "encoded in UTF-16", _SAVE),
    (b"-\0", "encoded in UTF-16", _SAVE),
)
"""How files begin that are mistaken for scripts, what they are, and what to do."""
_NO_NUL = "It is damaged, or encoded in UTF-16: dump it again, or save it as UTF-8."
_LONGEST_MARK = max(len(mark) for mark, _, _ in _OTHER_FORMS)
_DUMPS = (
    ("pg_dump", b"-- PostgreSQL database dump", b"-- PostgreSQL database dump complete"),
    ("pg_dumpall", b"-- PostgreSQL database cluster dump", b"-- PostgreSQL database cluster dump complete"),
    ("mysqldump", b"-- MySQL dump ", b"-- Dump completed"),
    ("mariadb-dump", b"-- MariaDB dump ", b"-- Dump completed"),
)
"""The programs that write dumps, and the comments with which these begin and end."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. line: where it begins; before that may be comments."""

    text: bytes
    line: int
    words: tuple[str, ...]
    """The first of its words, in lower case."""

    @property
    def plain(self) -> str:
        """Without comments, on one line, for a look at its kind."""
        first = begins(self.text)
        text = self.text[first : first + _LOOKED_AT].decode("utf-8", "replace")
        kept = _COMMENT_OR_QUOTED.sub(lambda found: " " if found[0][0] in "-/" else found[0], text)
        return " ".join(kept.split())

    @property
    def head(self) -> str:
        """Up to its table: `INSERT INTO public.buyers`. Nothing in quotes that could be a value, and of what begins
        with no word of SQL's, as a row does, nothing at all."""
        plain = self.plain
        first = _FIRST_WORD.match(plain)
        if first is None or first[0].lower() not in _VERBS or not (first[0].islower() or first[0].isupper()):
            return ""
        found = _WITH_TABLE.match(plain) or _WORDS.match(plain)
        head = found[0].strip() if found is not None else ""
        return head if len(head) <= _SHOWN else f"{head[:_SHOWN]}{CUT}"

    @property
    def shown(self) -> str:
        """Its head, or what messages call it that has none."""
        return self.head or "a statement"


_SKIPPED = re.compile(rb"\s+|--[^\n]*|/\*(?!M?!)")
_MARKS = re.compile(rb"/\*|\*/")


def begins(text: bytes) -> int:
    """Where a statement begins, after blanks and comments. By steps: one pattern for all of it would try a
    line of dashes in every way there is to divide it."""
    at = 0
    while (found := _SKIPPED.match(text, at)) is not None:
        at, depth = found.end(), int(found[0] == b"/*")
        while depth and (mark := _MARKS.search(text, at)) is not None:
            at, depth = mark.end(), depth + (1 if mark[0] == b"/*" else -1)
        if depth:
            return len(text)
    return at


_LOOKED_AT = 20_000
_COMMENT_OR_QUOTED = re.compile(
    r"""--[^\n]*|/\*(?!M?!)[\s\S]*?(?:\*/|\Z)|'(?:[^'\\]|\\[\s\S])*(?:'|\\?\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)""",
)
"""Also up to the end: a search that fails is begun again at the next quote."""
_NAME = r"""(?:`[^`]{1,64}`|"[^"]{1,64}"|[\w$]+)"""
_WITH_TABLE = re.compile(
    rf"""(?ix)
    (?:
        (?:insert|replace)\s+(?:low_priority\s+|delayed\s+|high_priority\s+)?(?:ignore\s+)?(?:into\s+)?(?=\S)
      | (?:copy|update|truncate(?:\s+table)?|(?:un)?lock\s+tables?)\s+(?:only\s+)?
      | delete\s+from\s+(?:only\s+)?
      | (?:create|alter|drop)\s+(?:(?:or|replace|unlogged|temporary|temp|foreign|materialized|unique)\s+)*
        (?:table|view|index|sequence|trigger|function|procedure|schema|type|domain|extension|database|event|role|user)
        \s+(?:if\s+(?:not\s+)?exists\s+)?(?:only\s+)?
    )
    {_NAME}(?:\.{_NAME})*
    """
)
_FIRST_WORD = re.compile(r"[A-Za-z]+")
_SQL = (
    "abort alter analyze begin binlog cache call change check checkpoint checksum close cluster comment commit copy"
    " create deallocate declare delete describe discard do drop end execute explain fetch flush grant handler"
    " import insert install kill listen load lock merge move notify optimize pragma prepare purge reassign refresh"
    " reindex release rename repair replace reset revoke rollback savepoint security select set show signal start"
    " table truncate uninstall unlisten unlock update use vacuum values with xa"
)
_VERBS = frozenset(_SQL.split())
_WORDS = re.compile(r"[A-Za-z_]\w*(?: [A-Za-z_][\w.]*){0,3}")


@dataclass
class PassedOver:
    """What of a script was passed over, for its notice."""

    kinds: Counter[str] = field(default_factory=Counter)
    """By what it was, in the plural."""
    roles: dict[str, None] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    """Files that begin as a dump does and end otherwise, with the program that writes such dumps."""

    def end(self, lines: ScriptLines) -> None:
        """A file was read to its end."""
        if lines.dump:
            self.unfinished[lines.name] = lines.dump

    def add(self, kind: str, *roles: str) -> None:
        """One more."""
        self.kinds[kind] += 1
        self.roles |= dict.fromkeys(roles)

    def notices(self, script: SqlScript) -> tuple[str, ...]:
        """`dump.sql: passed over 3 changes of owner, for roles that are not here (admin)`; none where nothing was."""
        cut = tuple(
            f"fixture {script.name}: {name} begins as a dump of {program} and does not end as one; if it was cut off,"
            " rows are missing"
            for name, program in self.unfinished.items()
        )
        if not self.kinds:
            return cut
        what = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.items())
        named = [*self.roles][:_ROLES_SHOWN]
        more = f" and {len(self.roles) - len(named):,} more" if len(self.roles) > len(named) else ""
        roles = f" (not here: {', '.join(named)}{more})" if named else ""
        return (f"fixture {script.name}: passed over {what}{roles}", *cut)


_QUOTE = re.compile(r"""(?<!\w)["'«„“‘`]""")
_PLAIN_NAME = r"""[\w$.@%-]{1,130}"""


def without_values(message: str, known: str, *, names: bool) -> str:
    """A server's message up to the first thing in quotes that may be a value. names: whether what looks like a name is
    one. known: a text in which other names stand, which are shown already."""
    at = 0
    while (quote := _QUOTE.search(message, at)) is not None:
        closing = re.escape({"«": "»", "„": "“", "“": "”", "‘": "’"}.get(quote[0], quote[0]))
        found = re.compile(rf"{re.escape(quote[0])}({_PLAIN_NAME}){closing}(?!\w)").match(message, quote.start())
        if found is None or not (names or re.search(rf"(?<![\w$]){re.escape(found[1])}(?![\w$])", known)):
            return f"{message[: quote.start()].rstrip()} {CUT}"
        at = found.end()
    return message


@dataclass(frozen=True, slots=True)
class ServerLook:
    """How to tell that a server of ours has crashed. failure: the error that says so; both may block."""

    crashed: Callable[[], bool]
    failure: Callable[[], ServiceError]


T = TypeVar("T")


async def run_script(
    service: str,
    script: SqlScript,
    run: Callable[[], T],
    errors: Sequence[type[Exception]],
    look: ServerLook | None = None,
) -> T:
    """`run` in a thread, which is left to itself when we are cancelled. errors: what a client raises of a server that
    has gone, or lets nobody in. Raises ServiceError without what the server printed: there may be rows in it."""
    import anyio
    import anyio.to_thread

    try:
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    except ScriptError as error:
        found = error
    except tuple(errors) as error:
        found = ScriptError(f"{script.name} can't be run there ({type(error).__name__})", lost=True)
    except anyio.get_cancelled_exc_class():
        script.interrupted.set()
        raise
    if look is not None and (found.lost or await anyio.to_thread.run_sync(look.crashed)):
        failure = await anyio.to_thread.run_sync(look.failure)
        raise ServiceError(f"{failure.message.partition('; it printed')[0]} ({found.problem})", help=failure.help)
    raise ServiceError(f"service {service} refused a fixture: {found.problem}", help=found.advice)
