"""Databases of every kind as one cell has them: laid out by a fixture, worked on by the agent, asked by a check."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from anyio.from_thread import BlockingPortal
from support.containers import ContainerWorld, ServedCell
from support.context import grade
from support.databases import PostgresForTests
from support.images import MARIADB, MYSQL, POSTGRES
from support.mariadb import MariaDb, let_create_users
from support.places import attached

from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import Database
from keystone_action.invariants.check import Outcome
from keystone_action.services.external import External
from keystone_action.services.service import CellScope, Place, RunningService
from keystone_action.services.sql_script import SqlScript
from keystone_action.services.sqlite.service import SqliteFile
from keystone_action.spec.models.services import ExternalService, SqliteService

LAYOUT = (
    "CREATE TABLE customers (id int PRIMARY KEY, email varchar(80))",
    "INSERT INTO customers VALUES (1, 'a@example.com'), (2, 'b@example.com'), (3, NULL)",
    "CREATE TABLE orders (id int PRIMARY KEY)",
)
IN_CONTAINERS: dict[str, dict[str, Any]] = {
    "postgres image": {"image": POSTGRES, "env": {"POSTGRES_PASSWORD": "p", "POSTGRES_DB": "shop"}},
    "mariadb image": {"image": MARIADB, "env": {"MARIADB_USER": "app", "MARIADB_PASSWORD": "p"}},
    "mysql image": {"image": MYSQL, "env": {"MYSQL_USER": "app", "MYSQL_PASSWORD": "p"}},
}
POSTGRES_OWN_ROLES = ("external postgres, may create roles", "external postgres, superuser")
OWN_ROLES = (*POSTGRES_OWN_ROLES, "external mariadb, may create users")
"""Where a role of ours asks."""
OWN_ROLES_ON_IMAGES = {f"external {kind}": kind for kind in IN_CONTAINERS}
POSTGRES_KINDS = ("postgres", "external postgres", *POSTGRES_OWN_ROLES)
KINDS = (*POSTGRES_KINDS, "external mariadb", OWN_ROLES[-1], "sqlite")
"""Those that need no container."""
ONE_OF_EACH = (*KINDS[:3], "external mariadb", OWN_ROLES[-1], "sqlite")
"""One of each dialect and of each role that asks; `MYSQL_IMAGE` goes with them, as the only server of its kind."""
BY_URLS_USER = ("postgres", "external postgres", "external mariadb", "sqlite")
BY_OWN_ROLE = ("postgres", POSTGRES_OWN_ROLES[0], OWN_ROLES[-1], "sqlite")
"""One of each dialect. What of a catalogue is compared, and how, is one code for all worlds of a dialect: they differ
in who asks. Attacks of a kind are made by each who asks, by one test or by several, and the honest twin is asked in one
of their worlds at least."""
MYSQL_IMAGE = "mysql image"

_started: dict[str, RunningService] = {}
"""One server a kind and session; each test has a database of its own there."""


@dataclass
class DatabaseWorld:
    """dialect: `postgres`, `mysql` or `sqlite`. agent: runs statements with the agent's rights, and ends."""

    dialect: str
    database: Database
    run_sql: Callable[[str], object]
    seal: Callable[[], None]
    agent: Callable[[Sequence[str]], None]
    workspace: Path
    own: Place | None = None
    """Of one that is external."""
    leave: Callable[[], None] = lambda: None

    def lay_out(self, *more: str) -> None:
        """What stands before the agent."""
        self.run_sql("; ".join((*LAYOUT, *more)))
        self.seal()

    def ask(self, query: str, *, timeout: float = 20.0, **fields: Any) -> Outcome:
        """The check `sql`."""
        document = {"type": "sql", "service": "db", "query": query, **fields}
        return grade(document, self.workspace, evidence={"databases": {"db": self.database}}, timeout=timeout)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseWorld]:
    """Of the kind that the test is parametrised with (indirectly)."""
    kind = request.param
    with ExitStack() as stack:
        if kind in IN_CONTAINERS:
            yield _in_container(request, kind, tmp_path, stack)
        elif kind in OWN_ROLES_ON_IMAGES:
            yield _external_image(request, OWN_ROLES_ON_IMAGES[kind], tmp_path, stack)
        elif kind == "sqlite":
            yield _sqlite(request, tmp_path, stack)
        elif kind.startswith("external mariadb"):
            server: MariaDb = request.getfixturevalue("mariadb")
            name, user, password = server.make_database(creates_users=kind in OWN_ROLES)
            url = f"mysql://{user}:{password}@127.0.0.1:{server.port}/{name}"
            yield _external(request, "mysql", url, tmp_path, stack)
        else:
            postgres: PostgresForTests = request.getfixturevalue("postgres")
            cell = postgres.attach()
            stack.callback(cell.close)
            if kind.startswith("external postgres"):
                url = cell.place.for_agent.url
                right = {POSTGRES_OWN_ROLES[0]: "CREATEROLE", POSTGRES_OWN_ROLES[1]: "SUPERUSER"}.get(kind)
                if right is not None:
                    with postgres.service._server.admin() as admin:
                        admin.execute(f'ALTER ROLE "{urlsplit(url).username}" {right}'.encode())
                yield _external(request, "postgres", url, tmp_path, stack)
            else:
                url = cell.place.for_agent.url
                assert cell.place.database is not None
                yield DatabaseWorld(
                    "postgres",
                    cell.place.database,
                    cell.fixture,
                    lambda: postgres.portal.call(cell.place.seal),
                    lambda statements: _postgres_agent(url, statements),
                    tmp_path,
                )


