"""The `sql` check on MySQL and MariaDB in containers: values, the agent's own tables, errors, writes, time limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from support.containers import ContainerWorld, ServedCell
from support.context import grade
from support.images import MARIADB, MYSQL

from keystone_action.invariants.check import Outcome
from keystone_action.services.service import RunningService

pytestmark = pytest.mark.docker

SERVICES: dict[str, dict[str, Any]] = {
    MARIADB: {"image": MARIADB, "env": {"MARIADB_USER": "app", "MARIADB_PASSWORD": "p", "MARIADB_DATABASE": "shop"}},
    MYSQL: {"type": "mysql", "env": {"MYSQL_USER": "app", "MYSQL_PASSWORD": "p", "MYSQL_DATABASE": "shop"}},
}
SECONDS_OF_WORK = "SELECT count(*) FROM n a, n b, n c, n d WHERE sha2(concat(a.i, b.i, c.i, d.i), 512) = 'x'"


@pytest.fixture(scope="module", params=[MARIADB, MYSQL])
def server(request: pytest.FixtureRequest, shared_containers: ContainerWorld) -> RunningService:
    shared_containers.need(request.param)
    return shared_containers.start(name="db", ready_timeout="120s", **SERVICES[request.param])


@pytest.fixture
def cell(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    yield from laid_out(shared_containers.cell(server, exclusive=True))


@pytest.fixture(scope="module")
def untouched(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    """A cell for all tests without an agent."""
    yield from laid_out(shared_containers.cell(server))


def laid_out(cell: ServedCell) -> Iterator[ServedCell]:
    cell.fixture("CREATE TABLE customers (id int PRIMARY KEY, email text); INSERT INTO customers VALUES (1, 'a@b')")
    cell.seal()
    yield cell
    cell.close()


def agent(cell: ServedCell, *statements: str) -> None:
    """What the agent does by the address that it was given, and then its end."""
    address = cell.place.for_host
    assert (address.user, address.password, address.database) == ("app", "p", "shop")
    with (
        pymysql.connect(
            host=address.host,
            port=address.port or 0,
            user=address.user,
            password=address.password,
            database=address.database,
            autocommit=True,
        ) as session,
        session.cursor() as cursor,
    ):
        for statement in statements:
            cursor.execute(statement)
    cell.settle()


def ask(cell: ServedCell, workspace: Path, query: str, *, timeout: float = 20.0, **operators: Any) -> Outcome:
    assert cell.place.database is not None
    document = {"type": "sql", "service": "db", "query": query, **operators}
    return grade(document, workspace, evidence={"databases": {"db": cell.place.database}}, timeout=timeout)


def test_what_the_agent_left_is_seen_its_own_tables_too(cell: ServedCell, tmp_path: Path) -> None:
    agent(
        cell,
        "UPDATE customers SET email = 'c@d'",
        "CREATE TABLE report (day date, amount decimal(10, 2), data json, flag bit(1), at datetime(3))",
        "INSERT INTO report VALUES ('2026-01-31', 1.50, '{\"a\": [1, true]}', b'1', '2026-01-31 12:30:00.250')",
        "CREATE VIEW latest AS SELECT day FROM report",
    )
    assert ask(cell, tmp_path, "SELECT email FROM customers", equals="c@d").status == "pass"
    assert ask(cell, tmp_path, "SELECT count(*) FROM report", equals=1, gte=1, lt=2).status == "pass"
    assert ask(cell, tmp_path, "SELECT day FROM latest", equals="2026-01-31").status == "pass"
    # MariaDB's json is a name for longtext.
    data: object = '{"a": [1, true]}' if "mariadb" in cell.service._image else {"a": [1, True]}  # type: ignore[attr-defined]
    rows = [["2026-01-31", 1.5, data, 1, "2026-01-31T12:30:00.250"]]
    assert ask(cell, tmp_path, "SELECT * FROM report", rows=rows).status == "pass"
    assert ask(cell, tmp_path, "SHOW TABLES", rows=[["customers"], ["latest"], ["report"]]).status == "pass"
    assert ask(cell, tmp_path, "SELECT email FROM customers", equals="a@b").message == (
        "expected 'a@b' (text), found 'c@d' (text)."
    )


@pytest.mark.parametrize("query", ["SELECT * FROM nowhere", "SELECT nothing FROM customers"])
def test_an_undefined_table_or_column_is_the_agents_failure(untouched: ServedCell, tmp_path: Path, query: str) -> None:
    assert ask(untouched, tmp_path, query, equals=1).status == "fail"


REFUSED = [
    "DELETE FROM customers",
    "DROP TABLE customers",
    "SELECT 1; DELETE FROM customers",
    "WITH x AS (SELECT 1) DELETE FROM customers",
    "SELECT * FROM customers FOR UPDATE",
    "SELECT * FROM mysql.user",
    "SELECT 'x' INTO OUTFILE '/tmp/out'",
    "SELECT LOAD_FILE('/etc/passwd') IS NOT NULL FROM nonsense syntax here",
]


@pytest.mark.parametrize("query", REFUSED)
def test_a_check_can_only_read_and_only_its_cells_database(untouched: ServedCell, tmp_path: Path, query: str) -> None:
    assert ask(untouched, tmp_path, query, equals=1).status == "error"
    assert ask(untouched, tmp_path, "SELECT count(*) FROM customers", equals=1).status == "pass"


def test_so_it_is_where_the_cell_has_the_names_of_env(cell: ServedCell, tmp_path: Path) -> None:
    agent(cell)
    for query in REFUSED:
        assert ask(cell, tmp_path, query, equals=1).status == "error", query
        assert ask(cell, tmp_path, "SELECT count(*) FROM customers", equals=1).status == "pass", query


def test_no_file_of_the_server_is_read(untouched: ServedCell, tmp_path: Path) -> None:
    assert ask(untouched, tmp_path, "SELECT LOAD_FILE('/etc/passwd')", equals=None).status == "pass"


def test_what_takes_its_time_or_a_locked_table_holds_no_check_up(cell: ServedCell, tmp_path: Path) -> None:
    agent(
        cell,
        "CREATE TABLE n (i int)",
        "INSERT INTO n WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 500) SELECT i FROM r",
        f"CREATE VIEW slow AS {SECONDS_OF_WORK}",
        "LOCK TABLES customers WRITE",
    )
    outcome = ask(cell, tmp_path, SECONDS_OF_WORK, equals=0, timeout=1.0)
    assert outcome.status == "fail", "by what the agent made"
    assert "time limit of 1 s" in outcome.message
    assert "time limit" in ask(cell, tmp_path, "SELECT * FROM slow", equals=0, timeout=1.0).message
    assert ask(cell, tmp_path, "SELECT count(*) FROM customers", equals=1).status == "pass"
