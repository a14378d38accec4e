"""Scripts for MySQL and MariaDB: dumps of `mariadb-dump`, what people write for the client, and what a failure says."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pymysql
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.dumps import mariadb_dump, run_mariadb
from support.mariadb import MariaDb

from keystone_action.errors import ServiceError
from keystone_action.services.mysql.client_script import ClientCommand, ClientScript, ClientSplitter, script_session
from keystone_action.services.sql_script import SqlScript, Statement, run_script

SHOP = """
CREATE TABLE buyers (
    id int unsigned AUTO_INCREMENT PRIMARY KEY, name varchar(40) NOT NULL, memo text, photo blob,
    mood ENUM('fine', 'it''s; bad'), paid decimal(12, 2), `odd ``name` varchar(9) DEFAULT '-- x'
) ENGINE=InnoDB COMMENT='who buys; and -- who "pays"';
INSERT INTO buyers (name, memo, photo, mood, paid) VALUES
    ('Zoë', 'one\\ntwo\\\\.\\ttab', x'00ff5c27', 'fine', 1.50),
    ('O''Neil; DROP', NULL, NULL, 'it''s; bad', NULL),
    ('/* ; */ -- #', 'delimiter //', '', NULL, 0.01), ("double 'quoted'", '\\\\', x'2f2a21', NULL, NULL);
CREATE VIEW names AS SELECT name, ';' AS semicolon FROM buyers WHERE memo IS NULL OR memo <> '--';
DELIMITER //
CREATE TRIGGER set_memo BEFORE INSERT ON buyers FOR EACH ROW
BEGIN
  -- it's; a comment
  IF NEW.memo IS NULL THEN SET NEW.memo = 'set; by //trigger'; END IF;
END//
CREATE PROCEDURE add_one(IN n int)
BEGIN
  INSERT INTO buyers (name) VALUES (CONCAT('p', n)); /* ; */
  SELECT 'done;';
