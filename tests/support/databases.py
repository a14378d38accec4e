"""Real databases for tests, one server a session: the embedded PostgreSQL and Debian's MariaDB.

Fixtures; a folder's `conftest.py` imports those that its tests use.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from support.mariadb import MariaDb, running_mariadb
from support.places import in_memory

from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import QueryResult
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.postgres.service import EmbeddedPostgres
from keystone_action.services.service import CellScope, Place
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.services import PostgresService


@dataclass
class PostgresCell:
    """One cell's database, and both sides of it: the agent's connection and a check's query."""

    portal: BlockingPortal
    service: EmbeddedPostgres
    place: Place
    audit: AuditLog
    _block: AbstractAsyncContextManager[Place]
    agent_sessions: list[psycopg.Connection[Any]] = field(default_factory=list)

    def agent(self, **fields: Any) -> psycopg.Connection[Any]:
        """A connection as the agent has it, each statement its own transaction."""
        session = psycopg.connect(self.place.for_agent.url, **{"autocommit": True, **fields})
        self.agent_sessions.append(session)
        return session

    def fixture(self, script: str) -> None:
        """What an sql fixture of the spec does before the agent starts; then it does."""
        self.run(SqlScript("sql", text=script))
        self.seal()

    def run(self, script: SqlScript) -> tuple[str, ...]:
        """A script of a fixture; returns notices."""
        return self.portal.call(self.place.run_sql, script)

    def seal(self) -> None:
        """The agent starts."""
        self.portal.call(self.place.seal)

    def query(self, sql: str, timeout: float = 10.0, *, redefined: bool = False) -> QueryResult:
        """What a check asks."""
        assert self.place.database is not None
        return self.place.database.query(sql, timeout=timeout, redefined=redefined)

    def close(self) -> None:
        for session in self.agent_sessions:
            session.close()
        self.leave()

    def leave(self) -> None:
        """The cell is over; its sessions go on as long as they can."""
        self.portal.call(self._block.__aexit__, None, None, None)
        self.audit.close()


@dataclass
class PostgresForTests:
    """A started embedded server and cells of it."""

    portal: BlockingPortal
    service: EmbeddedPostgres
    root: Path
    _numbers: Any = field(default_factory=itertools.count)

    def attach(self, *, exclusive: bool = False, watches_writes: bool = False) -> PostgresCell:
        """One more cell."""
        private = self.root / f"cell-{next(self._numbers)}"
        private.mkdir()
        audit = AuditLog(private / "audit.jsonl")
        scope = CellScope("cell", private, private, audit, exclusive, watches_writes=watches_writes)
        block = self.service.attach(scope)
        return PostgresCell(self.portal, self.service, self.portal.call(block.__aenter__), audit, block)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """An event loop that lives as long as the session's servers."""
    with start_blocking_portal() as running:
        yield running


@pytest.fixture(scope="session")
def sandboxes(portal: BlockingPortal) -> Iterator[process.ProcessSandboxes]:
    """A real process sandbox that servers run in."""
    root = Path(tempfile.mkdtemp(prefix="keystone-test-", dir=in_memory()))
    root.chmod(0o711)
    provider = portal.call(process.start, root)
    yield provider
    portal.call(provider.close)
    remove_tree(root)


@pytest.fixture(scope="session")
def postgres(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresForTests]:
    """One embedded PostgreSQL."""
    yield from _embedded(portal, sandboxes, tmp_path_factory.mktemp("postgres"), watches_writes=False)


@pytest.fixture(scope="session")
def watched_postgres(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresForTests]:
    """One that keeps a log of what is written into its databases."""
    yield from _embedded(portal, sandboxes, tmp_path_factory.mktemp("watched"), watches_writes=True)


def _embedded(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, directory: Path, *, watches_writes: bool
) -> Iterator[PostgresForTests]:
    definition = PostgresService.model_validate(
        {
            "type": "postgres",
            "name": "db",
            "ready_timeout": "240s",
            "env": {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "s3cret/@:", "POSTGRES_DB": "shop"},
        }
    )
    place = sandboxes.root / directory.name
    service = EmbeddedPostgres(definition, place, sandboxes, watches_writes=watches_writes)
    portal.call(service.start)
    yield PostgresForTests(portal, service, directory)
    portal.call(service.stop)


@pytest.fixture
def cell(postgres: PostgresForTests) -> Iterator[PostgresCell]:
    """A fresh database with a table of customers, as a fixture of a spec laid it out."""
    made = postgres.attach()
    made.fixture(
        "CREATE TABLE customers (id int PRIMARY KEY, email varchar(80));"
        "INSERT INTO customers VALUES (1, 'a@example.com'), (2, 'b@example.com'), (3, NULL);"
    )
    yield made
    made.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """One MariaDB."""
    with running_mariadb() as server:
        yield server
