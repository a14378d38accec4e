"""What an agent wrote into a SQLite file: ways of writing, each as it is told."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from support.places import attached

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.writes import TableWrite
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.service import CellScope, Place
from keystone_action.services.sqlite import service as module
from keystone_action.services.sqlite.service import SqliteFile
from keystone_action.spec.models.services import SqliteService

pytestmark = pytest.mark.sandbox

STANDING = """
CREATE TABLE customers (id INTEGER PRIMARY KEY AUTOINCREMENT, email TEXT COLLATE NOCASE, paid REAL);
INSERT INTO customers (email, paid) VALUES ('a@b', 1.5), ('c@d', NULL), ('c@d', NULL);
CREATE TABLE plain (value);
INSERT INTO plain VALUES (1), (1), ('1'), (x'31'), (NULL);
CREATE INDEX by_email ON customers (email);
CREATE VIEW emails AS SELECT email FROM customers;
CREATE TABLE keyed (name TEXT PRIMARY KEY, made TEXT GENERATED ALWAYS AS (upper(name))) WITHOUT ROWID;
"""


@dataclass
class Watched:
    portal: BlockingPortal
    place: Place
    file: Path

    def seal(self) -> None:
        self.portal.call(self.place.seal)

    def sql(self, script: str) -> None:
        connection = sqlite3.connect(self.file)
        connection.executescript(script)
        connection.close()

    def told(self) -> list[TableWrite]:
        self.place.settle()
        assert self.place.writes is not None
        return list(self.place.writes.writes())

    def short(self) -> set[tuple[str, str, int | None]]:
        return {(one.table, one.operation, one.rows) for one in self.told()}

    def texts(self) -> list[tuple[str, str]]:
        assert self.place.writes is not None
        return list(self.place.writes.texts())


@pytest.fixture
def watched(portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path) -> Iterator[Watched]:
    workspace, private = tmp_path / "workspace", tmp_path / "private"
    workspace.mkdir()
    private.mkdir()
    definition = SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "data.db"})
    log = AuditLog(private / "audit.jsonl")
    scope = CellScope("cell", private, workspace, log, exclusive=False, watches_writes=True)
    with attached(SqliteFile(definition, sandboxes), scope, portal) as place:
        yield Watched(portal, place, workspace / "data.db")


TRIGGER = "CREATE TRIGGER t AFTER INSERT ON plain BEGIN DELETE FROM customers; END;"
WAYS: dict[str, tuple[str, set[tuple[str, str, int | None]]]] = {
    "nothing": ("SELECT * FROM customers", set()),
    "rolled back": ("BEGIN; DELETE FROM customers; ROLLBACK;", set()),
    "undone": ("INSERT INTO plain VALUES (9); DELETE FROM plain WHERE value = 9;", set()),
    "made and dropped": ("CREATE TABLE gone (a); INSERT INTO gone VALUES (1); DROP TABLE gone;", set()),
    "temporary": ("CREATE TEMP TABLE t (a); INSERT INTO t VALUES (1);", set()),
    "analyzed": ("ANALYZE;", set()),
    "vacuumed": ("DELETE FROM plain WHERE rowid = 1; INSERT INTO plain VALUES (1); VACUUM;", set()),
    "numbered on": (
        "INSERT INTO customers (email) VALUES ('x'); DELETE FROM customers WHERE email = 'x';",
        {("customers", "change", None)},
    ),
    "another next number": (
        "UPDATE sqlite_sequence SET seq = 900 WHERE name = 'customers';",
        {("customers", "change", None)},
    ),
    "no next number": ("DELETE FROM sqlite_sequence;", {("customers", "change", None)}),
    "a number for nothing": ("INSERT INTO sqlite_sequence VALUES ('mine', 7);", {("mine", "change", None)}),
    "a version": ("PRAGMA user_version = 7;", {("user_version", "change", None)}),
    "an application": ("PRAGMA application_id = 7;", {("application_id", "change", None)}),
    "a version and back": ("PRAGMA user_version = 7; PRAGMA user_version = 0;", set()),
    "inserted": ("INSERT INTO customers (email) VALUES ('x@y'), ('z');", {("customers", "insert", 2)}),
    "an equal row": ("INSERT INTO plain VALUES (1);", {("plain", "insert", 1)}),
    "deleted": ("DELETE FROM customers WHERE email = 'c@d';", {("customers", "delete", 2)}),
    "updated": ("UPDATE customers SET paid = 2.5 WHERE id = 1;", {("customers", "change", 1)}),
    "in case alone": ("UPDATE customers SET email = 'A@B' WHERE id = 1;", {("customers", "change", 1)}),
    "in type alone": ("UPDATE plain SET value = 1.0 WHERE rowid = 1;", {("plain", "change", 1)}),
    "text for bytes": ("UPDATE plain SET value = '1' WHERE typeof(value) = 'blob';", {("plain", "change", 1)}),
    "replaced": ("REPLACE INTO customers VALUES (1, 'n', 3);", {("customers", "change", 1)}),
    "without rowid": ("INSERT INTO keyed (name) VALUES ('k');", {("keyed", "insert", 1)}),
    "made": ("CREATE TABLE made (a); INSERT INTO made VALUES (1), (2);",
             {("made", "create", None), ("made", "insert", 2)}),
    "dropped": ("DROP TABLE plain;", {("plain", "drop", None)}),
    "altered": ("ALTER TABLE plain ADD COLUMN more;", {("plain", "alter", None)}),
    "renamed": ("ALTER TABLE plain RENAME TO plainer;",
                {("plain", "drop", None), ("plainer", "create", None), ("plainer", "insert", 5)}),
    "indexed": ("CREATE INDEX one ON plain (value);", {("plain", "alter", None)}),
    "a trigger": (f"{TRIGGER} INSERT INTO plain VALUES (7)",
                  {("plain", "create", None), ("customers", "delete", 3), ("plain", "insert", 1)}),
    "a trigger that is gone": (
        f"{TRIGGER} INSERT INTO plain VALUES (7); DELETE FROM plain WHERE value = 7; DROP TRIGGER t;",
        {("customers", "delete", 3)},
    ),
    "a view": ("DROP VIEW emails; CREATE VIEW emails AS SELECT 1;", {("emails", "alter", None)}),
    "full text": ("CREATE VIRTUAL TABLE notes USING fts5(body); INSERT INTO notes VALUES ('a note');", None),  # type: ignore[dict-item]
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_is_told(watched: Watched, way: str) -> None:
    script, expected = WAYS[way]
    watched.sql(STANDING)
    watched.seal()
    watched.sql(script)
    told = watched.short()
    if expected is None:
        assert {table for table, _, _ in told} == {"notes"}
    else:
        assert told == expected


TRIGGER_OF_CUSTOMERS = "CREATE TRIGGER t AFTER UPDATE ON customers BEGIN INSERT INTO plain VALUES (1); END;"


@pytest.mark.parametrize("table", ["keyed", "new"])
def test_a_trigger_that_moves_to_another_table_is_told_of_both(watched: Watched, table: str) -> None:
    watched.sql(f"{STANDING}; {TRIGGER_OF_CUSTOMERS}")
    watched.seal()
    watched.sql("CREATE TABLE new (a); DROP TRIGGER t;")
    watched.sql(TRIGGER_OF_CUSTOMERS.replace("customers", table))
    assert ("customers", "drop", None) in watched.short()


def test_a_table_that_becomes_part_of_a_virtual_one_is_told_by_its_own_name(watched: Watched) -> None:
    watched.sql("CREATE TABLE notes (body); CREATE TABLE notes_content (body); INSERT INTO notes_content VALUES (1);")
    watched.seal()
    watched.sql("UPDATE notes_content SET body = 2; DROP TABLE notes;")
    watched.sql("CREATE VIRTUAL TABLE notes USING fts5(body, content='');")
    assert ("notes_content", "drop", None) in watched.short()


def test_how_it_is_told(watched: Watched) -> None:
    watched.sql(STANDING)
    watched.seal()
    watched.sql("INSERT INTO plain VALUES ('a secret'), (x'ff41'), (12345678)")
    assert watched.told() == [TableWrite("db", "plain", "insert", 3, "comparison")]
    assert watched.texts() == [("plain", "a secret"), ("plain", "\\xffA"), ("plain", "12345678")]
    assert any("undone again is not seen" in sentence for sentence in watched.place.writes.not_seen)  # type: ignore[union-attr]


def test_texts_are_all_there_however_many(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TEXTS_AT_ONCE", 100)
    watched.sql(STANDING)
    watched.seal()
    rows = ", ".join(f"('row {number % 20}')" for number in range(50))
    watched.sql(f"INSERT INTO plain VALUES {rows}")
    watched.told()
    assert sorted(watched.texts()) == sorted(("plain", f"row {number % 20}") for number in range(50))


def test_a_log_that_was_never_folded_in_counts(watched: Watched) -> None:
    watched.sql(STANDING)
    watched.seal()
    writer = sqlite3.connect(watched.file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO plain VALUES (8)")
    writer.commit()
    assert watched.short() == {("plain", "insert", 1)}
    writer.close()


def test_a_file_that_was_not_there_before_has_everything_made(watched: Watched) -> None:
    watched.seal()
    watched.sql("CREATE TABLE orders (id)")
    assert watched.short() == {("orders", "create", None)}


def test_no_file_before_and_none_after_is_no_write(watched: Watched) -> None:
    watched.seal()
    assert watched.short() == set()


def test_a_file_that_the_agent_deleted_has_everything_dropped(watched: Watched) -> None:
    watched.sql("CREATE TABLE orders (id); CREATE TABLE lines (id)")
    watched.seal()
    watched.file.unlink()
    assert watched.short() == {("orders", "drop", None), ("lines", "drop", None)}


def _garbage(file: Path) -> None:
    file.write_bytes(b"this is not a database" * 1000)


def _torn(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[100:4000] = os.urandom(3900)
    file.write_bytes(whole)


def _link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _huge(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate((1 << 30) + 1)


@pytest.mark.parametrize("breaks", [_garbage, _torn, _link, _directory, _huge])
def test_a_file_that_the_agent_made_unreadable_is_a_write_to_everything(
    watched: Watched, breaks: Callable[[Path], None]
) -> None:
    watched.sql(STANDING)
    watched.seal()
    breaks(watched.file)
    assert watched.told() == [TableWrite("db", "*", "change", None, "comparison", what="database")]
    assert watched.texts() == []


@pytest.mark.parametrize("breaks", [_garbage, _link, _directory])
def test_what_was_no_database_before_the_agent_is_an_error_at_once(
    watched: Watched, breaks: Callable[[Path], None]
) -> None:
    watched.sql(STANDING)
    breaks(watched.file)
    with pytest.raises(ServiceError, match=r"service db: what is written"):
        watched.seal()


def test_a_file_put_in_its_place_counts_by_what_is_in_it(watched: Watched) -> None:
    watched.sql(STANDING)
    watched.seal()
    other = watched.file.with_name("other.db")
    connection = sqlite3.connect(other)
    connection.executescript(STANDING + "INSERT INTO plain VALUES (2)")
    connection.close()
    other.replace(watched.file)
    assert watched.short() == {("plain", "insert", 1)}


def test_a_hard_link_is_the_same_file(watched: Watched) -> None:
    watched.sql(STANDING)
    watched.seal()
    os.link(watched.file, watched.file.with_name("elsewhere.db"))
    connection = sqlite3.connect(watched.file.with_name("elsewhere.db"))
    connection.execute("DELETE FROM plain")
    connection.commit()
    connection.close()
    assert watched.short() == {("plain", "delete", 5)}


def test_rows_are_not_read_by_an_index(watched: Watched) -> None:
    """An index that says otherwise than its table, made by moving its root."""
    watched.sql("CREATE TABLE t (a, b AS (a || a) STORED); CREATE TABLE u (a, b AS (a || a) STORED);"
                "CREATE INDEX i ON t (a); CREATE INDEX j ON u (a);"
                "INSERT INTO t (a) VALUES ('old'); INSERT INTO u (a) VALUES ('old')")  # fmt: skip
    watched.seal()
    watched.sql("UPDATE t SET a = 'new'; PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = "
                "(SELECT rootpage FROM sqlite_master WHERE name = 'j') WHERE name = 'i'")  # fmt: skip
    assert watched.short() == {("t", "change", 1)}


def test_names_in_any_bytes_are_told(watched: Watched) -> None:
    watched.sql('CREATE TABLE "o\'clock ""x"" %s 表" ("a b" TEXT)')
    watched.seal()
    watched.sql('INSERT INTO "o\'clock ""x"" %s 表" VALUES (\'v\')')
    assert watched.short() == {('o\'clock "x" %s 表', "insert", 1)}


def test_without_the_wish_nothing_is_looked_at(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path
) -> None:
    definition = SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "data.db"})
    scope = CellScope("cell", tmp_path, tmp_path, AuditLog(tmp_path / "audit.jsonl"), exclusive=False)
    with attached(SqliteFile(definition, sandboxes), scope, portal) as place:
        portal.call(place.seal)
        place.settle()
        assert place.writes is None


def test_both_programs_open_files_with_the_same_care() -> None:
    """Neither imports anything of ours, so each says for itself how a file of an agent's is opened."""
    starts = ('connection.execute("PRAGMA', "connection.setlimit(", "resource.setrlimit(")
    care = []
    for name in ("sqlite_program.py", "comparing_program.py"):
        lines = Path(module.__file__).with_name(name).read_text("utf-8").splitlines()
        # Those with a result are questions.
        care.append({line.strip() for line in lines if line.strip().startswith(starts)})
    assert care[0] == care[1]
    assert len(care[0]) == 9
