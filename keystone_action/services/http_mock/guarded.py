"""What all mocks share: a port of the one `MockServer` for each cell, who may speak with it, and its record."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from keystone_action.errors import OutputError, ServiceError
from keystone_action.evidence.audit import now
from keystone_action.evidence.journal import RecordJournal
from keystone_action.evidence.model import Address
from keystone_action.services.http_mock.request import RawRequest
from keystone_action.services.http_mock.responses import MockReply
from keystone_action.services.http_mock.server import MOCK_HOST, MOCK_SETTLE_SECONDS, ListenerKey, MockServer
from keystone_action.services.service import CellScope, Place
from keystone_action.system.shutdown import undoing

OPEN_BODIES = 256 << 20
"""Bytes of bodies that the open requests of one mock and cell may hold in memory together."""
RECORD_LIMIT = 2 << 30
"""Bytes of record above which requests are refused, and the record counts as incomplete."""
SHARED_USER = "cells run as our own user here, so the port of a mock doesn't tell which cell calls it"


@dataclass
class StrangerCounts:
    """Connections that brought no request of this cell."""

    strangers: int = 0
    """Of another user or network."""
    unknown: int = 0
    """Gone before their user could be found out."""
    not_http: int = 0
    """Without a request line."""


class GuardedCell:
    """One mock as one cell has it; runs in the mock server's loop. A kind of mock adds `respond`.

    port is set once it listens. failure: why the record is incomplete, else None. endless: a client that did not stop
    to send was waited for in vain.
    """

    def __init__(self, name: str, scope: CellScope, journal: RecordJournal[Any] | None) -> None:
        self.name = name
        self.scope = scope
        self.port = 0
        self.counts = StrangerCounts()
        self.failure: str | None = None
        self.endless = False
        self.journal = journal
        self.listeners: list[ListenerKey] = []
        """Where it is reached by the names of other hosts, besides its port."""
        self._buffer_size = 0
        self._user = os.geteuid()

    def respond(self, request: RawRequest) -> MockReply | asyncio.Future[MockReply]:
        """Record and answer."""
        raise NotImplementedError

    def admits(self, owner: int | None) -> bool:
        """By the user of the peer's socket: the cell's, or our own (checks on the host).

        A peer that has closed its socket already has no user any more. It is believed only where no other cell can be
        meant: this is the only one, or users don't tell cells apart at all.
        """
        allowed = self.scope.allowed_users
        if owner is None:
            if allowed is None or self.scope.exclusive:
                return True
            self.counts.unknown += 1
            return False
        if owner == self._user or (allowed is not None and owner in allowed):
            return True
        self.counts.strangers += 1
        return False

    def admits_address(self, address: str) -> bool:
        """By the address of a container: one of the cell's own network, that no other cell uses."""
        network = self.scope.network
        if network is not None and network.admits(address):
            return True
        self.counts.strangers += 1
        return False

    @property
    def host(self) -> str:
        """By what name or address the cell's agent knows this mock."""
        return self.name if self.scope.in_network else MOCK_HOST

    def address(self, host: str) -> Address:
        """Where it is reached by this name of ours."""
        return Address(host=host, port=self.port, url=f"http://{host}:{self.port}")

    def reserve(self, size: int) -> bool:
        """Whether that many more bytes may be held; a negative size gives back."""
        self._buffer_size += size
        return self._buffer_size <= OPEN_BODIES

    def not_http(self) -> None:
        """Counted, never recorded: there is no method and no path that could be."""
        self.counts.not_http += 1

    def refused_handshake(self, error: ssl.SSLError) -> None:
        """See GuardedApplication: its own port speaks no TLS."""

    def check_complete(self) -> None:
        """Raises OutputError when something that was sent is not in the record."""
        if self.failure is not None:
            raise OutputError(f"the record of {self.name} is incomplete: {self.failure}")

    def close(self) -> None:
        """Say in the audit log what was turned away, and close the journal."""
        counts = self.counts
        if counts.strangers or counts.unknown or counts.not_http:
            details = {"service": self.name, **vars(counts)}
            try:
                self.scope.audit_log.write("connections_refused", details, ts=now())
            except OSError as error:
                self.failure = f"the audit log could not be written: {error.strerror}"
        if self.journal is not None:
            self.journal.close()


