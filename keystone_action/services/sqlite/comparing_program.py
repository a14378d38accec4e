"""Tells what differs between two SQLite files, in the process that asks them: the second is what an agent left.

One JSON document on stdin, one JSON object in each line on stdout. It runs as a program and imports nothing of ours:
`comparison/rows.py` comes with the order, as text.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import sqlite3
import sys
import types
from collections.abc import Iterator
from contextlib import closing
from typing import Any

_VALUE_LIMIT = 1 << 30
_MEMORY_LIMIT = 2 << 30
_BOOKKEEPING = frozenset({"sqlite_sequence", "sqlite_stat1", "sqlite_stat2", "sqlite_stat3", "sqlite_stat4"})
"""Where AUTOINCREMENT goes on, and what ANALYZE counted."""
_SETTINGS = ("user_version", "application_id")
"""Numbers in the file's header that are whoever's who uses it. 0 is what a new file has."""
_GENERATED = (2, 3)


def main() -> None:
    """Compare the files, or give the values of rows that are new in the second."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = json.load(sys.stdin)
    rows: Any = types.ModuleType("rows")
    exec(order["rows"], rows.__dict__)  # noqa: S102 - ours
    key = bytes.fromhex(order["key"])
    if "added" in order:
        _say(_texts(rows, key, order))
        return
    before = _kept(rows, key, order["before"], order["directory"])
    _say({"before": True})
    try:
        after = _kept(rows, key, order["after"], order["directory"])
    except (sqlite3.Error, MemoryError, ValueError, OverflowError, RecursionError) as error:
        _say({"unreadable": str(error) or type(error).__name__})
        return
    _say(_compare(rows, before, after, order["directory"]))


def _say(document: Any) -> None:
    print(json.dumps(document), flush=True)


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
    return connection


def _kept(rows: Any, key: bytes, path: str | None, directory: str) -> dict[tuple[str, str, str], Any]:
    """What, shown name and own name → definition, and of a table with rows of its own their file and columns. What is
    told under another table's name than before is another thing."""
    if path is None:
        return {}
    found: dict[tuple[str, str, str], Any] = {}
    with closing(_open(path)) as connection:
        master = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
        ).fetchall()
        shadows = _shadows(connection)
        indexes: dict[str, str] = {}
        for kind, name, table, sql in master:
            if kind == "index" and sql:
                indexes[table] = f"{indexes.get(table, '')}\n{name} {sql}"
        for kind, name, table, sql in master:
            if kind == "index" or name in _BOOKKEEPING:
                continue
            told = table if kind == "trigger" else shadows.get(name, name)
            one: dict[str, Any] = {"definition": f"{sql}{indexes.get(name, '')}"}
            if kind == "table" and not _is_virtual(sql):
                one["columns"] = _columns(connection, name)
                one["file"] = os.path.join(directory, secrets.token_hex(8))  # noqa: PTH118 - starts faster
                one["count"] = rows.keep_digests(_rows(connection, name, one["columns"]), one["file"], key)
            found[kind, told, name] = one
        for setting in _SETTINGS:
            if value := connection.execute(f"PRAGMA {setting}").fetchone()[0]:
                found["setting", setting, setting] = {"definition": str(value)}
        if any(name == "sqlite_sequence" for _, name, _, _ in master):
            for name, last in connection.execute("SELECT name, seq FROM sqlite_sequence ORDER BY seq"):
                one = found.setdefault(("sequence", shadows.get(str(name), str(name)), str(name)), {"definition": ""})
                one["definition"] += f" {last!r}"
    return found


def _is_virtual(sql: str | None) -> bool:
    return [word.upper() for word in str(sql or "").split(None, 2)[:2]] == ["CREATE", "VIRTUAL"]


def _shadows(connection: sqlite3.Connection) -> dict[str, str]:
    """Tables in which a virtual table keeps its rows → the name of that one."""
    listed = [(row[1], row[2]) for row in connection.execute("PRAGMA table_list").fetchall() if row[0] == "main"]
    virtual = sorted((name for name, kind in listed if kind == "virtual"), key=len, reverse=True)
    owners = {name: [one for one in virtual if name.startswith(f"{one}_")] for name, kind in listed if kind == "shadow"}
    return {name: found[0] for name, found in owners.items() if found}


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    found = connection.execute(f"PRAGMA table_xinfo({_quote(table)})").fetchall()
    return [str(row[1]) for row in found if row[6] not in _GENERATED]


def _rows(connection: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[bytes]:
    """Not by an index: it holds what the author of the file put there."""
    selected = ", ".join(map(_quote, columns)) or "1"
    for row in connection.execute(f"SELECT {selected} FROM {_quote(table)} NOT INDEXED"):  # noqa: S608 - quoted
        yield repr(row).encode("utf-8", "backslashreplace")


def _compare(rows: Any, before: dict[Any, Any], after: dict[Any, Any], directory: str) -> dict[str, Any]:
    writes: list[list[Any]] = []
    added: list[dict[str, Any]] = []
    had, has = ({name for what, _, name in look if what == "table"} for look in (before, after))
    for key in sorted({*before, *after}):
        was, now = before.get(key), after.get(key)
        what, told, name = key
        if what == "trigger" and (told in had) != (told in has):
            continue  # it came, or went, with its table
        if was is None or now is None or was["definition"] != now["definition"]:
            operation = "create" if was is None else "drop" if now is None else "alter"
            writes.append([what, told, "change" if what in ("setting", "sequence") else operation, None])
        if now is None or "file" not in now:
            continue
        new = {"table": name, "name": told, "columns": now["columns"]}
        if was is None or was.get("columns") != now["columns"]:
            # No row can be compared with one of other columns: all that are there now may be new.
            added.append({**new, "file": now["file"], "count": now["count"]})
            if was is None and now["count"]:
                writes.append(["table", told, "insert", now["count"]])
            continue
        place = os.path.join(directory, secrets.token_hex(8))  # noqa: PTH118 - as above
        found = rows.row_difference(was["file"], now["file"], place)
        if found.added:
            added.append({**new, "file": place, "count": found.added})
        if found.added or found.removed:
            operation = "change" if found.added and found.removed else "insert" if found.added else "delete"
            writes.append(["table", told, operation, max(found.added, found.removed)])
    # Of a table that something else is told of, it says nothing more that its number goes on.
    others = {told for what, told, _, _ in writes if what != "sequence"}
    return {"writes": [one for one in writes if one[0] != "sequence" or one[1] not in others], "added": added}


def _texts(rows: Any, key: bytes, order: dict[str, Any]) -> dict[str, Any]:
    """The values of new rows of one table, from the `skip`th on, as long as they are not more than `bytes`."""
    added, texts, passed, size = order["added"], [], 0, 0
    with closing(_open(order["after"])) as connection:
        for wanted in rows.added_at_once(added["file"]):
            for row in _rows(connection, added["table"], added["columns"]):
                hashed = rows.digest(row, key)
                if not wanted[hashed]:
                    continue
                wanted[hashed] -= 1
                passed += 1
                if passed > order["skip"]:
                    texts.append(row.decode("utf-8"))
                    size += len(row)
                    if size > order["bytes"]:
                        return {"texts": texts}
    return {"texts": texts}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    main()
