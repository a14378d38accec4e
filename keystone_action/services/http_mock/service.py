"""The service kind `http_mock`: a port for each cell, served by the run's one `MockServer`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from keystone_action.errors import OutputError, ServiceError
from keystone_action.evidence.model import Address
from keystone_action.evidence.requests import JournalLog
from keystone_action.services.base import CellScope, Place, ServiceKind, Surroundings
from keystone_action.services.http_mock.cell import MockCell
from keystone_action.services.http_mock.routes import RouteTable
from keystone_action.services.http_mock.server import HOST, SETTLE_SECONDS, MockServer
from keystone_action.spec.models.services import HttpMockService
from keystone_action.system.shutdown import undoing

SHARED_USER = "cells run as our own user here, so the port of a mock doesn't tell which cell calls it"


class HttpMock(ServiceKind[HttpMockService]):
    """A `RunningService` for one http_mock of a spec."""

    def __init__(self, model: HttpMockService, server: MockServer | None = None, directory: Path | None = None) -> None:
        """server: the run's; None = one of its own, which ends with this. directory: the spec's [the current one];
        files of responses are read from there, now. Raises UsageError that names the route."""
        self._model = model
        self._server = server if server is not None else MockServer()
        self._owns_server = server is None
        self._table = RouteTable(model, directory if directory is not None else Path())

    @classmethod
    def build(cls, definition: HttpMockService, surroundings: Surroundings) -> HttpMock:
        """See ServiceKind."""
        return cls(definition, surroundings.mocks, surroundings.directory)

    @property
    def name(self) -> str:
        """As the spec has it."""
        return self._model.name

    async def start(self) -> None:
        """Starts the server when it doesn't run yet, and has it answer a request. Raises ServiceError."""
        self._server.start()
        try:
            async with asyncio.timeout(self._model.ready_timeout) as limit:
                await self._server.probe()
        except OSError as error:
            why = f" within {self._model.ready_timeout:g} s" if limit.expired() else f": {error!r}"
            raise ServiceError(f"service {self.name}: the mock server did not answer{why}") from error

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """A port of its own, fresh counters, an empty journal. The journal stays readable. Raises ServiceError."""
        try:
            cell = MockCell(self.name, self._table, scope, record=self._model.record)
        except OSError as error:
            raise ServiceError(f"service {self.name}: its record can't be written: {error}") from error
        try:
            cell.port = await self._listen(cell, scope)
            async with undoing(partial(self._server.close, cell.port)):
                yield MockPlace(self.name, cell, self._server, self._notices(scope), record=self._model.record)
        finally:
            cell.close()

    @staticmethod
    def _notices(scope: CellScope) -> tuple[str, ...]:
        return (SHARED_USER,) if scope.allowed_users is None and not scope.in_network else ()

    async def _listen(self, cell: MockCell, scope: CellScope) -> int:
        """In a cell's network too, under this mock's name: containers that are made in it from now on know it."""
        network = scope.network
        if network is None:
            return await self._server.listen(cell)
        try:
            port = await self._server.listen(cell, network.host_address)
        except ServiceError as error:
            raise ServiceError(f"service {self.name}: {error.message}", help=error.help) from error
        network.hosts[self.name] = network.host_address
        return port

    async def stop(self) -> None:
        """A server that others share goes on until `MockServer.stop`. Never raises."""
        if self._owns_server:
            self._server.stop()


class MockPlace(Place):
    """The port of one cell, and the record of what came in there."""

    noun = "an http_mock"

    def __init__(
        self, name: str, cell: MockCell, server: MockServer, notices: tuple[str, ...], *, record: bool
    ) -> None:
        self._cell, self._server = cell, server
        requests = JournalLog(cell.journal_path, self.require_whole_record) if record else None
        super().__init__(
            name, _address(cell.host, cell.port), _address(HOST, cell.port), requests=requests, notices=notices
        )

    def settle(self) -> None:
        """Blocks until all that clients have sent is in journal and audit log. Raises OutputError when they don't stop
        to send."""
        cell = self._cell
        if cell.endless or not self._server.settle(cell.port):
            cell.endless = True
            raise OutputError(
                f"the record of {self.name} is incomplete: a client still sent after {SETTLE_SECONDS:g} s in which it"
                " was waited for"
            )

    def require_whole_record(self) -> None:
        """See Place."""
        self.settle()
        self._cell.check_complete()
        self.require_unbroken()

    def require_unbroken(self) -> None:
        """See Place: of the one server that answers for all mocks of a run."""
        if self._server.defects:
            raise ServiceError(f"the mock server failed while serving: {self._server.defects[0]}")


def _address(host: str, port: int) -> Address:
    return Address(host=host, port=port, url=f"http://{host}:{port}")
