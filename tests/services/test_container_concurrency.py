"""Many cells at once, each with several services at once, on the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import anyio
import httpx
import psycopg
import pytest
from support.containers import ContainerWorld
from support.images import BASE, MARIADB, POSTGRES

from keystone_action.evidence.audit import AuditLog
from keystone_action.services.service import CellScope, Place, RunningService

pytestmark = pytest.mark.docker

CELLS = 8
WEB = ["python3", "-m", "http.server", "8000"]


def scope_of(containers: ContainerWorld, closing: ExitStack, number: int) -> CellScope:
    """A cell with a network of its own, as long as `closing`."""
    opened = containers.portal.wrap_async_context_manager(containers.networks.cell(f"many-{number}"))
    network = closing.enter_context(opened)
    private = containers.directory / f"many-{number}"
    private.mkdir()
    return CellScope(
        f"many-{number}", private, private, AuditLog(private / "audit.jsonl"), False, network=network, in_network=True
    )


@asynccontextmanager
async def all_attached(
    services: list[RunningService], scopes: list[CellScope]
) -> AsyncIterator[dict[tuple[str, str], Place]]:
    """Entered all at once, and left all at once."""
    blocks = {(scope.cell_id, service.name): service.attach(scope) for scope in scopes for service in services}
    places: dict[tuple[str, str], Place] = {}

    async def enter(key: tuple[str, str]) -> None:
        places[key] = await blocks[key].__aenter__()

    async with anyio.create_task_group() as group:
        for key in blocks:
            group.start_soon(enter, key)
    yield places
    async with anyio.create_task_group() as group:
        for block in blocks.values():
            group.start_soon(block.__aexit__, None, None, None)


async def start_all(services: list[RunningService]) -> None:
    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(service.start)


def test_eight_cells_with_three_services_each_are_attached_and_detached_at_once(containers: ContainerWorld) -> None:
    containers.need(POSTGRES, BASE)
    services = [
        containers.build(name="db", image=POSTGRES, env={"POSTGRES_PASSWORD": "x"}),
        containers.build(name="web", image=BASE, command=WEB, ports=[8000]),
        containers.build(name="api", type="http_mock", record=True, default_response=204),
    ]
    containers.portal.call(start_all, services)
    with ExitStack() as closing:
        scopes = [scope_of(containers, closing, number) for number in range(CELLS)]
        with containers.portal.wrap_async_context_manager(all_attached(services, scopes)) as places:
            assert len(places) == CELLS * len(services)
            for number, scope in enumerate(scopes):
                db, web, api = (places[scope.cell_id, name] for name in ("db", "web", "api"))
                with psycopg.connect(db.for_host.url, autocommit=True) as session:
                    session.execute("CREATE TABLE mine AS SELECT %s AS number", [number])
                assert httpx.get(web.for_host.url, trust_env=False).status_code == 200
                assert httpx.get(f"{api.for_host.url}/{number}", trust_env=False).status_code == 204
            for number, scope in enumerate(scopes):
                db, web, api = (places[scope.cell_id, name] for name in ("db", "web", "api"))
                for one in (db, web):
                    one.settle()
                assert db.database is not None
                assert db.database.query("SELECT number FROM mine", timeout=10).rows == ((number,),)
                assert api.requests is not None
                assert [request.path for request in api.requests.requests()] == [f"/{number}"]
            hosts = {places[scope.cell_id, "web"].for_host.host for scope in scopes}
            assert len(hosts) == CELLS
        assert len(containers.containers(kind="service")) == 1
    for service in services:
        containers.portal.call(service.stop)


def test_two_shared_services_of_one_cell_are_attached_at_once(containers: ContainerWorld) -> None:
    containers.need(MARIADB, BASE)
    services = [
        containers.build(name="db", image=MARIADB, env={"MARIADB_USER": "app"}),
        containers.build(name="web", image=BASE, command=WEB, ports=[8000], isolation="database"),
    ]
    containers.portal.call(start_all, services)
    with ExitStack() as closing:
        scopes = [scope_of(containers, closing, number) for number in range(2)]
        with containers.portal.wrap_async_context_manager(all_attached(services, scopes)):
            for scope in scopes:
                assert scope.network is not None
                assert len(scope.network.shared) == 2
                exit_code, printed = containers.run(scope.network, "getent hosts db && getent hosts web")
                assert (exit_code, len(printed.splitlines())) == (0, 2)
    for service in services:
        containers.portal.call(service.stop)
