"""Services that run already: addresses taken apart, readiness, and sql against real servers."""

from __future__ import annotations

import http.server
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from support.databases import PostgresForTests
from support.mariadb import MariaDb
from support.places import attached

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import QueryFailed
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.external import External
from keystone_action.services.external_address import ExternalAddress
from keystone_action.services.postgres.embedded_server import EmbeddedServer
from keystone_action.services.service import CellScope, Place
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.services import ExternalService


def external(url: str, ready_timeout: float = 10.0) -> External:
    return External(
        ExternalService.model_validate({"type": "external", "name": "db", "url": url, "ready_timeout": ready_timeout})
    )


@contextmanager
def started(service: External, tmp_path: Path, *, exclusive: bool = True) -> Iterator[Place]:
    anyio.run(service.start)
    scope = CellScope("cell", tmp_path, tmp_path, AuditLog(tmp_path / "audit"), exclusive)
    with attached(service, scope) as place:
        yield place


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        (
            "postgresql://us%40er:p%2Fw@db.local:6000/shop?sslmode=disable",
            "postgresql",
            {"host": "db.local", "port": 6000, "user": "us@er", "password": "p/w", "database": "shop"},
        ),
        ("postgres://u@h/d", "postgresql", {"host": "h", "port": 5432, "user": "u", "database": "d"}),
        ("postgresql+psycopg://u:p@h/d", "postgresql", {"host": "h", "port": 5432}),
        ("mysql://u:p@h/d", "mysql", {"host": "h", "port": 3306, "database": "d"}),
        ("mariadb+pymysql://u:p@[::1]:3307/d", "mysql", {"host": "::1", "port": 3307}),
        ("http://api.local/v1", "http", {"host": "api.local", "port": 80}),
        ("https://api.local:8443", "https", {"host": "api.local", "port": 8443}),
        ("redis://cache/0", "redis", {"host": "cache", "port": 6379}),
        ("nats://queue:4222", "nats", {"host": "queue", "port": 4222}),
    ],
)
def test_an_address_is_taken_apart(url: str, kind: str, expected: dict[str, object]) -> None:
    target = ExternalAddress.from_url("db", url)
    assert target.kind == kind
    found = target.address.as_mapping()
    assert found["url"] == url
    assert expected.items() <= found.items()
    if kind not in ("postgresql", "mysql"):
        assert "database" not in found


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("just-text", "names no scheme"),
        ("postgresql:///d", "names no host"),
        ("http://h:99999", "can't be read"),
        ("nats://queue", "has no port"),
        ("sqlite:///x.db", "is a file"),
        ("mysql://u:secret@h/d?ssl=1", "parameters"),
        ("postgresql://u:secret@h/d?nonsense=1", "can't be read"),
    ],
)
def test_a_bad_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        ExternalAddress.from_url("db", url)
    assert "service db" in refused.value.message
    assert "secret" not in refused.value.message + refused.value.help


def test_postgresql_is_asked_by_its_own_user(postgres: PostgresForTests, tmp_path: Path) -> None:
    cell = postgres.attach()
    try:
        service = external(cell.place.for_agent.url)
        with started(service, tmp_path) as place:
            assert place.for_agent == cell.place.for_agent
            anyio.run(place.run_sql, SqlScript("sql", text="CREATE TABLE t (id int); INSERT INTO t VALUES (7);"))
            assert place.database is not None
            assert place.database.query("SELECT id FROM t", timeout=10).rows == ((7,),)
            cell.agent().execute("CREATE SCHEMA evil")
            cell.agent().execute("CREATE TABLE evil.t (id int)")
            cell.agent().execute("ALTER ROLE CURRENT_USER SET search_path = evil")
            assert place.database.query("SELECT id FROM t", timeout=10).rows == ((7,),)
            with pytest.raises(QueryFailed, match="read-only"):
                place.database.query("DELETE FROM t", timeout=10)
            with pytest.raises(ServiceError, match=r"service db refused a fixture: .*nowhere"):
                anyio.run(place.run_sql, SqlScript("sql", text="SELECT * FROM nowhere"))
    finally:
        cell.close()


