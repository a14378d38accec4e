"""sql against the embedded PostgreSQL, a real MariaDB and SQLite: pass, fail and error on each, and each operator."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from pydantic import ValidationError
from support.context import grade, make_check
from support.databases import PostgresForTests
from support.mariadb import MariaDb

from keystone_action.evidence.model import Database
from keystone_action.invariants.check import Outcome
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.sqlite.reader import SqliteProcess, SqliteReader

TABLES = (
    "CREATE TABLE customers_a (id int PRIMARY KEY, email varchar(80))",
    "CREATE TABLE customers_b (id int PRIMARY KEY, email varchar(80))",
    "INSERT INTO customers_a VALUES (1, 'a@example.com'), (2, 'b@example.com'), (3, NULL)",
    "INSERT INTO customers_b VALUES (1, 'a@example.com'), (2, 'b@example.com'), (3, NULL)",
)
MISMATCHES = """
    SELECT count(*) FROM customers_a a
    LEFT JOIN customers_b b ON a.id = b.id
    WHERE b.id IS NULL OR a.email != b.email
"""


class Engine:
    """A database that the agent works on, as it does (`change`) and as a check sees it (`database`)."""

    def __init__(self, name: str, database: Database, change: Any) -> None:
        self.name = name
        self.database = database
        self.change = change


KINDS = ("postgres", "mariadb", "sqlite")


@pytest.fixture(params=KINDS)
def own_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """One that the agent changes, or that a check is stopped in."""
    yield from made(request, tmp_path)


@pytest.fixture(scope="module", params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One for all that only read."""
    yield from made(request, tmp_path_factory.mktemp("database"))


def made(request: pytest.FixtureRequest, place: Path) -> Iterator[Engine]:
    """The engine of the kind that the fixture is parametrised with, laid out."""
    with contextlib.ExitStack() as stack:
        engine = MAKERS[request.param](request, place, stack)
        for statement in TABLES:
            engine.change(statement)
        yield engine


def make_postgres(request: pytest.FixtureRequest, _path: Path, stack: contextlib.ExitStack) -> Engine:
    server: PostgresForTests = request.getfixturevalue("postgres")
    cell = server.attach()
    stack.callback(cell.close)
    assert cell.place.database is not None
    session = cell.agent()
    return Engine("postgres", cell.place.database, lambda sql: session.execute(sql.encode()))


def make_mariadb(request: pytest.FixtureRequest, _path: Path, stack: contextlib.ExitStack) -> Engine:
    server: MariaDb = request.getfixturevalue("mariadb")
    name, user, password = server.make_database()
    keywords = {"host": "127.0.0.1", "port": server.port, "user": user, "password": password, "database": name}
    session = stack.enter_context(server.connect(user=user, password=password, database=name, autocommit=True))
    return Engine("mariadb", MysqlReader(keywords), lambda sql: session.cursor().execute(sql))


def make_sqlite(request: pytest.FixtureRequest, path: Path, stack: contextlib.ExitStack) -> Engine:
    (path / "workspace").mkdir()
    (path / "private").mkdir()
    session = sqlite3.connect(path / "workspace" / "data.db", isolation_level=None)
    stack.callback(session.close)
    portal: BlockingPortal = request.getfixturevalue("portal")
    process = portal.call(made_in_loop, request.getfixturevalue("sandboxes"), path / "private")
    stack.callback(portal.call, process.close)
    return Engine("sqlite", SqliteReader(path / "workspace", "data.db", process), session.execute)


async def made_in_loop(host: ProcessSandboxes, private: Path) -> SqliteProcess:
    return SqliteProcess(host, private)


MAKERS = {"postgres": make_postgres, "mariadb": make_mariadb, "sqlite": make_sqlite}


def ask(engine: Engine, workspace: Path, query: str, *, timeout: float = 20.0, **operators: Any) -> Outcome:
    document = {"type": "sql", "service": "db", "query": query, **operators}
    return grade(document, workspace, evidence={"databases": {"db": engine.database}}, timeout=timeout)


def test_the_sources_example_passes(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, MISMATCHES, equals=0)
    assert (outcome.status, outcome.score) == ("pass", 1.0)
    assert outcome.message == "db answered 0 (integer)."
    assert outcome.details["found"] == [[0]]


