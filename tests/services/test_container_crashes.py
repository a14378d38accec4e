"""Database servers in containers that crash under a cell: an error of every cell that used them, by name, also where
they come back by themselves, without what was committed last."""

from __future__ import annotations

from typing import Any

import psycopg
import pymysql
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import MARIADB, MYSQL, POSTGRES

from keystone_action.errors import ServiceError

pytestmark = pytest.mark.docker

ENV = {
    POSTGRES: {"POSTGRES_PASSWORD": "x"},
    MARIADB: {"MARIADB_ROOT_PASSWORD": "x", "MARIADB_DATABASE": "shop"},
    MYSQL: {"MYSQL_ROOT_PASSWORD": "x", "MYSQL_DATABASE": "shop"},
}
SERVERS = {POSTGRES: "postgres", MARIADB: "mariadbd", MYSQL: "mysqld"}
STARTED_AGAIN = ["bash", "-c", 'set +e; while :; do bash -c "exec docker-entrypoint.sh $0"; done']
"""A supervisor of the image's own, which brings a server back that has ended."""
KILL = "for one in /proc/[0-9]*; do if grep -q {pattern} $one/{file}; then kill -KILL ${{one#/proc/}}; fi; done; true"
THE_CONTAINER = ""
THE_WHOLE_SERVER = "comm"
WAL_WRITER = "cmdline"


def start(containers: ContainerWorld, image: str, command: Any) -> tuple[ServedCell, ServedCell, Any]:
    service = containers.start(name="db", image=image, env=ENV[image], command=command, ready_timeout="120s")
    return containers.cell(service), containers.cell(service), service


def kill(containers: ContainerWorld, cell: ServedCell, image: str, what: str) -> None:
    [found] = containers.containers(kind="service")
    container = containers.engine.containers.get(found["Id"])
    if what == THE_CONTAINER:  # its first process is safe from signals of those beside it
        return container.kill()
    pattern = f"^{SERVERS[image]}$" if what == THE_WHOLE_SERVER else "wal[w]riter"
    script = KILL.format(pattern=pattern, file=what)
    exit_code, printed = container.exec_run(["bash", "-c", script], user="root")
    # Killed with the server that it runs beside.
    assert exit_code in (0, 137), printed
    return None


def session(cell: ServedCell) -> Any:
    """Of the cell's agent, from where the test runs."""
    there = cell.place.for_host
    if there.url.startswith("postgresql:"):
        return psycopg.connect(there.url, autocommit=True)
    keywords: dict[str, Any] = {
        "host": there.host,
        "port": there.port,
        "user": there.user,
        "password": there.password,
        "database": there.database,
    }
    return pymysql.connect(**keywords, autocommit=True)


@pytest.mark.parametrize(
    ("database", "command", "what"),
    [
        (POSTGRES, None, THE_CONTAINER),
        (POSTGRES, None, WAL_WRITER),
        (POSTGRES, "postgres -c restart_after_crash=on", WAL_WRITER),
        (POSTGRES, [*STARTED_AGAIN, "postgres"], WAL_WRITER),
        (MARIADB, None, THE_CONTAINER),
        (MARIADB, [*STARTED_AGAIN, "mariadbd"], THE_WHOLE_SERVER),
        (MYSQL, None, THE_CONTAINER),
        (MYSQL, [*STARTED_AGAIN, "mysqld"], THE_WHOLE_SERVER),
    ],
    ids=lambda value: "started-again" if isinstance(value, list) else None,
)
def test_a_server_that_crashed_is_an_error_of_every_cell_that_used_it(
    containers: ContainerWorld, database: str, command: Any, what: str
) -> None:
    first, second, service = start(containers, database, command)
    first.fixture("CREATE TABLE t (id int)")
    with session(first) as agent:
        agent.cursor().execute("INSERT INTO t VALUES (1)")
        kill(containers, first, database, what)
        with pytest.raises((psycopg.OperationalError, pymysql.err.OperationalError)):
            agent.cursor().execute("SELECT pg_sleep(60)" if database == POSTGRES else "SELECT SLEEP(60)")
    for cell in (first, second):
        with pytest.raises(ServiceError, match=rf"service db \(image {database}\) went away .* crashed or was killed"):
            cell.settle()
        with pytest.raises(ServiceError, match="crashed or was killed"):
            cell.place.require_unbroken()
    following = containers.cell(service)
    following.fixture("CREATE TABLE t (id int)")
    following.settle()
    following.place.require_unbroken()
    assert following.query("SELECT count(*) FROM t").rows == ((0,),)


@pytest.mark.parametrize("database", [POSTGRES, MARIADB, MYSQL])
def test_a_session_that_ends_is_no_crash(containers: ContainerWorld, database: str) -> None:
    first, _, _ = start(containers, database, None)
    first.fixture("CREATE TABLE t (id int)")
    with session(first) as ended, session(first) as other:
        ended.cursor().execute("INSERT INTO t VALUES (1)")
        if database == POSTGRES:
            other.execute("SELECT pg_terminate_backend(%s)", (ended.info.backend_pid,))
        else:
            other.cursor().execute(f"KILL {ended.thread_id()}")
    first.settle()
    first.place.require_unbroken()
    assert first.query("SELECT count(*) FROM t").rows == ((1,),)