def test_a_look_that_fails_before_the_agent_is_an_error(postgres: PostgresForTests, tmp_path: Path) -> None:
    """What stood before it would not be known, and so not what it redefined."""
    cell = postgres.attach()
    service = external(cell.place.for_agent.url)
    with started(service, tmp_path) as place:
        anyio.run(place.seal)
        cell.close()
        with pytest.raises(ServiceError, match="service db went away"):
            anyio.run(place.seal)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_that_has_not_been_up_since_the_agent_started_is_an_error(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place: Any
    with ExitStack() as ends:
        if kind == "postgres":
            cell = request.getfixturevalue("postgres").attach()
            ends.callback(cell.close)
            url = cell.place.for_agent.url
        else:
            mariadb = request.getfixturevalue("mariadb")
            database, user, password = mariadb.make_database()
            url = f"mysql://{user}:{password}@127.0.0.1:{mariadb.port}/{database}"
        place = ends.enter_context(started(external(url), tmp_path))
        anyio.run(place.seal)
        place.settle()
        place.require_unbroken()
        up, asked = place._up
        place._up = up + 3600, asked
        with pytest.raises(ServiceError, match=r"service db went away .* crashed or was killed.*: it has been up for"):
            place.settle()


def test_a_server_that_is_not_there_after_the_agent_is_an_error(
    portal: BlockingPortal, sandboxes: ProcessSandboxes, tmp_path: Path
) -> None:
    """Unless it merely does not let us in: the agent may have set its own password."""
    server = EmbeddedServer("own", sandboxes.root / f"own-{secrets.token_hex(4)}", sandboxes)
    portal.call(server.start, 60.0)
    with server.admin() as admin:
        admin.execute("CREATE ROLE app LOGIN PASSWORD 'x'")
        admin.execute("CREATE DATABASE app OWNER app")
    with started(external(f"postgresql://app:x@127.0.0.1:{server.port}/app"), tmp_path) as place:
        anyio.run(place.seal)
        with server.admin() as admin:
            admin.execute("ALTER ROLE app PASSWORD 'y'")
        place.settle()
        portal.call(server.stop)
        with pytest.raises(ServiceError, match=r"service db went away .*refused"):
            place.settle()


def test_mariadb_is_asked_by_its_own_user(mariadb: MariaDb, tmp_path: Path) -> None:
    database, user, password = mariadb.make_database()
    service = external(f"mysql://{user}:{password}@127.0.0.1:{mariadb.port}/{database}")
    with started(service, tmp_path) as place:
        anyio.run(place.run_sql, SqlScript("sql", text="CREATE TABLE t (id int); INSERT INTO t VALUES (7); SELECT 1;"))
        assert place.database is not None
        assert place.database.query("SELECT id FROM t", timeout=10).rows == ((7,),)
        with pytest.raises(ServiceError, match=r"service db refused a fixture: .*nowhere"):
            anyio.run(place.run_sql, SqlScript("sql", text="INSERT INTO t VALUES (8); SELECT * FROM nowhere"))


def test_several_cells_at_once_are_told_that_they_share_it(mariadb: MariaDb, tmp_path: Path) -> None:
    url = f"mysql://tester:{mariadb.password}@127.0.0.1:{mariadb.port}/mysql"
    with started(external(url), tmp_path) as alone:
        assert alone.notices == ()
    with started(external(url), tmp_path, exclusive=False) as one_of_several:
        (notice,) = one_of_several.notices
    assert "shared by all cells and never reset" in notice


@pytest.fixture
def web() -> Iterator[int]:
    """A server that has nothing but 404s."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_any_answer_makes_a_web_service_ready(web: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with started(external(f"http://127.0.0.1:{web}/"), tmp_path) as place:
        assert place.database is None
        assert place.for_host.port == web


def test_other_protocols_are_ready_when_they_accept(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with started(external(f"redis://127.0.0.1:{port}"), tmp_path) as place:
            assert place.for_agent.port == port


def test_a_service_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        timer = threading.Timer(0.5, reserved.listen)
        timer.start()
        try:
            with started(external(f"redis://127.0.0.1:{port}"), tmp_path) as place:
                assert place.for_agent.port == port
        finally:
            timer.join()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "http", "redis"])
def test_a_service_that_never_answers_says_who_and_how_long(scheme: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        service = external(f"{scheme}://user:hidden@127.0.0.1:{port}/d", ready_timeout=0.5)
        with pytest.raises(ServiceError) as late:
            anyio.run(service.start)
    assert late.value.message.startswith(
        f"service db: nothing answered at {scheme}://127.0.0.1:{port}/d within 0.5 s; the last try said: "
    )
    assert "hidden" not in late.value.message
