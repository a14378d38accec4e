"""What watching costs an agent that writes into PostgreSQL: its own seconds with `forbidden.db_writes_outside` and
without, on two servers side by side, and ours to read what it did."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Row, interleaved

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from keystone_action.services.service import RunningService
    from keystone_action.services.sql_script import SqlScript

IMAGE = "postgres:16"
_FIXTURE = """
CREATE TABLE keyed (id int PRIMARY KEY, text text);
CREATE TABLE keyless (id int, text text);
INSERT INTO keyless SELECT n, repeat('x', 50) FROM generate_series(1, 50000) n;
"""
_ROW = "INSERT INTO keyed VALUES (%s, 'a text of some length')"
_WORK: dict[str, Callable[[Any], Any]] = {
    "2,000 inserts, one by one": lambda agent: [agent.execute(_ROW, (number,)) for number in range(2000)],
    "100,000 rows at once": lambda agent: agent.execute(
        "INSERT INTO keyed SELECT n, repeat('x', 50) FROM generate_series(1, 100000) n"
    ),
    "50,000 rows updated, no key": lambda agent: agent.execute("UPDATE keyless SET id = id + 1"),
    "100 tables made": lambda agent: [
        agent.execute(f"CREATE TABLE made_{number} (id serial PRIMARY KEY, text text)") for number in range(100)
    ],
}
_ALLOWED = 1.25
"""How much longer an agent may work with the rule than without."""


@dataclass
class _Cells:
    """Cells of a service, one after the other. reading: our own seconds to tell what was written."""

    portal: BlockingPortal
    service: RunningService
    watches: bool
    reading: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[Any], Any]) -> float:
        """The agent's seconds."""
        seconds: float = self.portal.call(self._measure, work)
        return seconds

    async def _measure(self, work: Callable[[Any], Any]) -> float:
        import anyio.to_thread
        import psycopg

        from keystone_action.evidence.audit import AuditLog
        from keystone_action.services.service import CellScope

        with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
            place = Path(name)
            audit = AuditLog(place / "audit.jsonl")
            scope = CellScope("cell", place, place, audit, exclusive=False, watches_writes=self.watches)
            async with self.service.attach(scope) as there:
                await there.run_sql(SqlScript("sql", text=_FIXTURE))
                await there.seal()

                def agent() -> float:
                    with psycopg.connect(there.for_host.url, autocommit=True) as session:
                        started = time.perf_counter()
                        work(session)
                        return time.perf_counter() - started

                seconds = await anyio.to_thread.run_sync(agent)
                started = time.perf_counter()
                await anyio.to_thread.run_sync(there.settle)
                if there.writes is not None:
                    await anyio.to_thread.run_sync(there.writes.writes)
                    self.reading.append(time.perf_counter() - started)
                return seconds


def postgres_writes(rounds: int) -> list[Row | str]:
    """Rows for the embedded server, and for an image where an engine has it."""
    return [*_rows("embedded", rounds, _embedded), *_in_container(rounds)]


def _in_container(rounds: int) -> list[Row | str]:
    from keystone_action.engine.connect import connect
    from keystone_action.errors import SandboxError

    try:
        client = connect(os.environ)
    except SandboxError as error:
        return [f"PostgreSQL in a container, watched: not measured ({error})"]
    try:
        if not client.has_image(IMAGE):
            return [f"PostgreSQL in a container, watched: not measured (there is no image {IMAGE})"]
        return list(_rows("container", rounds, partial(_container, client)))
    finally:
        client.close()


def _rows(kind: str, rounds: int, serve: Callable[[AsyncExitStack, bool], Awaitable[RunningService]]) -> list[Row]:
    from anyio.from_thread import start_blocking_portal

    @asynccontextmanager
    async def served(watches: bool) -> AsyncIterator[RunningService]:
        async with AsyncExitStack() as stack:
            yield await serve(stack, watches)

    with start_blocking_portal() as portal:
        with_rule, without = (portal.wrap_async_context_manager(served(watches)) for watches in (True, False))
        with with_rule as watched, without as plain:
            cells = {True: _Cells(portal, watched, True), False: _Cells(portal, plain, False)}
            return [row for label, work in _WORK.items() for row in _compared(kind, label, work, cells, rounds)]


def _compared(kind: str, label: str, work: Callable[[Any], Any], cells: dict[bool, _Cells], rounds: int) -> list[Row]:
    cells[True].reading.clear()
    samples = interleaved(
        {str(watches): partial(one.measure, work) for watches, one in cells.items()},
        rounds,
    )
    rule, plain = samples["True"].median, samples["False"].median
    reading = sorted(cells[True].reading)[len(cells[True].reading) // 2]
    return [
        Row(f"{kind}: {label}", rule, "without the rule", plain, _ALLOWED * plain),
        Row("  read afterwards", reading, "the agent's time", rule, None),
    ]


async def _embedded(stack: AsyncExitStack, watches: bool) -> RunningService:
    from keystone_action.files.removal import remove_tree
    from keystone_action.sandbox.processes import sandboxes
    from keystone_action.services.postgres.service import EmbeddedPostgres
    from keystone_action.spec.models.services import PostgresService

    root = _passable()
    stack.callback(remove_tree, root)
    provider = await sandboxes.start(root)
    stack.push_async_callback(provider.close)
    definition = PostgresService(name="db", type="postgres")
    service = EmbeddedPostgres(definition, root / "postgres", provider, watches_writes=watches)
    return await _started(stack, service)


def _passable() -> Path:
    """A directory that the server's user may pass."""
    root = Path(tempfile.mkdtemp(prefix="keystone-bench-"))
    root.chmod(0o711)
    return root


async def _container(client: Any, stack: AsyncExitStack, watches: bool) -> RunningService:
    from keystone_action.engine.networks import Networks
    from keystone_action.services.container.host import make_host
    from keystone_action.services.postgres.container import PostgresContainer
    from keystone_action.spec.models.services import PostgresService

    run_id = f"bench-{secrets.token_hex(4)}"
    networks = Networks(client, run_id)
    stack.push_async_callback(networks.close_all)
    definition = PostgresService(name="db", type="postgres", image=IMAGE, isolation="database")
    host = make_host(client=client, run_id=run_id, networks=networks)
    return await _started(stack, PostgresContainer(definition, host, watches_writes=watches))


async def _started(stack: AsyncExitStack, service: RunningService) -> RunningService:
    await service.start()
    stack.push_async_callback(service.stop)
    return service
