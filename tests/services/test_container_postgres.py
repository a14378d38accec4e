"""Images of PostgreSQL on the real engine: what an agent is there, what checks see, and what is left between cells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import POSTGRES

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import QueryFailed
from keystone_action.services.service import RunningService

pytestmark = pytest.mark.docker

ENV = {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "s3cret/@:", "POSTGRES_DB": "shop"}


@pytest.fixture(scope="module")
def server(shared_containers: ContainerWorld) -> RunningService:
    return shared_containers.start(name="db", image=POSTGRES, env=ENV)


@pytest.fixture
def cell(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    made = shared_containers.cell(server)
    made.fixture("CREATE TABLE customers (id int PRIMARY KEY, email text); INSERT INTO customers VALUES (1, 'a@b')")
    made.seal()
    yield made
    made.close()


@pytest.fixture(scope="module")
def untouched(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    """A cell for all tests in which the agent changes nothing."""
    made = shared_containers.cell(server)
    yield made
    made.close()


@contextmanager
def image_with(containers: ContainerWorld, directory: Path, init: str) -> Iterator[str]:
    """The tag of an image that runs a script when it sets itself up."""
    containers.need(POSTGRES)
    (directory / "init.sql").write_text(init)
    (directory / "init.sql").chmod(0o644)
    (directory / "Dockerfile").write_text(f"FROM {POSTGRES}\nCOPY init.sql /docker-entrypoint-initdb.d/\n")
    tag = f"{containers.run_id}/postgres:16"
    containers.engine.images.build(path=str(directory), tag=tag, rm=True)
    try:
        yield tag
    finally:
        containers.close()
        containers.engine.images.remove(tag, force=True)


def session(cell: ServedCell) -> psycopg.Connection[Any]:
    """As the agent's, from where the test runs."""
    return psycopg.connect(cell.place.for_host.url, autocommit=True)


def test_an_agent_in_its_cells_network_works_by_name_and_checks_see_it(cell: ServedCell) -> None:
    url = cell.place.for_agent.url
    assert "@db:5432/" in url
    script = f"psql '{url}' -tAc \"INSERT INTO customers VALUES (2, 'c@d') RETURNING id\""
    exit_code, printed = cell.agent(script, image=POSTGRES)
    assert (exit_code, printed.split()[0]) == (0, "2")
    cell.settle()
    assert cell.query("SELECT count(*) FROM customers").rows == ((2,),)
    with pytest.raises(QueryFailed, match="read-only"):
        cell.query("DELETE FROM customers RETURNING id")


def test_alone_a_cell_has_exactly_what_env_says_and_nothing_of_the_one_before(
    shared_containers: ContainerWorld, server: RunningService
) -> None:
    for _ in range(2):
        cell = shared_containers.cell(server, exclusive=True)
        address = cell.place.for_agent
        assert (address.user, address.password, address.database) == ("app", "s3cret/@:", "shop")
        with session(cell) as agent:
            assert agent.execute("SELECT count(*) FROM pg_class WHERE relname = 'mine'").fetchone() == (0,)
            agent.execute("CREATE TABLE mine (id int)")
            agent.execute("ALTER ROLE app SET search_path = nonesuch")
        cell.close()


FOR_SUPERUSERS = (
    "COPY pg_class TO PROGRAM 'id'",
    "SELECT pg_read_file('pg_hba.conf')",
    "ALTER SYSTEM SET fsync = on",
    "CREATE ROLE friend",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "CREATE DATABASE mine",
)


@pytest.mark.parametrize("exclusive", [True, False])
def test_the_agent_is_no_superuser(shared_containers: ContainerWorld, server: RunningService, exclusive: bool) -> None:
    cell = shared_containers.cell(server, exclusive=exclusive)
    found: dict[str, object] = {}
    with session(cell) as agent:
        for statement in FOR_SUPERUSERS:
            try:
                found[statement] = agent.execute(statement.encode()).statusmessage
            except psycopg.Error as refused:
                found[statement] = type(refused)
    assert found == dict.fromkeys(FOR_SUPERUSERS, psycopg.errors.InsufficientPrivilege)
    cell.close()