END//
CREATE FUNCTION twice(n int) RETURNS int DETERMINISTIC RETURN n * 2//
DELIMITER ;
CALL add_one(7);
INSERT INTO buyers (name) VALUES ('last')
""".replace("set; by //trigger", "set; by trigger")


@dataclass
class Cell:
    """A database with a user of its own."""

    keywords: dict[str, Any]

    def run(self, script: SqlScript | str) -> tuple[str, ...]:
        one = SqlScript("sql", text=script) if isinstance(script, str) else script
        name = self.keywords["database"]
        run = ClientScript(one, lambda: script_session(self.keywords), name, [name, "shop"]).run
        return anyio.run(run_script, "db", one, run, [pymysql.err.MySQLError])

    def refused(self, script: SqlScript | str) -> ServiceError:
        with pytest.raises(ServiceError) as failure:
            self.run(script)
        return failure.value

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with pymysql.connect(**self.keywords) as session, session.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


NewCell = Callable[[], Cell]


@pytest.fixture
def new_cell(mariadb: MariaDb) -> NewCell:
    def make() -> Cell:
        name, user, password = mariadb.make_database()
        where = {"host": "127.0.0.1", "port": mariadb.port}
        return Cell({**where, "user": user, "password": password, "database": name})

    return make


def script(path: Path, *, includes: frozenset[Path] | None = None) -> SqlScript:
    return SqlScript(path.name, path=path, directory=path.parent.resolve(), includes=includes)


def without_names(dump: bytes) -> bytes:
    """Of databases and their users, which have the same."""
    return re.sub(rb"db_[0-9a-f]{8}", b"shop", dump)


def test_a_dump_is_loaded_as_the_client_loads_it(new_cell: NewCell, tmp_path: Path) -> None:
    source, by_client, ours = new_cell(), new_cell(), new_cell()
    file = tmp_path / "dump.sql"
    file.write_text(SHOP)
    assert run_mariadb(source.keywords, file).returncode == 0
    ours.run(script(file))
    expected = mariadb_dump(source.keywords)
    assert b"DELIMITER ;;" in expected
    assert b"/*!50003 TRIGGER" in expected or b"TRIGGER" in expected
    assert without_names(mariadb_dump(ours.keywords)) == without_names(expected)
    # What its user may not do, to make another user the definer, is left out by us, and counted.
    file.write_bytes(expected.replace(source.keywords["user"].encode(), by_client.keywords["user"].encode()))
    assert run_mariadb(by_client.keywords, file).returncode == 0
    loaded = new_cell()
    (notice,) = loaded.run(script(file))
    assert re.fullmatch(r"fixture dump.sql: passed over \d definers \(not here: `db_\w+`@`%`\)", notice)
    by_both = [without_names(mariadb_dump(one.keywords)) for one in (by_client, loaded)]
    assert by_both[0] == by_both[1] == without_names(expected)


def test_a_byte_order_mark_and_line_ends_of_windows_do_no_harm(new_cell: NewCell, tmp_path: Path) -> None:
    cell, file = new_cell(), tmp_path / "dump.sql"
    file.write_bytes(b"\xef\xbb\xbf" + SHOP.replace("\n", "\r\n").encode())
    cell.run(script(file))
    assert cell.rows("SELECT name, memo FROM buyers WHERE id IN (1, 6) ORDER BY id") == [
        ("Zoë", "one\ntwo\\.\ttab"),
        ("last", "set; by trigger"),
    ]


def test_use_of_the_specs_database_means_the_cells(new_cell: NewCell) -> None:
    cell = new_cell()
    cell.run("USE `shop`;\nuse shop\n;\nCREATE TABLE t (a int);")
    assert cell.rows("SELECT * FROM t") == []
    assert "sql:1: use mysql: Access denied" in cell.refused("use mysql;").message


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (f"INSERT INTO t VALUES (1, '{SECRET}'), (1, 'x');", "2: INSERT INTO t", "Duplicate entry …"),
        (f"INSERT INTO t VALUES ('{SECRET}', 'x');", "2: INSERT INTO t", "Incorrect integer value: …"),
        (f"INSERT INTO t VALUES (1, '{SECRET}{SECRET}');", "2: INSERT INTO t", "Data too long for column …"),
        (f"INSERT INTO t VALUES (1, {SECRET});", "2: INSERT INTO t", "Unknown column …"),
        (f"INSERT INTO t VALUES (1,\n'{SECRET}' {SECRET});", "2: INSERT INTO t", "You have an error in your SQL"),
        (f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{SECRET}';", "2: SIGNAL", "refused it (error 1644)"),
        (f"SELECT 1; UPDATE t SET name = '{SECRET}' WHERE nothing = 1;", "2: UPDATE t", "Unknown column …"),
        ("INSERT INTO nowhere VALUES (1);", "2: INSERT INTO nowhere", "nowhere' doesn't exist"),
        (
            "CREATE TABLE u (a text) COLLATE utf8mb4_nothing;",
            "2: CREATE TABLE u",
            "Unknown collation: 'utf8mb4_nothing'",
        ),
        ("LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t;", "2: LOAD", "LOCAL is not run here"),
        ("GRANT SELECT ON t TO someone;", "2: GRANT", "denied"),
    ],
)
def test_a_failure_names_file_line_and_statement_and_no_row(
    new_cell: NewCell, tmp_path: Path, text: str, place: str, says: str
) -> None:
    cell, file = new_cell(), tmp_path / "dump.sql"
    cell.run("CREATE TABLE t (id int PRIMARY KEY, name varchar(10))")
    file.write_text(f"-- {SECRET}\n{text}")
    failure = cell.refused(script(file))
    assert f"service db refused a fixture: dump.sql:{place}" in failure.message
    assert says in failure.message
    assert SECRET not in failure.sentences


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT 1;\nSELECT 'a", "2: the file ends within a text in quotes that begins in line 2"),
        ("SELECT `a;\n\n", "2: the file ends within a text in quotes that begins in line 1"),
        ("/* a\n", "1: the file ends within a comment that begins in line 1"),
        ("SELECT\n/*+ a; b\n", "2: the file ends within a comment that begins in line 2"),
        ("START TRANSACTION;\nINSERT INTO t VALUES (1);", "it ends within a transaction that it began"),
    ],
)
def test_a_script_that_was_cut_off_is_refused(new_cell: NewCell, text: str, says: str) -> None:
    cell = new_cell()
    cell.run("CREATE TABLE t (a int)")
    failure = cell.refused(text)
    assert says in failure.message
    assert "cut off" in failure.help


class TestCommands:
    def test_files_below_the_spec_are_included(self, new_cell: NewCell, tmp_path: Path) -> None:
        cell = new_cell()
        (tmp_path / "parts").mkdir()
        (tmp_path / "dump.sql").write_text("CREATE TABLE t (a int);\nsource parts/one.sql\n\\. parts/two.sql\n")
        (tmp_path / "parts/one.sql").write_text("INSERT INTO t VALUES (1);\ndelimiter //\n")
        (tmp_path / "parts/two.sql").write_text("INSERT INTO t VALUES (2)//\nINSERT INTO t VALUES (3)")
        cell.run(script(tmp_path / "dump.sql"))
        assert cell.rows("SELECT a FROM t ORDER BY a") == [(1,), (2,), (3,)]

    @pytest.mark.parametrize("name", ["../outside.sql", "/etc/passwd", "none.sql"])
    def test_nothing_else_is(self, new_cell: NewCell, tmp_path: Path, name: str) -> None:
        (tmp_path / "outside.sql").write_text("SELECT 1")
        folder = tmp_path / "spec"
        folder.mkdir()
        (folder / "dump.sql").write_text(f"SELECT 1;\nsource {name}\n")
        message = new_cell().refused(script(folder / "dump.sql")).message
        assert f"dump.sql:2: there is no file {name!r} below the spec's folder" in message

    @pytest.mark.parametrize(
        "line",
        [
            "\\! touch {}", "system touch {}", "SELECT 1 \\! touch {}", "tee {}", "\\T {}", "pager touch {}", "\\P {}",
            "edit", "\\e", "connect mysql", "\\r mysql", "charset latin1", "\\C latin1", "exit", "\\q", "SELECT 1\\G",
            "SELECT 1 \\g", "clear", "\\c", "help", "status", "delimiter", "delimiter \\\\", "source", "\\.",
        ],
    )  # fmt: skip
    def test_no_other_command_is_run(self, new_cell: NewCell, tmp_path: Path, line: str) -> None:
        victim = tmp_path / "victim"
        assert "sql:2: " in new_cell().refused(f"SELECT 1;\n{line.format(victim)}\n;").message
        assert not victim.exists()


def split(text: str) -> list[str]:
    splitter = ClientSplitter()
    found: list[Statement] = []
    for number, line in enumerate(text.encode().splitlines(keepends=True), 1):
        for one in splitter.feed(line, number):
            if isinstance(one, Statement):
                found.append(one)
            else:
                assert isinstance(one, ClientCommand)
                if one.name != "delimiter" or not one.rest.strip():
                    raise ValueError(one.name)
                splitter.delimiter = one.rest.split()[0]
    rest = splitter.finish()
    return [one.text.decode() for one in (*found, *([rest] if rest is not None else []))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a; b", ["a", "b"]),
        (";;; a;;", ["a"]),
        ("-- a;\n/* b; */# c;\n;", []),
        ("a -- ;\n b;", ["a  b"]),
        ("a--1; b", ["a--1", "b"]),
        ("--a;\nb;", ["b"]),
        (r"a 'x\';' b; c 'y''z;'; d", [r"a 'x\';' b", "c 'y''z;'", "d"]),
        (r"a `x\`; b", [r"a `x\`", "b"]),
        ("a /*!50003 b '*/;' */; c", ["a /*!50003 b '*/;' */", "c"]),
        ("DELIMITER $$\na; b$$ c\n$$\ndelimiter ;\nd", ["a; b", "c", "d"]),
        ("delimiter go\na ; b go\nc go", ["a ; b", "c"]),
        (r"a = \N; b", [r"a = \N", "b"]),
        ("delimiter //\na *// b//", ["a *", "b"]),
        ("delimiter //\na /*! b *///c//", ["a /*! b *", "/c"]),
        ("/*/ a; */ b; /* /*/ c; */ d; */ e", ["b", "d", "*/ e"]),
        ("a /*+ b; 'c */ d; e", ["a /*+ b; 'c */ d", "e"]),
        ("/*+ a */; b /*! c /* d; */ e; f */", ["b /*! c e", "f */"]),
        ("a /*! b */* c; */ d; e", ["a /*! b * d", "e"]),
    ],
)
def test_statements_end_where_they_end(text: str, expected: list[str]) -> None:
    assert [" ".join(one.split()) for one in split(text)] == [" ".join(one.split()) for one in expected]


@pytest.mark.parametrize("unit", ["(", "/*", "'", '"', "'\\", "a", "--\n", "-", ";", "/*!", "\\N", "DELIMITER x\n"])
def test_a_hostile_script_is_split_in_time_that_grows_with_its_length(unit: str) -> None:
    """Were it the square of it, this would take an hour."""
    with contextlib.suppress(ValueError):
        split(unit * 200_000)


PIECES = st.sampled_from(
    ["SELECT 1", "SELECT ", "'a;'", "'a\\'", "'a\\\\'", '"b;"', "`c;`", "/*", "*/", "/", "*", "/*!50003 ", "/*+ ",
     "-- ", "--", "#", "\n", ";", ";\n", "\ndelimiter // \n", "//", "\ndelimiter ; \n", "1", ",", " ", "'", "-", "x"]
)  # fmt: skip
_LOST_BY_MARIADB = re.compile(r"/\*M?!(?:(?!\*/).)*/\*(?!M?!)|/\*(?!M?!)(?:(?!\*/)[\s\S])*/\*M?!")
"""A comment in one with a version in one line, or the reverse: MariaDB's client goes on to the end of both and sends
nothing of that. MySQL's, whose dumps have it, sends all, and so do we."""


