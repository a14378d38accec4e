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
_AFFINITIES = {"INT": "integer", "TEXT": "text", "REAL": "real", "NUM": "numeric", "": "none"}
"""By the type that a table made of a query has."""
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
        before = None  # the agent was given a file that is not a database
    try:
        if order["reindex"]:
            _reindex(order["file"])
        # The copy is opened for writing, so that SQLite can join its journals; `query_only` keeps SQL from it.
        connection = _open_database(order["file"])
        now = _catalogue(order["file"])
        _compare(before or {}, now)
        _say({"before": before, "now": now, "reads": _reads(connection, order["sql"])})
        _say(_answer(connection, order["sql"], order["rows"]))
    except sqlite3.Error as error:
        _say({"failed": str(error)})
    except MemoryError:
        _say({"failed": "out of memory"})
    except (ValueError, OverflowError) as error:
        _say({"unreadable": str(error)})


def _say(document: Any) -> None:
    print(json.dumps(document), flush=True)


def _open_database(path: str) -> sqlite3.Connection:
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
    """Make all indexes anew from their tables: an index holds what the author of the file put there.
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
    """Name → kind, text of a view, generated columns, the statement that makes a table; columns are told later."""
    connection = _open_database(path)
    try:
        found: dict[str, Any] = {}
        query = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"
        for name, kind, sql in connection.execute(query).fetchall():
            words = str(sql or "").split(None, 3)
            virtual = [word.upper() for word in words[:2]] == ["CREATE", "VIRTUAL"]
            generated = [] if virtual or kind == "view" else _generated_columns(connection, str(name))
            text = sql if virtual or kind == "view" else ""
            found[str(name)] = {
                "kind": "virtual table" if virtual else kind, "text": str(text), "generated": generated,
                "made_by": "" if text else str(sql or ""), "columns": {}, "unclear": False,
            }  # fmt: skip
        return found
    finally:
        connection.close()


def _generated_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [
        str(name)
        for _, name, _, _, _, _, hidden in connection.execute(f"PRAGMA table_xinfo({_quote(table)})")
        if hidden in _GENERATED
    ]


def _compare(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Tell the columns of those tables that are made otherwise than before; unclear: that is not to be found out."""
    lowered = {name.lower(): one for name, one in before.items()}
    for name, one in now.items():
        other = lowered.get(name.lower())
        made = one.pop("made_by")
        if other and made and other["made_by"] and other["made_by"] != made:
            try:
                one["columns"], other["columns"] = _columns(name, made), _columns(name, other["made_by"])
            except sqlite3.Error:  # a file may name functions that only its writer has; nobody else can make the table
                one["unclear"] = True


def _columns(table: str, made_by: str) -> dict[str, list[str]]:
    """Column → its affinity and collation, by what SQLite itself makes of the statement: only an index tells the
    collation, and only a table made of a query the affinity. Raises sqlite3.Error."""
    quoted = _quote(table)
    empty = sqlite3.connect(":memory:", isolation_level=None)
    try:
        empty.execute("PRAGMA trusted_schema = OFF")
        empty.execute(made_by)
        empty.execute(f"CREATE TABLE copied_by_keystone AS SELECT * FROM {quoted}")  # noqa: S608 - of their own
        kinds = {row[1]: row[2] for row in empty.execute("PRAGMA table_info(copied_by_keystone)").fetchall()}
        return {name: [_AFFINITIES.get(kind, kind), _collation(empty, quoted, name)] for name, kind in kinds.items()}
    finally:
        empty.close()


def _collation(empty: sqlite3.Connection, table: str, column: str) -> str:
    try:
        empty.execute(f"CREATE INDEX looked_at_by_keystone ON {table} ({_quote(column)})")
        rows = empty.execute("PRAGMA index_xinfo(looked_at_by_keystone)").fetchall()
        empty.execute("DROP INDEX looked_at_by_keystone")
    except sqlite3.Error as error:  # one that only the program knows that wrote the file
        return str(error)
    return str(rows[0][4]).upper()


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
    rows = [[_encode_value(value) for value in row] for row in kept]
    return {"columns": [column[0] for column in cursor.description], "rows": rows, "more": more}


def _encode_value(value: Any) -> Any:
    return {"bytes": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


if __name__ == "__main__":
    main()