@pytest.mark.parametrize("database", ["keystone", "keystone_template", "template1", "postgres"])
def test_the_agent_reaches_no_other_database(untouched: ServedCell, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting|does not exist"):
        psycopg.connect(untouched.place.for_host.url.rsplit("/", 1)[0] + f"/{database}")


def test_cells_reach_neither_each_others_databases_nor_each_other(
    shared_containers: ContainerWorld, server: RunningService, cell: ServedCell
) -> None:
    other = shared_containers.cell(server)
    theirs = other.place.for_agent
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(f"{cell.place.for_host.url.rsplit('/', 1)[0]}/{theirs.database}")
    cell.close()
    assert other.agent(f"psql '{theirs.url}' -c 'SELECT 1'", image=POSTGRES)[0] == 0


def test_nobody_gets_in_without_a_password_not_even_from_within(untouched: ServedCell) -> None:
    with session(untouched) as agent:
        names = [row[0] for row in agent.execute("SELECT rolname FROM pg_roles WHERE rolsuper").fetchall()]
    assert names
    [container] = untouched.world.containers(kind="service", service="db")
    inside = untouched.world.engine.containers.get(container["Id"])
    for name in names:
        for where in (["-h", "127.0.0.1"], []):
            ended = inside.exec_run(["psql", "-w", *where, "-U", name, "-d", "template1", "-c", "SELECT 1"])
            assert ended.exit_code != 0, ended.output


def test_trust_lets_in_the_user_of_env_and_no_superuser(containers: ContainerWorld) -> None:
    env = {"POSTGRES_HOST_AUTH_METHOD": "trust", "POSTGRES_DB": "shop"}
    cell = containers.cell(containers.start(name="db", image=POSTGRES, env=env), exclusive=True)
    at = f"host={cell.place.for_host.host} dbname=shop"
    with psycopg.connect(f"{at} user=postgres") as agent:
        assert agent.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'postgres'").fetchone() == (False,)
        names = [row[0] for row in agent.execute("SELECT rolname FROM pg_roles WHERE rolsuper").fetchall()]
    for name in names:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{at} user={name}")


def test_what_a_session_of_the_agents_still_does_ends_and_its_locks_with_it(cell: ServedCell) -> None:
    agent = session(cell)
    agent.execute("BEGIN")
    agent.execute("LOCK TABLE customers")
    cell.settle()
    assert cell.query("SELECT count(*) FROM customers").rows == ((1,),)
    with pytest.raises(psycopg.OperationalError):
        agent.execute("COMMIT")


def test_a_function_in_the_place_of_a_built_in_one_is_the_agents_failure(cell: ServedCell) -> None:
    with session(cell) as agent:
        agent.execute("CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$")
    with pytest.raises(QueryFailed, match="stands in for a built-in function") as failed:
        cell.query("SELECT lower(email) FROM customers")
    assert failed.value.by_agent


def test_a_fixture_that_fails_says_where(untouched: ServedCell) -> None:
    with pytest.raises(ServiceError, match=r"service db refused a fixture: sql:2: .*nonesuch"):
        untouched.fixture("SELECT 1;\nSELECT nonesuch;")


def test_what_the_image_made_is_in_every_cells_database_and_belongs_to_its_role(
    containers: ContainerWorld, tmp_path: Path
) -> None:
    init = (
        "CREATE SCHEMA sales; CREATE TABLE sales.orders (id serial PRIMARY KEY, state text);"
        "INSERT INTO sales.orders (state) VALUES ('open'); CREATE VIEW sales.open AS SELECT * FROM sales.orders;"
        "CREATE TYPE public.mood AS ENUM ('good'); CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1';"
    )
    with image_with(containers, tmp_path, init) as tag:
        service = containers.build(name="db", image=tag, env=ENV)
        containers.portal.call(service.start)
        for exclusive in (True, False, True):
            cell = containers.cell(service, exclusive=exclusive)
            with session(cell) as agent:
                agent.execute("INSERT INTO sales.orders (state) VALUES ('new')")
                agent.execute("ALTER TABLE sales.orders ADD COLUMN more int")
                agent.execute("DROP VIEW sales.open; DROP TYPE mood; DROP FUNCTION one()")
            assert cell.query("SELECT count(*), max(id) FROM sales.orders").rows == ((2, 2),)
            cell.close()


def test_an_image_that_has_dropped_template1_is_served_too(containers: ContainerWorld, tmp_path: Path) -> None:
    init = "ALTER DATABASE template1 IS_TEMPLATE false; DROP DATABASE template1; CREATE TABLE mine (id int)"
    with image_with(containers, tmp_path, init) as tag:
        service = containers.build(name="db", image=tag, env=ENV)
        containers.portal.call(service.start)
        for _ in range(2):
            cell = containers.cell(service)
            with session(cell) as agent:
                agent.execute("INSERT INTO mine VALUES (1)")
                other = f"{cell.place.for_host.url.rsplit('/', 1)[0]}/keystone"
            assert cell.query("SELECT count(*) FROM mine").rows == ((1,),)
            with pytest.raises(psycopg.OperationalError, match="permission denied"):
                psycopg.connect(other)
            cell.close()


def test_a_server_for_each_cell_with_isolation_container(containers: ContainerWorld) -> None:
    service = containers.start(name="db", image=POSTGRES, env=ENV, isolation="container")
    assert containers.containers(kind="service") == []
    first, second = containers.cell(service), containers.cell(service)
    assert first.place.for_agent == second.place.for_agent
    assert first.place.for_host.host != second.place.for_host.host
    with session(first) as agent:
        agent.execute("CREATE TABLE mine (id int)")
    assert first.query("SELECT count(*) FROM mine").rows == ((0,),)
    with pytest.raises(QueryFailed):
        second.query("SELECT count(*) FROM mine")
    first.close()
    assert len(containers.containers(kind="service")) == 1


def test_a_server_that_does_not_start_says_what_it_printed(containers: ContainerWorld) -> None:
    containers.need(POSTGRES)
    service = containers.build(name="db", image=POSTGRES, env=ENV, command=["postgres", "-c", "nonesuch=1"])
    with pytest.raises(ServiceError) as failed:
        containers.portal.call(service.start)
    assert "service db (image postgres:16) ended before it was ready, with exit code 1" in failed.value.message
    assert 'unrecognized configuration parameter "nonesuch"' in failed.value.message


def test_a_server_that_is_never_ready_says_how_long_it_was_given(containers: ContainerWorld) -> None:
    containers.need(POSTGRES)
    service = containers.build(name="db", image=POSTGRES, env=ENV, command=["sleep", "600"], ready_timeout="2s")
    with pytest.raises(ServiceError, match=r"was not ready within 2 s: .*refused"):
        containers.portal.call(service.start)


def test_one_that_went_away_is_said_and_started_again_for_the_next_cell(containers: ContainerWorld) -> None:
    service = containers.start(name="db", image=POSTGRES, env=ENV)
    first = containers.cell(service)
    [container] = containers.containers(kind="service")
    containers.engine.containers.get(container["Id"]).kill()
    with pytest.raises(ServiceError, match=r"service db .* went away"):
        first.settle()
    second = containers.cell(service)
    second.fixture("CREATE TABLE t (id int)")
    assert second.query("SELECT count(*) FROM t").rows == ((0,),)
    third = containers.cell(service)
    assert third.place.for_host.host == second.place.for_host.host
    with pytest.raises(ServiceError, match=r"service db .* went away"):
        first.settle()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"POSTGRES_PASSWORD_FILE": "/run/secrets/x"}, "names a file in the container"),
        ({"POSTGRES_DB": "keystone"}, "reserved"),
        ({"POSTGRES_USER": "pg_x"}, "reserved"),
        ({"PGPORT": "many"}, "must be a port, found 'many'"),
    ],
)
def test_an_env_that_can_not_be_honoured_is_refused(
    shared_containers: ContainerWorld, env: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        shared_containers.build(name="db", image=POSTGRES, env=env)