def test_the_sources_example_fails(own_database: Engine, tmp_path: Path) -> None:
    own_database.change("UPDATE customers_a SET email = 'x@example.com' WHERE id = 2")
    outcome = ask(own_database, tmp_path, MISMATCHES, equals=0)
    assert (outcome.status, outcome.score) == ("fail", 0.0)
    assert outcome.message == "expected 0 (integer), found 1 (integer)."


def test_a_syntax_error_is_an_error(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, "SELECT FROM WHERE", equals=1)
    assert (outcome.status, outcome.score) == ("error", None)
    assert outcome.message.startswith("db: ")
    assert "syntax" in outcome.message


@pytest.mark.parametrize("query", ["SELECT * FROM nowhere", "SELECT no_such_column FROM customers_a"])
def test_an_undefined_table_or_column_fails(database: Engine, tmp_path: Path, query: str) -> None:
    outcome = ask(database, tmp_path, query, equals=1)
    assert outcome.status == "fail"
    assert "nowhere" in outcome.message or "no_such_column" in outcome.message


def test_a_statement_that_writes_is_an_error_and_does_not(own_database: Engine, tmp_path: Path) -> None:
    writing = "DELETE FROM customers_a", "DROP TABLE customers_a", "CREATE TABLE t (id int)", "SELECT 1; SELECT 2"
    found = {query: ask(own_database, tmp_path, query, equals=1).status for query in writing}
    assert found == dict.fromkeys(writing, "error")
    assert ask(own_database, tmp_path, "SELECT count(*) FROM customers_a", equals=3).status == "pass"


def test_a_query_of_the_authors_over_its_time_is_an_error(own_database: Engine, tmp_path: Path) -> None:
    forever = {
        "postgres": "SELECT pg_sleep(30)",
        "mariadb": "SELECT count(*) FROM information_schema.columns a, information_schema.columns b,"
        " information_schema.columns c",
        "sqlite": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    }
    outcome = ask(own_database, tmp_path, forever[own_database.name], equals=1, timeout=0.5)
    assert outcome.status == "error"
    assert "time limit of 0.5 s" in outcome.message


@pytest.mark.parametrize(
    ("query", "operators", "status"),
    [
        ("SELECT 5", {"equals": 5}, "pass"),
        ("SELECT 5", {"equals": 5.0}, "pass"),
        ("SELECT 5", {"equals": "5"}, "fail"),
        ("SELECT '5'", {"equals": 5}, "fail"),
        ("SELECT '5'", {"equals": "5"}, "pass"),
        ("SELECT 5", {"not_equals": 5}, "fail"),
        ("SELECT 5", {"not_equals": "5"}, "pass"),
        ("SELECT NULL", {"equals": None}, "pass"),
        ("SELECT NULL", {"not_equals": None}, "fail"),
        ("SELECT 1 FROM customers_a WHERE id = 99", {"equals": None}, "pass"),
        ("SELECT 1 FROM customers_a WHERE id = 99", {"equals": 0}, "fail"),
        ("SELECT 1 FROM customers_a WHERE id = 99", {"gte": 0}, "fail"),
        ("SELECT 5", {"gt": 4, "lt": 6, "gte": 5, "lte": 5}, "pass"),
        ("SELECT 5", {"gt": 5}, "fail"),
        ("SELECT 5", {"lt": 5}, "fail"),
        ("SELECT 5", {"gt": 4, "lt": 5}, "fail"),
        ("SELECT 5", {"gt": "4"}, "fail"),
        ("SELECT 'abc'", {"contains": "b"}, "pass"),
        ("SELECT 'abc'", {"contains": "B"}, "fail"),
        ("SELECT 15", {"contains": "5"}, "fail"),
        ("SELECT 'abc'", {"matches": "^a.c$"}, "pass"),
        ("SELECT 'abc'", {"matches": "^b"}, "fail"),
        ("SELECT 15", {"matches": "5"}, "fail"),
        ("SELECT email FROM customers_a ORDER BY id", {"equals": "a@example.com"}, "pass"),
        ("SELECT email FROM customers_a ORDER BY id", {"not_equals": "a@example.com"}, "fail"),
        ("SELECT email FROM customers_a ORDER BY id LIMIT 1", {"equals": "a@example.com"}, "pass"),
        ("SELECT CAST(1.50 AS DECIMAL(4,2))", {"equals": 1.5}, "pass"),
    ],
)
def test_operators(database: Engine, tmp_path: Path, query: str, operators: dict[str, Any], status: str) -> None:
    assert ask(database, tmp_path, query, **operators).status == status


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([[1, "a@example.com"], [2, "b@example.com"], [3, None]], "pass"),
        ([{"id": 1, "email": "a@example.com"}, [2, "b@example.com"], {"email": None, "id": 3}], "pass"),
        ([[1, "a@example.com"], [2, "b@example.com"]], "fail"),
        ([[2, "b@example.com"], [1, "a@example.com"], [3, None]], "fail"),
        ([{"id": 1}, {"id": 2}, {"id": 3}], "fail"),
        ([["1", "a@example.com"], [2, "b@example.com"], [3, None]], "fail"),
        ([], "fail"),
    ],
)
def test_rows_are_the_whole_result(database: Engine, tmp_path: Path, rows: list[Any], status: str) -> None:
    assert ask(database, tmp_path, "SELECT id, email FROM customers_a ORDER BY id", rows=rows).status == status


