"""Images of MySQL and MariaDB on the real engine: who an agent is there, what checks see, what is left over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from support.containers import ContainerWorld, ServedCell
from support.database_scripts import does_not_leave_it_dropped, makes_its_database
from support.images import MARIADB, MYSQL

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import QueryFailed
from keystone_action.services.mysql.server import MysqlCredentials
from keystone_action.services.mysql.service import env_for_image, mysql_credentials
from keystone_action.services.service import RunningService
from keystone_action.services.sql_script import SqlScript

PREFIXES = {MARIADB: "MARIADB", MYSQL: "MYSQL"}
CLIENTS = {MARIADB: "mariadb", MYSQL: "mysql"}


def env_of(image: str) -> dict[str, str]:
    prefix = PREFIXES[image]
    return {f"{prefix}_USER": "app", f"{prefix}_PASSWORD": "s3cret/@:", f"{prefix}_DATABASE": "shop_1"}


@pytest.fixture(scope="module", params=[MARIADB, MYSQL])
def server(request: pytest.FixtureRequest, shared_containers: ContainerWorld) -> RunningService:
    return shared_containers.start(name="db", image=request.param, env=env_of(request.param), ready_timeout="120s")


@pytest.fixture
def image_name(server: RunningService) -> str:
    return server._image  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def cell(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    made = shared_containers.cell(server)
    made.fixture("CREATE TABLE customers (id int PRIMARY KEY, email text); INSERT INTO customers VALUES (1, 'a@b')")
    yield made
    made.close()


@pytest.fixture(scope="module")
def untouched(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    """A cell for all tests in which the agent changes nothing."""
    made = shared_containers.cell(server)
    yield made
    made.close()


def session(cell: ServedCell, **fields: Any) -> Any:
    """As the agent's, from where the test runs."""
    address = cell.place.for_host
    keywords: dict[str, Any] = {
        "host": address.host, "port": address.port, "user": address.user, "password": address.password,
        "database": address.database, "autocommit": True,
    }  # fmt: skip
    return pymysql.connect(**{**keywords, **fields})


