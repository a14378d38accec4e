"""What watching costs an agent that writes into MySQL or MariaDB: its own seconds with `forbidden.db_writes_outside`
and without, in cells of one server, and ours to look at what stands there and to read what was written."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Row, interleaved

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from keystone_action.services.service import CellScope, Place, RunningService
    from keystone_action.services.sql_script import SqlScript

IMAGES = ("mysql:9", "mariadb:11")
_FIXTURE = """
CREATE TABLE ten (n int); INSERT INTO ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE TABLE keyed (id int AUTO_INCREMENT PRIMARY KEY, text text);
CREATE TABLE keyless (id int, text text);
INSERT INTO keyless SELECT 1, repeat('x', 50) FROM ten a, ten b, ten c, ten d;
"""
_WORK = {
    "1,000 inserts, one by one": ["INSERT INTO keyed (text) VALUES ('a text of some length')"] * 1000,
    "100,000 rows at once": [
        "INSERT INTO keyed (text) SELECT repeat('x', 50) FROM ten a, ten b, ten c, ten d, ten e",
    ],
    "10,000 rows updated, no key": ["UPDATE keyless SET id = id + 1"],
}
_ALLOWED = 1.25
"""How much longer an agent may work with the rule than without."""


@dataclass
class _Cells:
    """Cells of one server, one after the other. looking, reading: our own seconds before the agent and after it."""

    portal: BlockingPortal
    service: RunningService
    watches: bool
    looking: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)

    def measure(self, work: list[str]) -> float:
        """The agent's seconds."""
        from keystone_action.evidence.audit import AuditLog
        from keystone_action.services.service import CellScope

        with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
            place = Path(name)
            audit = AuditLog(place / "audit.jsonl")
            scope = CellScope("cell", place, place, audit, exclusive=False, watches_writes=self.watches)
            return float(self.portal.call(self._measure, scope, work))

    async def _measure(self, scope: CellScope, work: list[str]) -> float:
        import anyio.to_thread

        async with self.service.attach(scope) as there:
            await there.run_sql(SqlScript("sql", text=_FIXTURE))
            started = time.perf_counter()
            await there.seal()
            self.looking.append(time.perf_counter() - started)
            seconds = await anyio.to_thread.run_sync(_work, there, work)
            started = time.perf_counter()
            await anyio.to_thread.run_sync(there.settle)
            if there.writes is not None:
                await anyio.to_thread.run_sync(there.writes.writes)
            self.reading.append(time.perf_counter() - started)
            return seconds


def _work(there: Place, statements: list[str]) -> float:
    import pymysql

    address = there.for_host
    keywords: dict[str, Any] = {"host": address.host, "port": address.port, "user": address.user}
    keywords |= {"password": address.password, "database": address.database, "autocommit": True}
    with pymysql.connect(**keywords) as session, session.cursor() as cursor:
        started = time.perf_counter()
        for statement in statements:
            cursor.execute(statement)
        return time.perf_counter() - started


def mysql_writes(rounds: int) -> list[Row | str]:
    """Rows for each image that the engine has."""
    from keystone_action.engine.connect import connect
    from keystone_action.errors import SandboxError

    try:
        engine = connect(os.environ)
    except SandboxError as error:
        return [f"MySQL and MariaDB, watched: not measured ({error})"]
    try:
        found: list[Row | str] = []
        for image in IMAGES:
            if engine.has_image(image):
                found += _rows(engine, image, rounds)
            else:
                found.append(f"{image}, watched: not measured (there is no such image)")
        return found
    finally:
        engine.close()


def _rows(engine: Any, image: str, rounds: int) -> list[Row]:
    from anyio.from_thread import start_blocking_portal

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_served(engine, image)) as service,
    ):
        return [row for label, work in _WORK.items() for row in _compared(portal, service, image, label, work, rounds)]


def _compared(
    portal: BlockingPortal, service: RunningService, image: str, label: str, work: list[str], rounds: int
) -> list[Row]:
    cells = {watches: _Cells(portal, service, watches) for watches in (True, False)}
    samples = interleaved({str(watches): partial(one.measure, work) for watches, one in cells.items()}, rounds)
    rule, plain = samples["True"].median, samples["False"].median
    return [
        Row(f"{image}: {label}", rule, "without the rule", plain, _ALLOWED * plain),
        Row(
            "  looked at before", _middle(cells[True].looking), "without the rule", _middle(cells[False].looking), None
        ),
        Row("  read afterwards", _middle(cells[True].reading), "without the rule", _middle(cells[False].reading), None),
    ]


def _middle(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


@asynccontextmanager
async def _served(engine: Any, image: str) -> AsyncIterator[RunningService]:
    from keystone_action.engine.networks import Networks
    from keystone_action.services.container.host import make_host
    from keystone_action.services.mysql.service import MysqlContainer
    from keystone_action.spec.models.services import MysqlService

    async with AsyncExitStack() as stack:
        run_id = f"bench-{secrets.token_hex(4)}"
        networks = Networks(engine, run_id)
        stack.push_async_callback(networks.close_all)
        definition = MysqlService.model_validate(
            {"name": "db", "type": "mysql", "image": image, "isolation": "database", "ready_timeout": "120s"}
        )
        service = MysqlContainer(definition, make_host(client=engine, run_id=run_id, networks=networks))
        await service.start()
        stack.push_async_callback(service.stop)
        yield service
