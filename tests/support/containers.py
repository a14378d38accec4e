"""Services on the real Docker engine: a run of ours with networks, cells, and containers that play agents in them.

Fixtures; a folder's `conftest.py` imports those that its tests use.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from anyio.from_thread import BlockingPortal
from pydantic import TypeAdapter
from support.images import BASE
from support.places import attached

from keystone_action.engine.networks import ContainerNetwork, Networks
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.masking import Masker
from keystone_action.evidence.model import QueryResult
from keystone_action.services.container.host import make_host
from keystone_action.services.http_mock.server import MockServer
from keystone_action.services.service import CellScope, Place, RunningService, Surroundings, build_service
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.services import Service

if TYPE_CHECKING:
    from docker import DockerClient

SECRET = "hunter22"
NOTHING = "while :; do sleep 3600; done"

_definitions: TypeAdapter[Service] = TypeAdapter(Service)


@dataclass
class ServedCell:
    """One cell's view of one service."""

    world: ContainerWorld
    service: RunningService
    network: ContainerNetwork
    scope: CellScope
    place: Place
    closing: ExitStack
    """What ends with the cell."""
    placing: ExitStack
    """What ends with its place alone."""

    def fixture(self, script: str) -> None:
        self.world.portal.call(self.place.run_sql, SqlScript("sql", text=script))
        self.seal()

    def query(self, sql: str) -> QueryResult:
        assert self.place.database is not None
        return self.place.database.query(sql, timeout=10)

    def settle(self) -> None:
        self.place.settle()

    def agent(self, script: str, image: str = BASE) -> tuple[int, str]:
        """What a shell script in the cell's network prints, and how it ends."""
        return self.world.run(self.network, script, image=image)

    def seal(self) -> None:
        self.world.portal.call(self.place.seal)

    def leave(self) -> None:
        """The service is over for this cell; its network is still there."""
        self.placing.close()

    def close(self) -> None:
        self.closing.close()