@pytest.mark.property
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(PIECES, max_size=12).map("".join))
@example(text="\ndelimiter //\nSELECT 1 *//SELECT 2//")
@example(text="\ndelimiter //\nSELECT /*!50003 1 *///SELECT 2//")
@example(text="*/*/")
@example(text="/*/*/*")
@example(text="SELECT /*! 2 */*3;SELECT 4")
@example(text="SELECT /*!50003 1; SELECT 2")
@example(text="SELECT 1; SELECT /*!50003 2")
@example(text="SELECT /*+ 1; */ 2; SELECT 3")
def test_scripts_are_split_as_the_client_splits_them(text: str, mariadb: MariaDb, tmp_path: Path) -> None:
    """The server's log has each statement that was sent."""
    assume(_LOST_BY_MARIADB.search(text) is None)
    file = tmp_path / secrets.token_hex(8)
    file.write_text(text)
    mark = secrets.token_hex(8)
    with mariadb.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL log_output = 'TABLE'")
        cursor.execute("TRUNCATE mysql.general_log")
        cursor.execute("SET GLOBAL general_log = 1")
        where = {"host": "127.0.0.1", "port": mariadb.port, "user": "tester", "password": mariadb.password}
        try:
            run_mariadb({**where, "database": "mysql"}, file, "--force")
        finally:
            cursor.execute("SET GLOBAL general_log = 0")
        cursor.execute(
            "SELECT argument FROM mysql.general_log WHERE command_type = 'Query' AND thread_id <> connection_id()"
            " ORDER BY event_time"
        )
        sent = [_bare(row[0]) for row in cursor.fetchall()]
    assert mark
    try:
        ours = [_bare(one) for one in split(text)]
    except ValueError:
        return
    assert [one for one in ours if one] == [one for one in sent if one], text


_COMMENT = re.compile(r"--(?:[^\S\n][^\n]*|$)|#[^\n]*|/\*(?!M?!)[\s\S]*?\*/", re.MULTILINE)


def _bare(text: str | bytes) -> str:
    """Without blanks and comments that have no meaning, nor the semicolons at its end, which the server takes away."""
    whole, before = text.decode() if isinstance(text, bytes) else text, ""
    while whole != before:  # what stood on both sides of a comment may be one
        before, whole = whole, _COMMENT.sub("", whole)
    return re.sub(r"\s+", "", whole).rstrip(";")