@pytest.mark.parametrize(("expected", "status"), [(1, "pass"), (2, "fail")])
def test_of_several_rows_the_first_counts_and_a_notice_says_how_many_there_were(
    database: Engine, tmp_path: Path, expected: int, status: str
) -> None:
    outcome = ask(database, tmp_path, "SELECT id, email FROM customers_a ORDER BY id", equals=expected, gte=1)
    assert outcome.status == status
    assert outcome.notices == ("the query gave 3 rows, and only the first counts; `rows` compares them all",)


@pytest.mark.parametrize(
    ("query", "operators"),
    [
        ("SELECT id FROM customers_a WHERE id = 1", {"equals": 1}),
        ("SELECT id FROM customers_a WHERE id = 0", {"equals": None}),
        ("SELECT id FROM customers_a ORDER BY id", {"rows": [[1], [2], [3]]}),
    ],
)
def test_one_row_and_rows_compared_as_a_whole_need_no_notice(
    database: Engine, tmp_path: Path, query: str, operators: dict[str, Any]
) -> None:
    outcome = ask(database, tmp_path, query, **operators)
    assert (outcome.status, outcome.notices) == ("pass", ())


def test_a_list_that_is_expected_of_one_value_leads_to_rows(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, "SELECT id FROM customers_a WHERE id = 1", equals=[[1]])
    assert outcome.status == "fail"
    assert outcome.message.endswith("found 1 (integer). `rows` compares rows.")


def test_rows_show_the_first_that_differs_with_types(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, "SELECT id FROM customers_a WHERE id = 1", rows=[["1"]])
    assert outcome.message == "row 1: expected ['1' (text)], found [1 (integer)]."
    outcome = ask(database, tmp_path, "SELECT id, email FROM customers_a WHERE id = 1", rows=[])
    assert outcome.message == "expected 0 rows, found 1: [[1, 'a@example.com']]."


def test_columns_of_one_name_can_not_be_a_mapping(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, "SELECT 1 AS x, 2 AS x", rows=[{"x": 2}])
    assert outcome.status == "fail"
    assert "not distinct" in outcome.message
    assert ask(database, tmp_path, "SELECT 1 AS x, 2 AS x", rows=[[1, 2]]).status == "pass"


def test_more_rows_than_are_kept_are_said(database: Engine, tmp_path: Path) -> None:
    if database.name == "postgres":
        many = "SELECT generate_series(1, 30000)"
    else:
        many = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 30000) SELECT n FROM r"
    if database.name == "mariadb":
        many = "SELECT seq FROM seq_1_to_30000"
    outcome = ask(database, tmp_path, many, equals=1)
    assert outcome.status == "pass"
    assert "gave more than 10,000 rows" in outcome.notices[0]
    outcome = ask(database, tmp_path, many, rows=[[number] for number in range(1, 10_001)])
    assert outcome.status == "fail"
    assert "found more than 10,000" in outcome.message


