"""The sqlite service: fixtures, reading what the agent left, and what a hostile file can't do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from support.places import attached

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import QueryFailed, QueryResult
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.service import CellScope, Place
from keystone_action.services.sql_script import SqlScript
from keystone_action.services.sqlite.service import SqliteFile
from keystone_action.spec.models.services import SqliteService


@dataclass
class SqliteCell:
    portal: BlockingPortal
    service: SqliteFile
    place: Place
    workspace: Path
    private: Path

    @property
    def file(self) -> Path:
        return self.workspace / "data.db"

    def fixture(self, script: str) -> None:
        self.portal.call(self.place.run_sql, SqlScript("sql", text=script))

    def query(self, sql: str, timeout: float = 10.0) -> QueryResult:
        assert self.place.database is not None
        return self.place.database.query(sql, timeout=timeout)


@pytest.fixture
def cell(portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path) -> Iterator[SqliteCell]:
    workspace, private = tmp_path / "workspace", tmp_path / "private"
    workspace.mkdir()
    private.mkdir()
    definition = SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "data.db"})
    service = SqliteFile(definition, sandboxes)
    scope = CellScope("cell", private, workspace, AuditLog(private / "audit.jsonl"), exclusive=False)
    portal.call(service.start)
    with attached(service, scope, portal) as place:
        yield SqliteCell(portal, service, place, workspace, private)
    portal.call(service.stop)


def test_a_fixture_makes_the_file_and_checks_read_it(cell: SqliteCell) -> None:
    cell.fixture("CREATE TABLE t (id INTEGER, name TEXT); INSERT INTO t VALUES (1, 'one'), (2, NULL);")
    cell.fixture("INSERT INTO t VALUES (3, 'three');")
    assert cell.file.stat().st_uid == cell.workspace.stat().st_uid
    assert [entry.name for entry in cell.workspace.iterdir()] == ["data.db"]
    result = cell.query("SELECT id, name FROM t ORDER BY id")
    assert result.columns == ("id", "name")
    assert result.rows == ((1, "one"), (2, None), (3, "three"))
    assert result.boolean_as_number


def test_the_address_is_relative_to_the_workspace(cell: SqliteCell) -> None:
    assert cell.place.for_agent.as_mapping() == {"url": "sqlite:///data.db", "database": "data.db"}


def test_a_fixture_that_fails_names_the_service(cell: SqliteCell) -> None:
    with pytest.raises(ServiceError, match=r"service db refused a fixture: .*syntax"):
        cell.fixture("CREATE NONSENSE")


def test_a_fixture_does_not_write_through_a_link(cell: SqliteCell, tmp_path: Path) -> None:
    outside = tmp_path / "outside.db"
    sqlite3.connect(outside).close()
    cell.file.symlink_to(outside)
    with pytest.raises(ServiceError, match="out of the workspace"):
        cell.fixture("CREATE TABLE t (id INTEGER)")
    assert outside.stat().st_size == 0


def test_a_write_ahead_log_that_was_never_folded_in_is_read(cell: SqliteCell) -> None:
    writer = sqlite3.connect(cell.file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE t (id INTEGER)")
    writer.execute("INSERT INTO t VALUES (7)")
    writer.commit()
    assert (cell.workspace / "data.db-wal").stat().st_size > 0
    before = cell.file.read_bytes()
    assert cell.query("SELECT id FROM t").rows == ((7,),)
    assert cell.file.read_bytes() == before
    writer.close()


@pytest.mark.parametrize("sql", ["SELECT * FROM nowhere", "SELECT no_such_thing FROM sqlite_master"])
def test_missing_tables_and_columns_are_the_agents_fault(cell: SqliteCell, sql: str) -> None:
    cell.fixture("CREATE TABLE t (id INTEGER)")
    with pytest.raises(QueryFailed) as missing:
        cell.query(sql)
    assert missing.value.by_agent


def test_no_file_is_the_agents_fault(cell: SqliteCell) -> None:
    with pytest.raises(QueryFailed, match=r"data\.db does not exist") as missing:
        cell.query("SELECT 1")
    assert missing.value.by_agent


def test_a_file_that_is_no_database_is_the_agents_fault(cell: SqliteCell) -> None:
    cell.file.write_text("certainly not a database, but long enough to look at" * 100)
    with pytest.raises(QueryFailed, match="not a database") as bad:
        cell.query("SELECT 1 FROM sqlite_master")
    assert bad.value.by_agent


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_things_that_are_no_files_are_refused_without_waiting(cell: SqliteCell, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(cell.file)
    elif kind == "directory":
        cell.file.mkdir()
    else:
        cell.file.symlink_to("/etc/passwd")
    with pytest.raises(QueryFailed) as refused:
        cell.query("SELECT 1")
    assert refused.value.by_agent


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "DELETE FROM t",
        "CREATE TABLE u (id INTEGER)",
        "CREATE TEMP TABLE u (id INTEGER)",
        "ATTACH '/tmp/other.db' AS other",
        "PRAGMA writable_schema = ON",
        "VACUUM INTO '/tmp/copy.db'",
        "SELECT load_extension('/tmp/evil.so')",
        "SELECT 1; SELECT 2",
        "BEGIN",
    ],
)
def test_a_query_can_only_read(cell: SqliteCell, sql: str) -> None:
    cell.fixture("CREATE TABLE t (id INTEGER)")
    with pytest.raises(QueryFailed) as refused:
        cell.query(sql)
    assert not refused.value.by_agent
    assert cell.query("SELECT count(*) FROM t").rows == ((0,),)


def test_a_query_that_never_ends_hits_the_time_limit(cell: SqliteCell) -> None:
    cell.fixture("CREATE VIEW v AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r")
    cell.portal.call(cell.place.seal)
    with pytest.raises(QueryFailed, match=r"time limit of 1 s") as late:
        cell.query("SELECT count(*) FROM v", timeout=1)
    assert not late.value.by_agent


def test_a_journal_can_not_have_a_file_of_ours_deleted(cell: SqliteCell) -> None:
    """A hot journal names a super-journal, which SQLite deletes when no child journal refers to it any more."""
    cell.fixture("CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1);")
    victim = cell.private / "victim"
    victim.write_bytes(b"")
    name = str(victim).encode()
    header = bytes.fromhex("d9d505f920a163d7") + (1).to_bytes(4) + b"\0" * 4 + (1).to_bytes(4) + (512).to_bytes(4)
    checksum = sum(byte if byte < 128 else byte - 256 for byte in name) & 0xFFFFFFFF
    trailer = b"\0\0\0\1" + name + len(name).to_bytes(4) + checksum.to_bytes(4) + bytes.fromhex("d9d505f920a163d7")
    (cell.workspace / "data.db-journal").write_bytes(header.ljust(512, b"\0") + trailer)
    with pytest.raises(QueryFailed, match="several databases"):
        cell.query("SELECT id FROM t")
    assert victim.exists()


def test_text_that_is_no_utf_8_comes_as_bytes(cell: SqliteCell) -> None:
    cell.fixture("CREATE TABLE t (v TEXT); INSERT INTO t VALUES (CAST(x'ff41' AS TEXT));")
    assert cell.query("SELECT v FROM t").rows == ((b"\xffA",),)


def test_a_huge_result_is_cut_and_says_so(cell: SqliteCell) -> None:
    cell.fixture("CREATE TABLE t (id INTEGER)")
    result = cell.query(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 20000) SELECT n FROM r"
    )
    assert len(result.rows) == 10_000
    assert result.more
