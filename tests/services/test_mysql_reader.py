"""Reading MariaDB: what a query may be, and what stops it."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from support.mariadb import MariaDb

from keystone_action.evidence.model import QueryFailed
from keystone_action.services.mysql.reader import MysqlReader, first_word
from keystone_action.services.redefinitions import CatalogueChanges


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("select 1", "SELECT"),
        ("  \n\t(SELECT 1) UNION (SELECT 2)", "SELECT"),
        ("-- why\nSELECT 1", "SELECT"),
        ("# why\nSELECT 1", "SELECT"),
        ("/* why\n*/ /**/ WITH x AS (SELECT 1) SELECT 1", "WITH"),
        ("/*! DROP TABLE t */", ""),
        ("/*M! DROP TABLE t */", ""),
        ("/* DROP */ DROP TABLE t", "DROP"),
        ("--DROP", ""),
        ("", ""),
        ("/* never closed", ""),
        ("-- only a comment", ""),
    ],
)
def test_the_first_word_decides_what_a_statement_is(statement: str, word: str) -> None:
    assert first_word(statement) == word


@pytest.fixture
def reader(mariadb: MariaDb) -> MysqlReader:
    database, user, password = mariadb.make_database()
    with mariadb.connect(database=database, autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int)")
        cursor.execute("INSERT INTO t VALUES (1)")
        cursor.execute(
            "CREATE FUNCTION grow() RETURNS int MODIFIES SQL DATA BEGIN INSERT INTO t VALUES (2); RETURN 1; END"
        )
    return MysqlReader(
        {"host": "127.0.0.1", "port": mariadb.port, "user": user, "password": password, "database": database}
    )


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t",
        "TRUNCATE t",
        "RENAME TABLE t TO u",
        "INSERT INTO t VALUES (2)",
        "SET GLOBAL read_only = 1",
        "COMMIT",
        "CALL nothing()",
        "SELECT grow()",
        "SELECT 1; DROP TABLE t",
        "/*! DROP TABLE t */",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
    ],
)
def test_nothing_is_changed(reader: MysqlReader, statement: str) -> None:
    with pytest.raises(QueryFailed) as refused:
        reader.query(statement, timeout=10)
    assert not refused.value.by_agent
    assert reader.query("SELECT count(*) FROM t", timeout=10).rows == ((1,),)


@pytest.mark.parametrize("statement", ["SHOW TABLES", "DESCRIBE t", "EXPLAIN SELECT 1", "(SELECT 1)", "VALUES (1)"])
def test_other_questions_are_queries_too(reader: MysqlReader, statement: str) -> None:
    assert reader.query(statement, timeout=10).rows


def test_a_lock_of_somebody_else_is_waited_for_no_longer_than_the_limit(reader: MysqlReader, mariadb: MariaDb) -> None:
    with mariadb.connect(database=reader.connection["database"]) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(QueryFailed, match="time limit of 1 s"):
            reader.query("SELECT * FROM t", timeout=1)


def test_an_unknown_database_is_undefined(reader: MysqlReader) -> None:
    with pytest.raises(QueryFailed) as missing:
        reader.query("SELECT * FROM information_schema.nowhere", timeout=10)
    assert missing.value.by_agent


def test_a_wrong_password_is_no_fault_of_the_agents(reader: MysqlReader) -> None:
    with pytest.raises(QueryFailed, match="Access denied") as refused:
        MysqlReader({**reader.connection, "password": "no"}).query("SELECT 1", timeout=10)
    assert not refused.value.by_agent


@pytest.mark.waits
def test_a_server_that_says_nothing_is_no_query_at_its_limit() -> None:
    """The connection's own time-out is not the query's limit: no query had begun."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        silent = MysqlReader({"host": "127.0.0.1", "port": port, "user": "u", "password": "p", "database": "d"})
        with pytest.raises(QueryFailed) as failed:
            silent.query("SELECT 1", timeout=1)
    assert "time limit" not in str(failed.value)
    assert not failed.value.by_agent


def test_a_line_that_timed_out_below_us_is_no_query_at_its_limit(reader: MysqlReader) -> None:
    def lost() -> CatalogueChanges:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    with pytest.raises(QueryFailed, match="Connection timed out") as failed:
        MysqlReader(reader.connection, lost).query("SELECT 1", timeout=30)
    assert "time limit" not in str(failed.value)


def test_a_query_at_its_limit_is_told_as_that(reader: MysqlReader) -> None:
    with pytest.raises(QueryFailed, match="time limit of 1 s"):
        reader.query("SELECT benchmark(1000000000000, sha2('x', 512))", timeout=1)
