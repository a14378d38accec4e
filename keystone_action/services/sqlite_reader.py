"""Asking a SQLite file that an agent left: on a copy of ours, with everything switched off that a file can bring."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.sandbox.paths import PathMissing, PathProblem, open_inside
from keystone_action.services.postgres_reader import ROWS_LIMIT

SIZE_LIMIT = 1 << 30
"""Bytes of a database file that are copied."""
_STEPS_BETWEEN_LOOKS = 10_000
_VALUE_LIMIT = 64 << 20
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FUNCTIONS_REFUSED = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


@dataclass
class SqliteReader:
    """A `Database` on the file `path` below `workspace`. private: a directory of ours for the copy, which is made
    once, at the first query: nothing of the agent's runs any more then."""

    workspace: Path
    path: str
    private: Path
    _copy: Path | None = field(default=None)

    def query(self, sql: str, *, timeout: float) -> QueryResult:
        """Blocking. Raises QueryFailed; `undefined` for a missing table, column or file, and for a file that is no
        database: all of them the agent's doing."""
        deadline = time.monotonic() + timeout
        try:
            if self._copy is None:
                self._copy = self._copied()
            # The copy is opened for writing, so that SQLite can join its journals; `query_only` keeps SQL from it.
            connection = sqlite3.connect(self._copy, timeout=timeout, isolation_level=None)
        except PathProblem as problem:
            raise QueryFailed(str(problem), undefined=True) from None
        except (OSError, sqlite3.Error) as error:
            raise QueryFailed(f"{self.path} can't be opened: {error}") from None
        try:
            _lock_down(connection, deadline)
            return _rows(connection, sql)
        except sqlite3.Error as error:
            raise self._failure(error, late=time.monotonic() >= deadline, timeout=timeout) from None
        except (ValueError, OverflowError) as error:
            raise QueryFailed(f"a value can't be read: {error}") from None
        finally:
            connection.close()

    def _copied(self) -> Path:
        target = self.private / f"{secrets.token_hex(8)}.sqlite"
        copy_in(self.workspace, self.path, target)
        for suffix in ("-wal", "-journal"):
            try:
                copy_in(self.workspace, self.path + suffix, Path(f"{target}{suffix}"))
            except PathMissing:
                continue
        _refuse_super_journal(Path(f"{target}-journal"), self.path)
        return target

    def _failure(self, error: sqlite3.Error, *, late: bool, timeout: float) -> QueryFailed:
        text = str(error)
        if late and "interrupted" in text:
            return QueryFailed(f"the query hit its time limit of {timeout:g} s")
        theirs = text.startswith(("no such table", "no such column")) or "not a database" in text or "malformed" in text
        return QueryFailed(f"{self.path}: {text}", undefined=theirs)


def copy_in(workspace: Path, path: str, target: Path) -> None:
    """Copy a regular file of the workspace to a place of ours. Raises PathProblem, OSError."""
    descriptor = open_inside(workspace, path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PathProblem(f"{path} is no regular file")
        if status.st_size > SIZE_LIMIT:
            raise PathProblem(f"{path} has {status.st_size:,} bytes; at most {SIZE_LIMIT:,} are read")
        with os.fdopen(os.dup(descriptor), "rb") as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy)
    finally:
        os.close(descriptor)


def _refuse_super_journal(journal: Path, path: str) -> None:
    """A journal can name a file (the super-journal of a transaction over several databases) that SQLite reads, and
    may delete, when it recovers. The name is the agent's and the rights would be ours."""
    if not journal.exists():
        return
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - len(_SUPER_JOURNAL)))
        if file.read() == _SUPER_JOURNAL:
            journal.unlink()
            raise PathProblem(f"{path}-journal belongs to an unfinished transaction over several databases")


def _lock_down(connection: sqlite3.Connection, deadline: float) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = _text
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(_out_of_time(deadline), _STEPS_BETWEEN_LOOKS)


def _authorize(action: int, _first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action not in _READS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _out_of_time(deadline: float) -> Callable[[], int]:
    return lambda: int(time.monotonic() >= deadline)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _rows(connection: sqlite3.Connection, sql: str) -> QueryResult:
    cursor = connection.execute(sql)
    if cursor.description is None:
        raise QueryFailed("the statement gives no rows; a query was expected")
    kept = cursor.fetchmany(ROWS_LIMIT)
    more = cursor.fetchone() is not None
    columns = tuple(column[0] for column in cursor.description)
    return QueryResult(columns, tuple(tuple(row) for row in kept), boolean_as_number=True, more=more)
