"""Asks a SQLite file that an agent left, in a process of its own: some of what SQLite does can't be interrupted.

One JSON document on stdin; on stdout first a line with what stands in the file, what stood there, and which of it the
query reads, then a line with the answer. It runs as a program and imports nothing of ours.
"""

from __future__ import annotations

import base64
import json
import resource
import sqlite3
import sys
from typing import Any

_VALUE_LIMIT = 64 << 20
_MEMORY_LIMIT = 2 << 30
_GENERATED = (2, 3)
"""What `hidden` says of a column of `table_xinfo`: virtual and stored."""
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FUNCTIONS_REFUSED = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})


def main() -> None:
    """Say what stands there, then answer."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = json.load(sys.stdin)
    try:
        before = _catalogue(order["before"]) if order["before"] else None
    except (sqlite3.Error, OverflowError, ValueError):
        before = None  # the agent was given what is no database
    try:
        if order["reindex"]:
            _reindex(order["file"])
        # The copy is opened for writing, so that SQLite can join its journals; `query_only` keeps SQL from it.
        connection = _opened(order["file"])
        _say({"before": before, "now": _catalogue(order["file"]), "reads": _reads(connection, order["sql"])})
        _say(_answer(connection, order["sql"], order["rows"]))
    except sqlite3.Error as error:
        _say({"failed": str(error)})
    except MemoryError:
        _say({"failed": "out of memory"})
    except (ValueError, OverflowError) as error:
        _say({"unreadable": str(error)})


def _say(document: Any) -> None:
    print(json.dumps(document), flush=True)


def _opened(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = _text
    return connection


def _reindex(path: str) -> None:
    """Make all indexes anew from their tables: what a query finds by an index is what whoever wrote the file put there.
    Raises sqlite3.Error for a file that says what can't be, such as two equal rows in a unique index."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("REINDEX")
    except sqlite3.Error as error:
        raise sqlite3.DatabaseError(f"its indexes are malformed: {error}") from None
    finally:
        connection.close()


def _catalogue(path: str) -> dict[str, Any]:
    """Name → kind, text of a view, generated columns."""
    connection = _opened(path)
    try:
        found = {}
        query = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"
        for name, kind, sql in connection.execute(query).fetchall():
            words = str(sql or "").split(None, 3)
            virtual = [word.upper() for word in words[:2]] == ["CREATE", "VIRTUAL"]
            generated = [] if virtual or kind == "view" else _generated(connection, str(name))
            text = sql if virtual or kind == "view" else ""
            found[str(name)] = {
                "kind": "virtual table" if virtual else kind, "text": str(text), "generated": generated
            }  # fmt: skip
        return found
    finally:
        connection.close()


def _generated(connection: sqlite3.Connection, table: str) -> list[str]:
    quoted = table.replace('"', '""')
    return [
        str(name)
        for _, name, _, _, _, _, hidden in connection.execute(f'PRAGMA table_xinfo("{quoted}")')
        if hidden in _GENERATED
    ]


def _reads(connection: sqlite3.Connection, sql: str) -> list[str] | None:
    """The tables and views that a query reads, by what SQLite asks an authorizer while it only compiles it; None for
    what can't be compiled. From now on the connection may only read."""
    found: set[str] = set()

    def authorize(
        action: int, first: str | None, second: str | None, _database: str | None, through: str | None
    ) -> int:
        if action not in _READS:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_REFUSED:
            return sqlite3.SQLITE_DENY
        found.update(name for name in (first if action == sqlite3.SQLITE_READ else None, through) if name)
        return sqlite3.SQLITE_OK

    connection.set_authorizer(authorize)
    try:
        connection.execute(f"EXPLAIN {sql}").close()
    except sqlite3.Error:
        return None
    return sorted(found)


def _answer(connection: sqlite3.Connection, sql: str, limit: int) -> dict[str, Any]:
    cursor = connection.execute(sql)
    if cursor.description is None:
        return {"unreadable": "", "no_rows": True}
    kept = cursor.fetchmany(limit)
    more = cursor.fetchone() is not None
    rows = [[_sent(value) for value in row] for row in kept]
    return {"columns": [column[0] for column in cursor.description], "rows": rows, "more": more}


def _sent(value: Any) -> Any:
    return {"bytes": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


if __name__ == "__main__":
    main()