def test_booleans_are_what_the_engine_has(database: Engine, tmp_path: Path) -> None:
    is_boolean = database.name == "postgres"
    assert ask(database, tmp_path, "SELECT 1 = 1", equals=True).status == "pass"
    assert ask(database, tmp_path, "SELECT 1 = 2", equals=False).status == "pass"
    assert ask(database, tmp_path, "SELECT 1 = 1", equals=1).status == ("fail" if is_boolean else "pass")
    assert ask(database, tmp_path, "SELECT 1", equals=True).status == ("fail" if is_boolean else "pass")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT DATE '2026-01-31'", "2026-01-31"),
        ("SELECT TIMESTAMP '2026-01-31 12:30:00'", "2026-01-31T12:30:00"),
        ("SELECT TIME '12:30:00'", "12:30:00"),
    ],
)
def test_dates_and_times_compare_by_what_they_mean(database: Engine, tmp_path: Path, query: str, expected: str) -> None:
    if database.name == "sqlite":  # it has no such types: text is text
        query = query.replace("DATE ", "").replace("TIMESTAMP ", "").replace("TIME ", "").replace("31 12", "31T12")
    assert ask(database, tmp_path, query, equals=expected).status == "pass"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT '12345678-1234-5678-1234-567812345678'::uuid", "12345678-1234-5678-1234-567812345678"),
        ("SELECT timestamptz '2026-01-31 12:00+02'", "2026-01-31T10:00:00Z"),
        ("SELECT interval '1 day 2 hours'", "P1DT2H"),
        ("SELECT array[1, 2]", [1, 2]),
        ("""SELECT '{"a": [1, true]}'::jsonb""", {"a": [1, True]}),
        ("SELECT 12345678901234567890.5::numeric", 12345678901234567890.5),
        ("SELECT '\\x6869'::bytea", "hi"),
        ("SELECT '10.0.0.1'::inet", "10.0.0.1"),
        ("SELECT 'infinity'::timestamp", "infinity"),
    ],
)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_types_of_postgresql(database: Engine, tmp_path: Path, query: str, expected: object) -> None:
    outcome = ask(database, tmp_path, query, equals=expected)
    if "numeric" in query:  # a float can't say it exactly, and is not rounded to fit
        assert outcome.status == "fail"
    else:
        assert outcome.status == "pass", outcome.message


def test_types_of_mariadb(mariadb: MariaDb, tmp_path: Path) -> None:
    name, user, password = mariadb.make_database()
    keywords = {"host": "127.0.0.1", "port": mariadb.port, "user": user, "password": password, "database": name}
    engine = Engine("mariadb", MysqlReader(keywords), None)
    agent = mariadb.connect(user=user, password=password, database=name, autocommit=True)
    with agent, agent.cursor() as cursor:
        cursor.execute("CREATE TABLE t (flag BIT(1), wide BIT(12), data BLOB, day DATE, amount DECIMAL(10, 2))")
        cursor.execute("INSERT INTO t VALUES (b'1', b'100000000001', x'ff', '2026-01-31', 1234.50)")
    outcome = ask(engine, tmp_path, "SELECT * FROM t", rows=[[1, 2049, "\\xff", "2026-01-31", 1234.5]])
    assert outcome.status == "pass", outcome.message
    assert ask(engine, tmp_path, "SELECT flag FROM t", equals=True).status == "pass"


def test_a_server_that_went_away_is_an_error(tmp_path: Path) -> None:
    keywords = {"host": "127.0.0.1", "port": 1, "user": "u", "password": "p", "database": "d"}
    outcome = ask(Engine("mariadb", MysqlReader(keywords), None), tmp_path, "SELECT 1", equals=1)
    assert outcome.status == "error"


def test_a_service_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    outcome = grade({"type": "sql", "service": "smtp", "query": "SELECT 1", "equals": 1}, tmp_path)
    assert outcome.status == "error"
    assert "smtp is not a database" in outcome.message


def test_results_can_be_written(database: Engine, tmp_path: Path) -> None:
    outcome = ask(database, tmp_path, "SELECT id, email, CURRENT_TIMESTAMP, 1.5 FROM customers_a", equals=1)
    json.dumps(dict(outcome.details), allow_nan=False)
    assert len(outcome.details["found"]) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"equals": 1, "service": None},
        {"equals": 1, "query": ""},
        {"gt": None},
        {"gt": True},
        {"gt": [1]},
        {"rows": 1},
        {"rows": [1]},
        {"matches": 5},
        {"equal": 1},
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "sql", "service": "db", "query": "SELECT 1", **fields})


def test_null_is_an_operand_like_any_other() -> None:
    check = make_check({"type": "sql", "service": "db", "query": "SELECT 1", "equals": None})
    assert "equals" in check.model_fields_set
