"""PostgreSQL in a container beside `docker run` and a client in a tight loop, and ten replicas beside one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Row, interleaved

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.services.service import RunningService

IMAGE = "postgres:16"
REPLICAS = 10
_AT_ONCE = 2
_LABEL = "keystone.run=bench"


def containers(rounds: int) -> list[Row] | list[str]:
    """The rows, or a line that says why there are none."""
    from keystone_action.engine.connect import connect
    from keystone_action.errors import SandboxError

    try:
        client = connect(os.environ)
    except SandboxError as error:
        return [f"PostgreSQL in a container: not measured ({error})"]
    if not client.has_image(IMAGE):
        return [f"PostgreSQL in a container: not measured (there is no image {IMAGE})"]
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        ours = _Ours(client, Path(name))
        samples = interleaved(
            {
                "docker run": docker_run,
                "ready": lambda: ours.measure(0),
                "one": lambda: ours.measure(1),
                "ten": lambda: ours.measure(REPLICAS),
            },
            rounds,
        )
    client.close()
    peer, ready, one, ten = (samples[key].median for key in ("docker run", "ready", "one", "ten"))
    return [
        Row("PostgreSQL in a container, ready", ready, "docker run, SELECT 1", peer, 1.1 * peer),
        Row(f"{REPLICAS} replicas, a database each", ten, "one", one, 1.5 * one),
    ]


def docker_run() -> float:
    """Seconds from `docker run` to the first answer, asked in a tight loop; the container is removed after it."""
    import psycopg

    started = time.perf_counter()
    words = ["docker", "run", "--detach", "--label", _LABEL, "--env", "POSTGRES_PASSWORD=bench", IMAGE]
    container = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        found = subprocess.run(["docker", "inspect", container], check=True, capture_output=True, text=True)
        address = json.loads(found.stdout)[0]["NetworkSettings"]["IPAddress"]
        while True:
            try:
                with psycopg.connect(f"host={address} user=postgres password=bench connect_timeout=2") as session:
                    session.execute("SELECT 1")
            except psycopg.OperationalError:
                continue
            return time.perf_counter() - started
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", container], check=True, capture_output=True)


class _Ours:
    """A run of ours with one service."""

    def __init__(self, client: EngineClient, directory: Path) -> None:
        self._client = client
        self._directory = directory

    def measure(self, cells: int) -> float:
        """Seconds until the service is ready and so many cells, two at a time, have had their database in it."""
        import anyio

        return anyio.run(self._measure, cells)

    async def _measure(self, cells: int) -> float:
        import anyio

        from keystone_action.engine.networks import Networks
        from keystone_action.services.container.host import make_host
        from keystone_action.services.postgres.container import PostgresContainer
        from keystone_action.spec.models.services import PostgresService

        run_id = f"bench-{secrets.token_hex(4)}"
        networks = Networks(self._client, run_id)
        definition = PostgresService(
            name="db", type="postgres", image=IMAGE, env={"POSTGRES_PASSWORD": "bench"}, isolation="database"
        )
        service = PostgresContainer(definition, make_host(client=self._client, run_id=run_id, networks=networks))
        limit = anyio.Semaphore(_AT_ONCE)
        started = time.perf_counter()
        try:
            await service.start()
            async with anyio.create_task_group() as group:
                for number in range(cells):
                    group.start_soon(self._cell, service, number, limit)
            return time.perf_counter() - started
        finally:
            await service.stop()
            await networks.close_all()

    async def _cell(self, service: RunningService, number: int, limit: object) -> None:
        import anyio

        from keystone_action.evidence.audit import AuditLog
        from keystone_action.services.service import CellScope

        assert isinstance(limit, anyio.Semaphore)
        directory = self._directory
        async with limit:
            audit = AuditLog(directory / "audit.jsonl")
            scope = CellScope(f"cell-{number}", directory, directory, audit, exclusive=False)
            async with service.attach(scope) as place:
                await place.seal()
                database = place.database
                assert database is not None
                await anyio.to_thread.run_sync(lambda: database.query("SELECT 1", timeout=10))
