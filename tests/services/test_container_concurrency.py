"""Many cells at once, each with several services at once, on the real engine."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import httpx
import psycopg
import pytest
from support.containers import ContainerWorld
from support.images import BASE, MARIADB, POSTGRES

from keystone_action.evidence.audit import AuditLog
from keystone_action.services.base import Attached, CellScope, RunningService

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


async def attach_all(services: list[RunningService], scopes: list[CellScope]) -> dict[tuple[str, str], Attached]:
    attached: dict[tuple[str, str], Attached] = {}

    async def attach(service: RunningService, scope: CellScope) -> None:
        attached[scope.cell_id, service.name] = await service.attach(scope)

    async with anyio.create_task_group() as group:
        for scope in scopes:
            for service in services:
                group.start_soon(attach, service, scope)
    return attached


async def start_all(services: list[RunningService]) -> None:
    async with anyio.create_task_group() as group:
        for service in services:
            group.start_soon(service.start)


async def detach_all(services: list[RunningService], attached: dict[tuple[str, str], Attached]) -> None:
    by_name = {service.name: service for service in services}
    async with anyio.create_task_group() as group:
        for (_, name), one in attached.items():
            group.start_soon(by_name[name].detach, one)


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
        attached = containers.portal.call(attach_all, services, scopes)
        assert len(attached) == CELLS * len(services)
        for number, scope in enumerate(scopes):
            db, web, api = (attached[scope.cell_id, name] for name in ("db", "web", "api"))
            with psycopg.connect(db.for_host.url, autocommit=True) as session:
                session.execute("CREATE TABLE mine AS SELECT %s AS number", [number])
            assert httpx.get(web.for_host.url, trust_env=False).status_code == 200
            assert httpx.get(f"{api.for_host.url}/{number}", trust_env=False).status_code == 204
        for number, scope in enumerate(scopes):
            db, web, api = (attached[scope.cell_id, name] for name in ("db", "web", "api"))
            for one in (db, web):
                assert one.settle is not None
                one.settle()
            assert db.database is not None
            assert db.database.query("SELECT number FROM mine", timeout=10).rows == ((number,),)
            assert api.requests is not None
            assert [request.path for request in api.requests.requests()] == [f"/{number}"]
        hosts = {attached[scope.cell_id, "web"].for_host.host for scope in scopes}
        assert len(hosts) == CELLS
        containers.portal.call(detach_all, services, attached)
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
        attached = containers.portal.call(attach_all, services, scopes)
        for scope in scopes:
            assert scope.network is not None
            assert len(scope.network.shared) == 2
            exit_code, printed = containers.run(scope.network, "getent hosts db && getent hosts web")
            assert (exit_code, len(printed.splitlines())) == (0, 2)
        containers.portal.call(detach_all, services, attached)
    for service in services:
        containers.portal.call(service.stop)
