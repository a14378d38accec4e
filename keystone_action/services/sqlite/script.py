"""Scripts for SQLite, run on one file; one that would load nothing, or its first half, in silence is refused."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from keystone_action.services.sql_script import ScriptError

_WHOLE = re.compile(
    r"""(?sx)
    (?: [^'"`\[/-]++ | '[^']*+' | "[^"]*+" | `[^`]*+` | \[[^\]]*+\] | --[^\n]*+ | /\*.*?\*/ | -(?!-) | /(?!\*) ){1,1000}
    """
)
"""What is closed, so many parts at a time: what a repeated group may go back to is kept."""
_ROLLBACK = re.compile(r"(?i)\brollback\b")
_CUT = "It was cut off, or a quote is missing."
NOT_ENDED = "Nothing ends the last statement of the file: it may have been cut off."
_OF_FOLDERS = ("temp_store_directory", "data_store_directory")


def execute(file: Path, script: str, name: str) -> None:
    """name: of the script. Raises ScriptError for one that is not whole, and sqlite3's errors."""
    _require_whole(script, name)
    last = _Last()
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        connection.set_authorizer(last.allow)
        connection.executescript(script)
        connection.set_authorizer(None)
        if connection.in_transaction:
            raise ScriptError(
                f"{_end(script, name)}: it ends within a transaction that it began, and nothing of that is kept",
                "It was cut off, or lacks a COMMIT.",
            )
        if last.is_rollback:
            *_, found = _ROLLBACK.finditer(script)
            raise ScriptError(
                f"{_at(script, name, found.start())}: it ends with a ROLLBACK, and nothing of its last transaction is "
                "kept",
                "So ends what `.dump` makes of a database that is damaged: let `sqlite3 FILE .recover` dump it.",
            )
        # One file holds everything: a log left open (`PRAGMA journal_mode = WAL`) is folded in.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


class _Last:
    """Is asked about each statement before it runs, and knows what the last was."""

    def __init__(self) -> None:
        self.is_rollback = False

    def allow(self, action: int, first: str | None, _second: str | None, *_others: str | None) -> int:
        """What a script may do: all but open a further file of this machine."""
        self.is_rollback = action == sqlite3.SQLITE_TRANSACTION and first == "ROLLBACK"
        opens = action == sqlite3.SQLITE_ATTACH and first not in ("", ":memory:")
        moves = action == sqlite3.SQLITE_PRAGMA and str(first).lower() in _OF_FOLDERS
        return sqlite3.SQLITE_DENY if opens or moves else sqlite3.SQLITE_OK


def ends_open(script: str) -> bool:
    """Whether nothing ends its last statement: where a script fails, that is a likely reason."""
    return bool(script.strip()) and not sqlite3.complete_statement(script)


def _require_whole(script: str, name: str) -> None:
    if (at := script.find("\0")) >= 0:
        raise ScriptError(
            f"{_at(script, name, at)}: it has a NUL character, behind which SQLite reads nothing",
            "The file is damaged, or is not a script: dump it again.",
        )
    closed = 0
    while (found := _WHOLE.match(script, closed)) is not None:
        closed = found.end()
    if closed < len(script):
        what = "a comment" if script.startswith("/*", closed) else "a text in quotes"
        begins = script.count("\n", 0, closed) + 1
        raise ScriptError(f"{_end(script, name)}: the file ends within {what} that begins in line {begins:,}", _CUT)


def _at(script: str, name: str, position: int) -> str:
    line = script.count("\n", 0, position) + 1
    return f"{name}:{line}"


def _end(script: str, name: str) -> str:
    return _at(script, name, max(len(script) - 1, 0))
