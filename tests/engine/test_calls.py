"""The engine by other ways than its own socket, and services whose engine goes away under them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from support.containers import NOTHING, ContainerWorld
from support.docker_engine import Engine
from support.engine_proxy import EngineProxy
from support.images import BASE, MARIADB, POSTGRES

from keystone_action.engine import calls as engine_module
from keystone_action.engine import networks
from keystone_action.engine.calls import Refused, ask_here, ask_within
from keystone_action.engine.connect import connect
from keystone_action.engine.connection import library_errors
from keystone_action.engine.networks import Networks
from keystone_action.errors import ServiceError
from keystone_action.services.container import engine_container

if TYPE_CHECKING:
    from docker import DockerClient

KINDS = {
    "postgres": {"image": POSTGRES, "env": {"POSTGRES_PASSWORD": "x"}},
    "mysql": {"image": MARIADB, "env": {"MARIADB_USER": "app"}},
    "container": {"image": BASE, "command": ["sh", "-c", NOTHING], "wait_for": "true"},
}


@pytest.fixture
def proxy(engine: DockerClient, tmp_path: Path) -> Iterator[EngineProxy]:
    made = EngineProxy(tmp_path / "engine.sock")
    yield made
    made.close()


@pytest.fixture
def far(containers: ContainerWorld, proxy: EngineProxy) -> Iterator[ContainerWorld]:
    """The same run, whose engine is reached by the proxy; what it can't remove is removed behind its back."""
    client = Engine(connect({"DOCKER_HOST": proxy.address}))
    yield replace(containers, engine=client, networks=Networks(client, containers.run_id), _started=[], _cells=[])
    client.close()
    label = {"label": f"keystone.run={containers.run_id}"}
    for container in containers.engine.containers.list(all=True, filters=label):
        container.remove(force=True, v=True)
    for network in containers.engine.networks.list(filters=label):
        networks.remove_network(containers.engine, str(network.id))


def patient_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_module, engine_container, networks):
        monkeypatch.setattr(module, "REMOVAL_SECONDS", 0.5)
    monkeypatch.setattr(engine_container, "_LOG_SECONDS", 0.2)


@pytest.mark.docker
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_by_tcp_it_is_as_by_its_socket(containers: ContainerWorld, kind: str) -> None:
    proxy = EngineProxy()
    client = Engine(connect({"DOCKER_HOST": proxy.address}))
    world = replace(containers, engine=client, networks=Networks(client, containers.run_id), _started=[], _cells=[])
    try:
        cell = world.cell(world.start(name="svc", **KINDS[kind]))
        if cell.place.database is not None:
            cell.fixture("CREATE TABLE kept (id int); INSERT INTO kept VALUES (7)")
            assert cell.query("SELECT id FROM kept").rows == ((7,),)
        assert world.containers(kind="service")
    finally:
        world.close()
        client.close()
        proxy.close()
    assert containers.left() == {"containers": [], "networks": []}


@pytest.mark.docker
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_engine_that_goes_away_is_said_and_holds_nothing_up(
    far: ContainerWorld, proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch, kind: str, silent: bool
) -> None:
    service = far.start(name="svc", **KINDS[kind])
    cell = far.cell(service)
    patient_no_more(monkeypatch)
    if silent:
        far.engine.api.timeout = 1
        proxy.silence()
    else:
        proxy.close()
    with pytest.raises(ServiceError) as failed:
        far.portal.call(service.attach(cell.scope).__aenter__)
    assert "the container engine does not answer" in failed.value.message
    assert "docker info" in failed.value.help

    async def end() -> None:
        await service.stop()
        await far.networks.close_all()

    began = time.monotonic()
    cell.leave()
    far.portal.call(end)
    assert time.monotonic() - began < 15
    with pytest.raises(ServiceError, match=r"network .* can't be removed: the container engine d"):
        cell.close()
    if kind == "container":
        [log] = far.logs().values()
        assert "could not be had: logs: the container engine d" in log


@pytest.mark.docker
def test_an_engine_that_goes_away_while_a_service_starts_is_said(far: ContainerWorld, proxy: EngineProxy) -> None:
    service = far.start(name="web", image=BASE, command=["sh", "-c", NOTHING], wait_for="sleep 3000")
    with ThreadPoolExecutor(1) as others:
        cell = others.submit(far.cell, service)
        while not far.containers(service="web"):
            time.sleep(0.05)
        proxy.close()
        with pytest.raises(ServiceError, match="the container engine does not answer"):
            cell.result(timeout=60)


@pytest.mark.parametrize("words", ["write /var/lib/docker/tmp/x: no space left on device", "Disk quota exceeded"])
def test_a_full_disk_of_the_engine_is_said(words: str) -> None:
    def refuse() -> None:
        raise Refused(500, words)

    with pytest.raises(ServiceError) as failed:
        ask_here(refuse, "service db can't be started")
    assert failed.value.message == f"service db can't be started: the engine's disk is full ({words})"
    assert "docker system df" in failed.value.help


def test_a_call_within_a_time_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        with library_errors():
            raise ConnectionResetError(104, "Connection reset by peer")

    async def run() -> None:
        assert await ask_within(lambda: 7, "sum", 60) == 7
        with pytest.raises(ServiceError, match=r"removal: the container engine does not answer .*reset"):
            await ask_within(fail, "removal", 60)

    anyio.run(run)