class MockDefinition(Protocol):
    """What a mock needs of its model."""

    @property
    def name(self) -> str: ...
    @property
    def ready_timeout(self) -> float: ...


Definition = TypeVar("Definition", bound=MockDefinition)
Cell = TypeVar("Cell", bound=GuardedCell)


class GuardedMock(Generic[Definition, Cell]):
    """A `RunningService` for one mock of a spec. A kind of mock adds `make_cell` and `make_place`."""

    def __init__(self, model: Definition, server: MockServer | None = None) -> None:
        """server: the run's; None = one of its own, which ends with this."""
        self.model = model
        self.server = server if server is not None else MockServer()
        self._owns_server = server is None

    def make_cell(self, scope: CellScope) -> Cell:
        """The mock as one cell has it. Raises OSError where its journal can't be made."""
        raise NotImplementedError

    def make_place(self, cell: Cell, notices: tuple[str, ...]) -> Place:
        """What the cell is handed, once it listens."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """As the spec has it."""
        return self.model.name

    async def start(self) -> None:
        """Starts the server when it doesn't run yet, and has it answer a request. Raises ServiceError."""
        self.server.start()
        try:
            async with asyncio.timeout(self.model.ready_timeout) as limit:
                await self.server.probe()
        except OSError as error:
            why = f" within {self.model.ready_timeout:g} s" if limit.expired() else f": {error!r}"
            raise ServiceError(f"service {self.name}: the mock server did not answer{why}") from error

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """A port of its own, fresh counters, an empty journal. The journal stays readable. Raises ServiceError."""
        try:
            cell = self.make_cell(scope)
        except OSError as error:
            raise ServiceError(f"service {self.name}: its record can't be written: {error}") from error
        try:
            async with self.serving(cell):
                cell.port = await self._listen(cell, scope)
                async with undoing(partial(self.server.close, cell.port)):
                    yield self.make_place(cell, self._notices(scope))
        finally:
            cell.close()

    @asynccontextmanager
    async def serving(self, cell: Cell) -> AsyncIterator[None]:  # noqa: ARG002
        """Around the time in which a cell listens, for what a kind needs meanwhile."""
        yield

    @staticmethod
    def _notices(scope: CellScope) -> tuple[str, ...]:
        return (SHARED_USER,) if scope.allowed_users is None and not scope.in_network else ()

    async def _listen(self, cell: Cell, scope: CellScope) -> int:
        """In a cell's network too, under this mock's name: containers that are made in it from now on know it."""
        network = scope.network
        if network is None:
            return await self.server.listen(cell)
        try:
            port = await self.server.listen(cell, network.host_address)
        except ServiceError as error:
            raise ServiceError(f"service {self.name}: {error.message}", help=error.help) from error
        network.hosts[self.name] = network.host_address
        return port

    async def stop(self) -> None:
        """A server that others share goes on until `MockServer.stop`. Never raises."""
        if self._owns_server:
            self.server.stop()


class MockPlace(Place):
    """The port of one cell, and the record of what came in there."""

    noun = "a mock"

    def __init__(self, cell: GuardedCell, server: MockServer, notices: tuple[str, ...]) -> None:
        """A kind of mock sets `requests` or `calls`, where it records."""
        self.cell, self.server = cell, server
        super().__init__(cell.name, cell.address(cell.host), cell.address(MOCK_HOST), notices=notices)

    def settle(self) -> None:
        """Blocks until all that clients have sent is in journal and audit log. Raises OutputError when they don't stop
        to send."""
        cell = self.cell
        if cell.endless or not all(self.server.settle(key) for key in (cell.port, *cell.listeners)):
            cell.endless = True
            raise OutputError(
                f"the record of {self.name} is incomplete: a client still sent after {MOCK_SETTLE_SECONDS:g} s in which"
                " it was waited for"
            )

    def require_whole_record(self) -> None:
        """See Place."""
        self.settle()
        self.cell.check_complete()
        self.require_unbroken()

    def require_unbroken(self) -> None:
        """See Place: of the one server that answers for all mocks of a run."""
        if self.server.defects:
            raise ServiceError(f"the mock server failed while serving: {self.server.defects[0]}")


def journal_path(scope: CellScope, name: str, what: str) -> Path:
    """Where the record of a mock is; nothing is there yet. Raises OSError."""
    path = scope.private / f"{name}.{what}.jsonl"
    path.unlink(missing_ok=True)
    return path
