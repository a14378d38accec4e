"""The server of the embedded PostgreSQL: one that dies, connections that end, and shared memory."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from anyio.from_thread import BlockingPortal
from support.databases import PostgresCell, PostgresForTests

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import QueryFailed
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.sandbox.processes import system_v
from keystone_action.sandbox.processes.client import ServiceProcess
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.postgres.service import EmbeddedPostgres
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.services import PostgresService


def segments() -> set[int]:
    """System V shared memory of this machine: identifiers."""
    return {each.identifier for each in system_v.system_v_objects("shm")}


@pytest.fixture
def own_server(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path
) -> Iterator[PostgresForTests]:
    declared = PostgresService(type="postgres", name="db")
    service = EmbeddedPostgres(declared, sandboxes.root / f"own-{secrets.token_hex(4)}", sandboxes)
    portal.call(service.start)
    yield PostgresForTests(portal, service, tmp_path)
    portal.call(service.stop)


def kill(portal: BlockingPortal, service: EmbeddedPostgres) -> None:
    server = service._server._process
    assert isinstance(server, ServiceProcess)
    os.kill(server.pid, signal.SIGKILL)
    portal.call(server.wait)


@pytest.mark.parametrize("who", ["walwriter", "checkpointer", "client backend"])
def test_a_server_that_crashes_is_an_error_of_every_cell_that_used_it(own_server: PostgresForTests, who: str) -> None:
    """PostgreSQL ends all sessions then and recovers, by default; what was committed just before is lost."""
    first, second = own_server.attach(), own_server.attach()
    first.fixture("CREATE TABLE t (id int)")
    first.agent().execute("INSERT INTO t VALUES (1)")
    with own_server.service._server.admin() as admin:
        assert admin.execute("SHOW restart_after_crash").fetchone() == ("off",)
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND pid <> pg_backend_pid() LIMIT 1"
        found = admin.execute(query, (who,)).fetchone()
    assert found is not None
    os.kill(found[0], signal.SIGKILL)
    _await_end_of_sessions(first)
    for cell in (first, second):
        with pytest.raises(ServiceError, match=r"(?s)service db: .* crashed or was killed.*terminated by signal 9"):
            cell.place.settle()
        with pytest.raises(ServiceError, match="crashed or was killed"):
            cell.place.require_unbroken()
        with pytest.raises(QueryFailed) as failed:
            cell.query("SELECT count(*) FROM t")
        assert not failed.value.by_agent
    following = own_server.attach()
    following.fixture("CREATE TABLE t (id int)")
    following.place.settle()
    following.place.require_unbroken()
    assert following.query("SELECT count(*) FROM t").rows == ((0,),)


def _await_end_of_sessions(cell: PostgresCell) -> None:
    with pytest.raises(psycopg.OperationalError):
        cell.agent_sessions[0].execute("SELECT pg_sleep(600)")


def test_a_session_that_ends_is_no_crash(own_server: PostgresForTests) -> None:
    """Neither one that the agent ends by itself, nor by a signal to a backend of its own."""
    cell = own_server.attach()
    cell.fixture("CREATE TABLE t (id int)")
    session, other = cell.agent(), cell.agent()
    session.execute("INSERT INTO t VALUES (1)")
    other.execute("SELECT pg_terminate_backend(%s)", (session.info.backend_pid,))
    other.close()
    cell.place.settle()
    assert cell.query("SELECT count(*) FROM t").rows == ((1,),)
    cell.place.require_unbroken()


def test_a_connection_in_a_transaction_is_not_used_again(own_server: PostgresForTests) -> None:
    server = own_server.service._server
    with server.admin() as left:
        left.execute("BEGIN")
    with server.admin() as taken:
        assert taken is not left
        assert left.closed
    with server.admin() as again:
        assert again is taken


def test_a_server_that_died_is_started_again_for_the_next_cell(
    portal: BlockingPortal, own_server: PostgresForTests
) -> None:
    first = own_server.attach()
    first.fixture("CREATE TABLE t (id int)")
    kill(portal, own_server.service)
    with pytest.raises(ServiceError, match="service db: the embedded PostgreSQL went away"):
        first.place.settle()
    cells = [own_server.attach() for _ in range(2)]
    assert len({cell.place.for_agent.port for cell in cells}) == 1
    cells[0].fixture("CREATE TABLE t (id int)")
    assert cells[0].query("SELECT count(*) FROM t").rows == ((0,),)
    for one in (first, *cells):
        one.close()


def test_a_crash_between_two_looks_is_told_as_one(
    portal: BlockingPortal, own_server: PostgresForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = own_server.attach()
    look = PostgresPlace.require_unbroken

    def look_and_kill(place: PostgresPlace) -> None:
        look(place)
        kill(portal, own_server.service)

    monkeypatch.setattr(PostgresPlace, "require_unbroken", look_and_kill)
    with pytest.raises(ServiceError, match=r"the embedded PostgreSQL went away .* it crashed or was killed"):
        cell.place.settle()
    with pytest.raises(ServiceError, match="it crashed or was killed"):
        cell.run(SqlScript("sql", text="SELECT 1"))
    cell.close()


def test_a_server_that_runs_serves_the_next_cell(own_server: PostgresForTests) -> None:
    first = own_server.attach()
    second = own_server.attach()
    assert first.place.for_agent.port == second.place.for_agent.port
    first.close()
    second.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_no_shared_memory_stays_of_a_server(portal: BlockingPortal, own_server: PostgresForTests, how: str) -> None:
    pid = own_server.service._server._process.pid  # type: ignore[union-attr]
    made = {int(line.split()[1]) for line in _shm() if int(line.split()[4]) == pid}
    assert made
    if how == "killed":
        kill(portal, own_server.service)
    portal.call(own_server.service.stop)
    assert not made & segments()


def _shm() -> list[str]:
    return Path("/proc/sysvipc/shm").read_text().splitlines()[1:]


@pytest.mark.slow
def test_an_agent_that_takes_every_connection_leaves_half_to_other_cells(own_server: PostgresForTests) -> None:
    greedy, other = own_server.attach(), own_server.attach()
    for _ in range(100):
        greedy.agent()
    with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
        greedy.agent()
    assert other.agent().execute("SELECT 1").fetchone() == (1,)
    greedy.place.settle()
    other.place.settle()
