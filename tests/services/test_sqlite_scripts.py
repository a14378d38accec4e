"""Fixtures of SQLite that would load nothing, or the first half, and say nothing: dumps that were cut, of a damaged
database, with what SQLite reads no further at."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from support.places import attached

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.service import CellScope
from keystone_action.services.sql_script import SqlScript
from keystone_action.services.sqlite.service import SqliteFile
from keystone_action.spec.models.services import SqliteService

SECRET = "hunter2"
CUTS = 40
SHOP = f"""
CREATE TABLE buyers (id INTEGER PRIMARY KEY, "the name" TEXT);
INSERT INTO buyers VALUES {", ".join(f"({n}, '{SECRET}; it''s -- [one /* {n}')" for n in range(8))};
CREATE TRIGGER touch AFTER INSERT ON buyers BEGIN UPDATE buyers SET "the name" = '{SECRET}' WHERE id = 3; END;
CREATE VIEW [of them] AS SELECT id /* only */ FROM buyers;
"""
Load = Callable[[bytes], list[str]]


@pytest.fixture
def load(sandboxes: ProcessSandboxes, portal: BlockingPortal, tmp_path: Path) -> Iterator[Load]:
    """Loads a file into a database of nothing, and tells what is there then."""
    cell = tmp_path / "cell"
    cell.mkdir()
    service = SqliteFile(SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "d.db"}), sandboxes)
    scope = CellScope("cell", cell, cell, AuditLog(tmp_path / "audit"), exclusive=True)
    file = tmp_path / "dump.sql"

    with attached(service, scope, portal) as place:

        def loaded(content: bytes) -> list[str]:
            (cell / "d.db").unlink(missing_ok=True)
            file.write_bytes(content)
            try:
                assert portal.call(place.run_sql, SqlScript(file.name, path=file)) == ()
            except ServiceError:
                assert not (cell / "d.db").exists()
                raise
            with sqlite3.connect(cell / "d.db") as session:
                return list(session.iterdump())

        yield loaded


def _dump() -> bytes:
    """As `.dump` writes it."""
    with sqlite3.connect(":memory:") as session:
        session.executescript(SHOP)
        return ("PRAGMA foreign_keys=OFF;\n" + "\n".join(session.iterdump()) + "\n").encode()


def test_a_dump_that_is_cut_anywhere_is_refused_and_shows_no_row(load: Load) -> None:
    whole = _dump()
    assert len(load(whole)) == 13
    begins = whole.index(b"BEGIN") + len("BEGIN TRANSACTION;")
    for at in range(begins, len(whole) - len("COMMIT;\n"), max((len(whole) - begins) // CUTS, 1)):
        with pytest.raises(ServiceError) as failure:
            load(whole[:at])
        assert failure.value.message.startswith("service db refused a fixture: dump.sql:")
        assert "cut off" in failure.value.help, failure.value.sentences
        assert SECRET not in failure.value.sentences


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("CREATE TABLE t (a);\nBEGIN;\nINSERT INTO t VALUES (1);\n", r"3: it ends within a transaction that it began"),
        ("CREATE TABLE t (a);\nSAVEPOINT s;\n", r"2: it ends within a transaction that it began"),
        ("CREATE TABLE t (a);\n/* INSERT\nINTO", r"3: the file ends within a comment that begins in line 2"),
        (
            "CREATE TABLE t (a);\n-- '\nSELECT 'x /*\n",
            r"3: the file ends within a text in quotes that begins in line 3",
        ),
        ("BEGIN;\nCREATE TABLE t (a);\nROLLBACK; -- due to errors\n", r"3: it ends with a ROLLBACK"),
        ("BEGIN;\nCREATE TABLE t (a);\nrollback transaction", r"3: it ends with a ROLLBACK"),
        ("CREATE TABLE t (a);\nINSERT INTO t VALUES ('\0');\n", r"2: it has a NUL character"),
    ],
)
def test_what_would_be_lost_in_silence_is_refused(load: Load, content: str, said: str) -> None:
    with pytest.raises(ServiceError, match=rf"refused a fixture: dump\.sql:{said}") as failure:
        load(content.encode())
    assert failure.value.help


@pytest.mark.parametrize(
    "content",
    [
        "BEGIN; CREATE TABLE u (a); ROLLBACK; CREATE TABLE t (a);",
        "BEGIN; CREATE TABLE t (a); SAVEPOINT s; CREATE TABLE u (a); ROLLBACK TO s; COMMIT; -- ROLLBACK;",
        "CREATE TABLE t (a) /* '; ROLLBACK; */; -- don't /*",
        "CREATE TABLE [it's] (a); DROP TABLE `it's`; CREATE TABLE t (a /* [ */) --",
    ],
)
def test_what_is_whole_is_loaded(load: Load, content: str) -> None:
    assert [line for line in load(content.encode()) if "CREATE" in line and '"u"' not in line] != []
    assert not any("TABLE u" in line for line in load(content.encode()))