@dataclass
class ContainerWorld:
    """What a run has."""

    engine: DockerClient
    portal: BlockingPortal
    directory: Path
    networks: Networks
    mocks: MockServer
    run_id: str
    image: Callable[[str], str]
    _started: list[RunningService] = field(default_factory=list)
    _cells: list[ServedCell] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def need(self, *images: str) -> None:
        """Have these stand-ins; skip (or fail, in CI) when they can't be had."""
        for one in images:
            self.image(one)

    def build(self, *, watches_writes: bool = False, **fields: Any) -> RunningService:
        """A service that was not started; it is stopped with this."""
        definition = _definitions.validate_python({"name": "svc", **fields})
        host = make_host(
            client=self.engine,
            run_id=self.run_id,
            networks=self.networks,
            logs=self.directory / "service-logs",
            mask=Masker({"TOKEN": SECRET}).text,
        )
        # Nothing here is a process of ours, so nothing spawns one.
        nobody = cast("Any", None)
        around = Surroundings(nobody, self.directory, self.mocks, host, watches_writes=watches_writes)
        service = build_service(definition, around)
        self._started.append(service)
        return service

    def start(self, **fields: Any) -> RunningService:
        """A started service."""
        self.need(*(str(fields[key]) for key in ("image",) if key in fields))
        service = self.build(**fields)
        self.portal.call(service.start)
        return service

    def cell(
        self,
        service: RunningService,
        *,
        exclusive: bool = False,
        network: ContainerNetwork | None = None,
        internal: bool = False,
        watches_writes: bool = False,
    ) -> ServedCell:
        """A cell with this service attached, in a network of its own unless one is given."""
        cell_id = f"cell-{next(self._numbers)}"
        closing = ExitStack()
        if network is None:
            opened = self.portal.wrap_async_context_manager(self.networks.cell(cell_id, internal=internal))
            network = closing.enter_context(opened)
        private = self.directory / cell_id
        private.mkdir()
        scope = CellScope(
            cell_id,
            private,
            private,
            AuditLog(private / "audit.jsonl"),
            exclusive,
            network=network,
            in_network=True,
            watches_writes=watches_writes,
        )
        try:
            placing = closing.enter_context(ExitStack())
            place = placing.enter_context(attached(service, scope, self.portal))
        except BaseException:
            closing.close()
            raise
        made = ServedCell(self, service, network, scope, place, closing, placing)
        self._cells.append(made)
        return made

    def run(
        self, network: ContainerNetwork, script: str, *, image: str = BASE, environment: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """A container in a network, as an agent's: exit code and output of a shell script."""
        self.need(image)
        container = self.engine.containers.create(
            image,
            ["-c", script],
            entrypoint=["/bin/sh"],
            environment=dict(environment or {}),
            network=network.name,
            extra_hosts=dict(network.hosts),
            dns=list(network.dns) or None,
            labels={"keystone.run": self.run_id, "keystone.kind": "sandbox"},
            cap_drop=["ALL"],
        )
        try:
            container.start()
            ended = container.wait(timeout=120)
            return int(ended["StatusCode"]), container.logs().decode("utf-8", "replace")
        finally:
            container.remove(force=True, v=True)

    def left(self) -> dict[str, list[str]]:
        """Everything on the engine that is labelled with this run."""
        label = {"label": f"keystone.run={self.run_id}"}
        containers = self.engine.containers.list(all=True, filters=label)
        return {
            "containers": [str(one.name) for one in containers],
            "networks": [str(one.name) for one in self.engine.networks.list(filters=label)],
        }

    def logs(self) -> dict[str, str]:
        """What was kept of services that have ended, by file name."""
        return {path.name: path.read_text() for path in sorted((self.directory / "service-logs").glob("*"))}

    def containers(self, **labels: str) -> list[Mapping[str, Any]]:
        """What the engine says of this run's containers with these further labels (`keystone.…`)."""
        wanted = [f"keystone.run={self.run_id}", *(f"keystone.{name}={value}" for name, value in labels.items())]
        # One that is being made is listed before it can be looked at.
        found = self.engine.containers.list(all=True, ignore_removed=True, filters={"label": wanted})
        return [one.attrs for one in found]

    def close(self) -> None:
        """End it all; what is left then is a defect."""
        for cell in self._cells:
            cell.close()
        for service in self._started:
            self.portal.call(service.stop)
        self.portal.call(self.networks.close_all)
        self.mocks.stop()


def _world(
    engine: DockerClient, portal: BlockingPortal, directory: Path, image: Callable[[str], str]
) -> Iterator[ContainerWorld]:
    run_id = f"test-{secrets.token_hex(5)}"
    mocks = MockServer()
    mocks.start()
    made = ContainerWorld(engine, portal, directory, Networks(engine, run_id), mocks, run_id, image)
    made.need(BASE)
    try:
        yield made
    finally:
        made.close()
    assert made.left() == {"containers": [], "networks": []}


@pytest.fixture
def containers(
    engine: DockerClient, portal: BlockingPortal, tmp_path: Path, image: Callable[[str], str]
) -> Iterator[ContainerWorld]:
    """A run of one test."""
    yield from _world(engine, portal, tmp_path, image)


def _lasting(scope: Literal["module", "session"]) -> Any:
    @pytest.fixture(scope=scope)
    def world(
        engine: DockerClient,
        portal: BlockingPortal,
        tmp_path_factory: pytest.TempPathFactory,
        image: Callable[[str], str],
    ) -> Iterator[ContainerWorld]:
        yield from _world(engine, portal, tmp_path_factory.mktemp("containers"), image)

    return world


shared_containers = _lasting("module")
"""A run that the tests of a module share, for servers that take long to start."""
session_containers = _lasting("session")
"""A run that the tests of several modules share which need the same servers."""