def execute(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


@pytest.mark.docker
def test_an_agent_in_its_cells_network_works_by_name_and_checks_see_it(cell: ServedCell, image_name: str) -> None:
    address = cell.place.for_agent
    assert address.url == f"mysql://{address.user}:{address.password}@db:3306/{address.database}"
    script = (
        f"{CLIENTS[image_name]} -h {address.host} -P {address.port} -u {address.user} -p'{address.password}' "
        f"{address.database} -e \"INSERT INTO customers VALUES (2, 'c@d')\""
    )
    exit_code, printed = cell.agent(script, image=image_name)
    assert exit_code == 0, printed
    cell.settle()
    assert cell.query("SELECT COUNT(*) FROM customers").rows == ((2,),)
    with pytest.raises(QueryFailed):
        cell.query("DELETE FROM customers")


@pytest.mark.docker
def test_alone_a_cell_has_exactly_what_env_says_and_nothing_of_the_one_before(
    shared_containers: ContainerWorld, server: RunningService
) -> None:
    for _ in range(2):
        cell = shared_containers.cell(server, exclusive=True)
        address = cell.place.for_agent
        assert (address.user, address.password, address.database) == ("app", "s3cret/@:", "shop_1")
        assert address.url == "mysql://app:s3cret%2F%40%3A@db:3306/shop_1"
        with session(cell) as agent:
            assert execute(agent, "SHOW TABLES") == ()
            execute(agent, "CREATE TABLE mine (id int)")
            # Its locks outlive its session.
            execute(agent, "XA START 'x'")
            execute(agent, "INSERT INTO mine VALUES (1)")
            execute(agent, "XA END 'x'")
            execute(agent, "XA PREPARE 'x'")
        cell.settle()
        cell.close()


FOR_SUPERUSERS = (
    "CREATE DATABASE mine",
    "CREATE USER friend",
    "GRANT ALL ON *.* TO CURRENT_USER()",
    "SELECT * FROM mysql.user",
    "SELECT 1 INTO OUTFILE '/tmp/out'",
    "SET GLOBAL event_scheduler = ON",
    "USE shopX1",
)


@pytest.mark.docker
def test_the_agent_is_no_superuser_even_alone(shared_containers: ContainerWorld, server: RunningService) -> None:
    cell = shared_containers.cell(server, exclusive=True)
    allowed: dict[str, object] = {}
    with session(cell) as agent:
        for statement in FOR_SUPERUSERS:
            try:
                allowed[statement] = execute(agent, statement)
            except pymysql.err.MySQLError as refused:
                if refused.args[0] not in {1044, 1045, 1142, 1227, 1410, 1698}:
                    allowed[statement] = refused
    assert allowed == {}
    cell.close()


@pytest.mark.docker
def test_root_does_not_get_in(untouched: ServedCell) -> None:
    for password in ("", "s3cret/@:"):
        with pytest.raises(pymysql.err.OperationalError):
            session(untouched, user="root", password=password, database=None)


@pytest.mark.docker
def test_cells_do_not_reach_each_others_databases(
    shared_containers: ContainerWorld, server: RunningService, untouched: ServedCell
) -> None:
    other = shared_containers.cell(server)
    with pytest.raises(pymysql.err.OperationalError, match="denied"):
        session(untouched, database=other.place.for_host.database)
    other.close()


@pytest.mark.docker
def test_what_a_session_of_the_agents_still_does_ends_and_its_locks_with_it(cell: ServedCell) -> None:
    agent = session(cell)
    execute(agent, "LOCK TABLES customers WRITE")
    cell.settle()
    assert cell.query("SELECT COUNT(*) FROM customers").rows == ((1,),)
    with pytest.raises(pymysql.err.MySQLError):
        execute(agent, "INSERT INTO customers VALUES (9, 'late')")


@pytest.mark.docker
def test_an_event_of_the_agents_never_runs(cell: ServedCell) -> None:
    with session(cell) as agent:
        execute(
            agent, "CREATE EVENT later ON SCHEDULE EVERY 1 SECOND DO INSERT INTO customers VALUES (rand() * 1e6, '')"
        )
    cell.settle()
    time.sleep(2.5)
    assert cell.query("SELECT COUNT(*) FROM customers").rows == ((1,),)


@pytest.mark.docker
def test_a_password_that_the_agent_changed_is_as_it_was(cell: ServedCell) -> None:
    with session(cell) as agent:
        execute(agent, "SET PASSWORD = PASSWORD('x')" if "Maria" in agent.get_server_info() else "SET PASSWORD = 'x'")
    cell.settle()
    session(cell).close()


@pytest.mark.docker
def test_a_fixture_that_fails_is_said(untouched: ServedCell) -> None:
    with pytest.raises(ServiceError, match=r"service db refused a fixture: sql:1: SELECT: .*nonesuch"):
        untouched.fixture("SELECT 1; SELECT * FROM nonesuch")


@pytest.mark.docker
@pytest.mark.parametrize("image_name", [MARIADB, MYSQL])
def test_what_the_image_made_is_in_every_cells_database(
    containers: ContainerWorld, tmp_path: Path, image_name: str
) -> None:
    containers.need(image_name)
    (tmp_path / "init.sql").write_text(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (1, 'DEFINER=`a`@`b`');"
        "CREATE VIEW open_orders AS SELECT * FROM orders;"
        "CREATE PROCEDURE add_order(n int) INSERT INTO orders VALUES (n, '');"
    )
    (tmp_path / "Dockerfile").write_text(f"FROM {image_name}\nCOPY init.sql /docker-entrypoint-initdb.d/\n")
    (tmp_path / "init.sql").chmod(0o644)
    tag = f"{containers.run_id}/{image_name}"
    containers.engine.images.build(path=str(tmp_path), tag=tag, rm=True)
    try:
        service = containers.build(name="db", image=tag, env=env_of(image_name), ready_timeout="120s")
        containers.portal.call(service.start)
        for exclusive in (True, False, True):
            cell = containers.cell(service, exclusive=exclusive)
            with session(cell) as agent:
                execute(agent, "CALL add_order(2)")
            assert cell.query("SELECT id, note FROM open_orders ORDER BY id").rows == (
                (1, "DEFINER=`a`@`b`"),
                (2, ""),
            )
            cell.close()
    finally:
        containers.close()
        containers.engine.images.remove(tag, force=True)


@pytest.mark.docker
@pytest.mark.parametrize("exclusive", [True, False], ids=["one-cell", "several"])
def test_a_fixture_makes_and_drops_its_own_database_whatever_its_name_is(
    shared_containers: ContainerWorld, server: RunningService, exclusive: bool
) -> None:
    cell = shared_containers.cell(server, exclusive=exclusive)
    assert (cell.place.for_agent.database == "shop_1") is exclusive

    def load(text: str) -> tuple[str, ...]:
        return shared_containers.portal.call(cell.place.run_sql, SqlScript("sql", text=text))

    makes_its_database("shop_1", load, lambda: session(cell))
    cell.seal()
    execute(session(cell), "INSERT INTO t VALUES ('b')")
    cell.settle()
    assert cell.query("SELECT count(*) FROM t").rows == ((3,),)
    does_not_leave_it_dropped("shop_1", load)
    cell.close()


@pytest.mark.docker
def test_a_server_that_is_never_ready_says_how_long_it_was_given(containers: ContainerWorld) -> None:
    containers.need(MARIADB)
    service = containers.build(name="db", image=MARIADB, env={}, command=["sleep", "600"], ready_timeout="2s")
    with pytest.raises(ServiceError, match=r"service db \(image mariadb:11\) was not ready within 2 s: .*refused"):
        containers.portal.call(service.start)


@pytest.mark.docker
def test_type_mysql_without_an_image_is_mysql(containers: ContainerWorld) -> None:
    service = containers.build(name="db", type="mysql")
    assert service._image == MYSQL  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env", "user", "database"),
    [
        ({}, "root", "my_db"),
        ({"MYSQL_USER": "app", "MYSQL_DATABASE": "shop"}, "app", "shop"),
        ({"MARIADB_USER": "app", "MARIADB_DATABASE": "shop"}, "app", "shop"),
        ({"MYSQL_ROOT_PASSWORD": "x", "MYSQL_DATABASE": "shop"}, "root", "shop"),
    ],
)
def test_whom_env_names(env: dict[str, str], user: str, database: str) -> None:
    found = mysql_credentials("my-db", env)
    assert (found.user, found.database) == (user, database)
    assert found.password == env.get("MYSQL_ROOT_PASSWORD", found.password)
    assert found.password


def test_the_image_gets_a_superuser_of_ours_under_one_prefix() -> None:
    env = {"MARIADB_ROOT_PASSWORD": "theirs", "MYSQL_USER": "app", "MYSQL_PASSWORD": "p", "TZ": "UTC"}
    assert env_for_image("mariadb:11", env, MysqlCredentials("app", "p", "shop"), "ours") == {
        "MARIADB_ROOT_PASSWORD": "ours", "MARIADB_ROOT_HOST": "%", "MARIADB_DATABASE": "shop",
        "MARIADB_USER": "app", "MARIADB_PASSWORD": "p", "TZ": "UTC",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MYSQL_PASSWORD_FILE": "/run/x"}, "names a file in the container"),
        ({"MYSQL_DATABASE": "mysql"}, "reserved"),
        ({"MYSQL_USER": "u" * 33}, "at most 32"),
    ],
)
def test_an_env_that_can_not_be_honoured_is_refused(env: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        mysql_credentials("db", env)