def _external(request: pytest.FixtureRequest, dialect: str, url: str, place: Path, stack: ExitStack) -> DatabaseWorld:
    service = External(ExternalService.model_validate({"type": "external", "name": "db", "url": url}))
    agent = _postgres_agent if dialect == "postgres" else _mysql_agent
    return _of_service(request, dialect, service, place, agent, stack)


def _sqlite(request: pytest.FixtureRequest, place: Path, stack: ExitStack) -> DatabaseWorld:
    (place / "workspace").mkdir()
    (place / "private").mkdir()
    portal: BlockingPortal = request.getfixturevalue("portal")
    definition = SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "data.db"})
    service = SqliteFile(definition, request.getfixturevalue("sandboxes"))
    file = place / "workspace/data.db"

    def agent(_url: str, statements: Sequence[str]) -> None:
        session = sqlite3.connect(file, isolation_level=None)
        for statement in statements:
            session.execute(statement)
        session.close()

    stack.callback(portal.call, service.stop)
    return _of_service(request, "sqlite", service, place, agent, stack)


def _of_service(
    request: pytest.FixtureRequest,
    dialect: str,
    service: RunningService,
    place: Path,
    agent: Callable[[str, Sequence[str]], None],
    stack: ExitStack,
) -> DatabaseWorld:
    portal: BlockingPortal = request.getfixturevalue("portal")
    portal.call(service.start)
    scope = CellScope("cell", place / "private", place / "workspace", AuditLog(place / "audit"), exclusive=True)
    placing = stack.enter_context(ExitStack())
    own = placing.enter_context(attached(service, scope, portal))
    assert own.database is not None
    return DatabaseWorld(
        dialect,
        own.database,
        lambda script: portal.call(own.run_sql, SqlScript("sql", text=script)),
        lambda: portal.call(own.seal),
        lambda statements: agent(own.for_host.url, statements),
        place,
        own,
        placing.close,
    )


def _external_image(request: pytest.FixtureRequest, kind: str, place: Path, stack: ExitStack) -> DatabaseWorld:
    """A database of the image's, whose user may make roles there, as if somebody else ran it."""
    cell = _cell_in_container(request, kind, stack)
    url = cell.place.for_host.url
    user, database = urlsplit(url).username, urlsplit(url).path[1:]
    own: Any = cell.place
    if kind == "postgres image":
        with own.cell.server.admin() as admin:
            admin.execute(f'ALTER ROLE "{user}" SUPERUSER'.encode())
        return _external(request, "postgres", url, place, stack)
    with own._server.admin() as admin:
        let_create_users(admin, database, str(user))
    return _external(request, "mysql", url, place, stack)


def _cell_in_container(request: pytest.FixtureRequest, kind: str, stack: ExitStack) -> ServedCell:
    containers: ContainerWorld = request.getfixturevalue("session_containers")
    if kind not in _started:
        _started[kind] = containers.start(name="db", ready_timeout="120s", **IN_CONTAINERS[kind])
    cell = containers.cell(_started[kind])
    stack.callback(cell.close)
    return cell


def _in_container(request: pytest.FixtureRequest, kind: str, place: Path, stack: ExitStack) -> DatabaseWorld:
    cell = _cell_in_container(request, kind, stack)
    dialect = "postgres" if kind.startswith("postgres") else "mysql"
    run = _postgres_agent if dialect == "postgres" else _mysql_agent

    def agent(statements: Sequence[str]) -> None:
        run(cell.place.for_host.url, statements)
        cell.settle()

    return DatabaseWorld(
        dialect,
        cell.place.database,
        cell.fixture,
        cell.seal,
        agent,
        place,
    )


def _postgres_agent(url: str, statements: Sequence[str]) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        for statement in statements:
            session.execute(statement.encode())


def _mysql_agent(url: str, statements: Sequence[str]) -> None:
    parts = urlsplit(url)
    fields: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    fields |= {"password": parts.password, "database": parts.path.lstrip("/"), "autocommit": True}
    with pymysql.connect(**fields, ssl_disabled=True) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
