"""Scripts for PostgreSQL that are made to hang a run, to open a database to others, or to show rows in a message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import psycopg
import pytest
from support.databases import PostgresCell, PostgresForTests

from keystone_action.errors import ServiceError
from keystone_action.services.mysql import client_script
from keystone_action.services.mysql.client_script import ClientScript
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.sql_script import ScriptError, SqlScript, Statement, begins

_AT_ONCE = 60.0
_LONG = 100_000
_LINES = 2_000


@pytest.fixture
def new_cell(postgres: PostgresForTests) -> Iterator[PostgresCell]:
    made = postgres.attach()
    yield made
    made.close()


def run(cell: PostgresCell, text: str) -> tuple[str, ...]:
    return cell.run(SqlScript("f.sql", text=text))


def refused(cell: PostgresCell, text: str) -> ServiceError:
    with pytest.raises(ServiceError) as failure:
        run(cell, text)
    return failure.value


@pytest.mark.parametrize("banner", ["-" * _LONG, "-- " * _LONG, f"/*{'-' * _LONG}*/", "\n" * _LINES, "--\n" * _LINES])
def test_a_banner_of_any_length_above_a_statement_takes_no_time(new_cell: PostgresCell, banner: str) -> None:
    begun = time.monotonic()
    run(new_cell, f"{banner}\nCREATE TABLE t (a int DEFAULT 1); -- of no database\n{banner}\nSELECT 'database'")
    problem = refused(new_cell, f"{banner}\nCREATE TABLE gone.t (a text DEFAULT 'database');").message
    assert f"f.sql:{banner.count(chr(10)) + 2}: CREATE TABLE gone.t" in problem
    run(new_cell, f"{banner}\nCOMMENT ON DATABASE shop IS 'found'")
    assert time.monotonic() - begun < _AT_ONCE


@pytest.mark.parametrize("middle", [" " * _LONG, "x" * _LONG, "'" * _LONG])
def test_a_copy_of_any_length_takes_no_time(new_cell: PostgresCell, middle: str) -> None:
    begun = time.monotonic()
    for end in (" x", ";x", " from f.csv;x", f" from f.csv{' ' * _LONG};x"):
        for begin in ("t", "t from ", "t from '"):
            refused(new_cell, f"\\copy {begin}{middle}{end}")
    assert time.monotonic() - begun < _AT_ONCE


def test_blanks_before_the_name_of_a_database_of_mysql_take_no_time() -> None:
    begun = time.monotonic()
    for text in (b"create database if exists" + b" " * _LONG + b"*", b"/*!" + b" " * _LONG, b" " * _LONG + b"-"):
        client_script._OF_DATABASE.match(text)
    assert time.monotonic() - begun < _AT_ONCE
    for text in (
        b"DROP DATABASE /*!32312 IF EXISTS*/ `shop`",
        b"DROP DATABASE IF EXISTS `shop`",
        b"drop schema `shop`",
    ):
        found: Any = client_script._OF_DATABASE.match(text)
        assert found["name"] == b"`shop`"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (b"", 0),
        (b" -- a\n/* b /* c */ -- */ x", 25),
        (b"--", 2),
        (b"/* -- */x", 8),
        (b"/* open", 7),
        (b"- x", 0),
    ],
)
def test_where_a_statement_begins(text: bytes, at: int) -> None:
    assert begins(text) == at


@pytest.mark.parametrize("text", ["'" + "\\'" * _LONG, "'\\" * _LONG, "/*" * _LONG, '"' + "'\"" * _LONG, "-" * _LONG])
def test_a_look_at_the_kind_of_a_statement_takes_no_time(text: str) -> None:
    begun = time.monotonic()
    for before in ("", "INSERT INTO t VALUES ("):
        assert Statement((before + text).encode(), 1, ("insert",)).head in ("", "INSERT INTO t")
    assert time.monotonic() - begun < _AT_ONCE


OPENED = """CREATE DATABASE shop;
GRANT CONNECT ON DATABASE shop TO PUBLIC;
\\connect shop
CREATE TABLE orders (id int);
GRANT ALL ON orders TO PUBLIC;
"""


def test_no_grant_lets_the_agent_of_another_cell_into_a_database(postgres: PostgresForTests) -> None:
    mine, other = postgres.attach(), postgres.attach()
    there, role = mine.place.for_agent, other.place.for_agent
    url = f"postgresql://{role.user}:{role.password}@{role.host}:{role.port}/{there.database}"

    def is_out() -> None:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(url)

    mine.run(SqlScript("sql", text=OPENED))
    is_out()
    mine.agent().execute(f"GRANT CONNECT ON DATABASE {there.database} TO {role.user} WITH GRANT OPTION".encode())
    with psycopg.connect(url, autocommit=True) as early:
        mine.seal()
        with pytest.raises(psycopg.OperationalError):
            early.execute("INSERT INTO orders VALUES (1)")
    is_out()
    # The agent's own session goes on, and so does the other cell.
    mine.agent_sessions[0].execute("INSERT INTO orders VALUES (2)")
    mine.agent_sessions[0].execute(f"GRANT ALL ON DATABASE {there.database} TO PUBLIC".encode())
    with psycopg.connect(url, autocommit=True) as late:
        mine.place.settle()
        with pytest.raises(psycopg.OperationalError):
            late.execute("INSERT INTO orders VALUES (3)")
    is_out()
    assert mine.query("SELECT id FROM orders").rows == ((2,),)
    cast(PostgresPlace, mine.place).cell.restore_access()
    is_out()
    assert other.agent().execute("SELECT 1").fetchone() == (1,)
    assert mine.agent().execute("SELECT count(*) FROM orders").fetchone() == (1,)
    other.close()
    mine.close()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"CREATE TABLE t (a int);\n" + b"\0" * 512, 2),
        (b"CREATE TABLE t (a int);\nINSERT INTO t VALUES (1)\0, (2);\n", 2),
        ("CREATE TABLE t (a int);\nSELECT 1;".encode("utf-16-be"), 1),
        ("CREATE TABLE t (a int);\nSELECT 1;".encode("utf-16-le"), 1),
    ],
)
def test_a_nul_outside_of_rows_is_refused_where_it_stands(
    new_cell: PostgresCell, tmp_path: Path, text: bytes, line: int
) -> None:
    """libpq takes a text up to the first: nothing of a file in UTF-16 would be loaded, and half of a damaged one."""
    file = tmp_path / "f.sql"
    file.write_bytes(text)
    script = SqlScript("f.sql", path=file, directory=tmp_path)
    with pytest.raises(ServiceError) as failure:
        new_cell.run(script)
    assert f"f.sql:{line}: there is a NUL byte in it" in failure.value.message
    assert "save it as UTF-8" in failure.value.help
    session = MagicMock(server_status=0)
    session.cursor.return_value.__enter__.return_value.nextset.return_value = False
    with pytest.raises(ScriptError, match=f"f.sql:{line}: there is a NUL byte"):
        ClientScript(script, lambda: session, "shop").run()


def test_the_rows_of_a_binary_copy_have_nul_bytes(new_cell: PostgresCell, tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_bytes(b"PGCOPY\n\xff\r\n\0" + b"\0" * 8 + b"\0\1" + b"\0\0\0\4\0\0\0\7" + b"\xff\xff")
    file = tmp_path / "f.sql"
    file.write_text("CREATE TABLE t (a int);\n\\copy t from rows.bin with (format binary)\n")
    new_cell.run(SqlScript("f.sql", path=file, directory=tmp_path, includes=None))
    assert new_cell.agent().execute("SELECT a FROM t").fetchall() == [(7,)]


def test_a_transaction_that_connect_would_drop_is_refused(new_cell: PostgresCell) -> None:
    failure = refused(new_cell, "BEGIN;\nCREATE TABLE t (a int);\n\\connect -\n")
    assert "f.sql:3: \\connect ends a transaction that is open, and nothing of that would be kept" in failure.message
    run(new_cell, "BEGIN;\nCREATE TABLE t (a int);\nCOMMIT;\n\\connect -\nINSERT INTO t VALUES (1);")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("INSERT INTO t VALUES ('O\\'Neil\\nhunter2-secret');", "f.sql:1: \\… is a command of psql's"),
        ("INSERT INTO t VALUES ('a\\'hunter2\\b');", "f.sql:1: \\… is a command of psql's"),
        ("1;\nAlice Hunter2 lives here;", "f.sql:1: a statement: syntax error"),
        ("-- x\nHunter2 Smith lives here", "f.sql:2: a statement: syntax error"),
        ("Grant Hunter2 lives here", "f.sql:1: a statement: syntax error"),
        ("\\! ls", "f.sql:1: \\! is a command of psql's"),
        ("\\dt+ x", "f.sql:1: \\dt+ is a command of psql's"),
        ("grant nothing on t to x", "f.sql:1: grant nothing on t"),
    ],
)
def test_no_piece_of_a_row_stands_in_a_message(new_cell: PostgresCell, text: str, said: str) -> None:
    problem = refused(new_cell, text)
    assert said in problem.message
    assert "hunter2" not in f"{problem.message} {problem.help}".lower()
