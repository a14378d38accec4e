"""The service kind `http_mock`: a port for each cell, served by the run's one `MockServer`.

The routes of a spec are compiled once. Each cell has its own state of them, its own record, and nobody else's
connections.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import OutputError, ServiceError, UsageError
from keystone_action.evidence.audit import now
from keystone_action.evidence.model import Address, RecordedRequest
from keystone_action.evidence.requests import JournalLog, RequestJournal
from keystone_action.services.http_mock.request import MockRequest, RawRequest
from keystone_action.services.http_mock.responses import MockReply, ResponsePlan, json_reply, refusal
from keystone_action.services.http_mock.server import MOCK_HOST, MOCK_SETTLE_SECONDS, MockServer
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.spec.globs import compile_path
from keystone_action.spec.models.services import HttpMockService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.spec.models.services import HttpMockService
    from keystone_action.spec.models.services import MockRoute as RouteModel


class CompiledRoute:
    """One route of a spec. A HEAD request is answered by a route for GET, too."""

    def __init__(self, model: RouteModel, directory: Path, where: str) -> None:
        """directory: the spec's. where: for messages. Raises UsageError."""
        try:
            self._pattern = compile_path(model.path)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error
        method = (model.method or "any").upper()
        self._methods = None if method in ("ANY", "*") else {method, "HEAD"} if method == "GET" else {method}
        self._headers = {name.lower(): value for name, value in model.match.headers.items()}
        self._query = dict(model.match.query)
        self._body = model.match.body
        self.times = model.times
        answers = model.sequence or [model]
        self.plans = [
            ResponsePlan(answer, directory, f"{where}, response {number}" if model.sequence else where)
            for number, answer in enumerate(answers, 1)
        ]

    def match(self, request: MockRequest) -> dict[str, str] | None:
        """The parameters of its path, or None when it is not for this request."""
        if self._methods is not None and request.method not in self._methods:
            return None
        parameters = self._pattern.match(request.path)
        if parameters is None or not self._matches_content(request):
            return None
        return parameters

    def _matches_content(self, request: MockRequest) -> bool:
        if any(request.query.get(name) != value for name, value in self._query.items()):
            return False
        if self._headers:
            sent = {name.lower(): value for name, value in request.headers.items()}
            for name, wanted in self._headers.items():
                found = sent.get(name)
                if wanted not in (found if isinstance(found, list) else [found]):
                    return False
        return self._body is None or self._body in request.body


class RouteTable:
    """All routes of a mock, compiled once; what one cell has used of them is in its `RouteState`."""

    def __init__(self, model: HttpMockService, directory: Path) -> None:
        """Raises UsageError that names the route."""
        self.routes = [
            CompiledRoute(route, directory, f"service {model.name}, route {number} ({route.path})")
            for number, route in enumerate(model.routes, 1)
        ]
        self.default = json_reply(model.default_status, {})


class RouteState:
    """The routes of a mock as one cell has used them: nothing of it is shared with another cell."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._uses = [0] * len(table.routes)

    def answer(self, request: MockRequest) -> MockReply:
        """The first route in declared order that matches and is not used up; else the default response."""
        for index, route in enumerate(self._table.routes):
            used = self._uses[index]
            if route.times is not None and used >= route.times:
                continue
            parameters = route.match(request)
            if parameters is None:
                continue
            self._uses[index] = used + 1
            plan = route.plans[min(used, len(route.plans) - 1)]
            if not plan.is_template:
                return plan.render(None)
            request.params = parameters
            return plan.render(request.for_template())
        return self._table.default


OPEN_BODIES = 256 << 20
"""Bytes of bodies that the open requests of one mock and cell may hold in memory together."""
FULL_RECORD = 1 << 30
"""Bytes of record above which only the first KIB of a body is kept, as `cut` says."""
RECORD_LIMIT = 2 << 30
"""Bytes of record above which requests are refused, and the record counts as incomplete."""
KIB = 1 << 10


@dataclass
class StrangerCounts:
    """Connections that brought no request of this cell."""

    strangers: int = 0
    """Of another user or network."""
    unknown: int = 0
    """Gone before their user could be found out."""
    not_http: int = 0
    """Without a request line."""


class MockCell:
    """Answers and records; runs in the mock server's loop.

    port is set once it listens. failure: why the record is incomplete, else None. endless: a client that did not stop
    to send was waited for in vain.
    """

    def __init__(self, name: str, table: RouteTable, scope: CellScope, *, record: bool) -> None:
        """Raises OSError when its journal can't be made."""
        self._name = name
        self._state = RouteState(table)
        self._scope = scope
        self.port = 0
        self.counts = StrangerCounts()
        self.failure: str | None = None
        self.endless = False
        self._buffer_size = 0
        self._user = os.geteuid()
        self.journal_path = scope.private / f"{name}.requests.jsonl"
        self.journal_path.unlink(missing_ok=True)
        self._audit = scope.audit_log
        self._journal = RequestJournal(self.journal_path) if record else None
        self._record_size = 0

    def admits(self, owner: int | None) -> bool:
        """By the user of the peer's socket: the cell's, or our own (checks on the host).

        A peer that has closed its socket already has no user any more. It is believed only where no other cell can be
        meant: this is the only one, or users don't tell cells apart at all.
        """
        allowed = self._scope.allowed_users
        if owner is None:
            if allowed is None or self._scope.exclusive:
                return True
            self.counts.unknown += 1
            return False
        if owner == self._user or (allowed is not None and owner in allowed):
            return True
        self.counts.strangers += 1
        return False

    def admits_address(self, address: str) -> bool:
        """By the address of a container: one of the cell's own network, that no other cell uses."""
        network = self._scope.network
        if network is not None and network.admits(address):
            return True
        self.counts.strangers += 1
        return False

    @property
    def host(self) -> str:
        """By what name or address the cell's agent knows this mock."""
        return self._name if self._scope.in_network else MOCK_HOST

    def reserve(self, size: int) -> bool:
        """Whether that many more bytes may be held; a negative size gives back."""
        self._buffer_size += size
        return self._buffer_size <= OPEN_BODIES

    def not_http(self) -> None:
        """Counted, never recorded: there is no method and no path that could be."""
        self.counts.not_http += 1

    def respond(self, raw: RawRequest) -> MockReply:
        """Record, then answer. A request that can't be recorded is not answered by its route."""
        request = MockRequest(raw)
        reply = self._state.answer(request) if raw.refusal is None else refusal(*raw.refusal)
        if self._record_size > RECORD_LIMIT:
            self.failure = f"more than {RECORD_LIMIT >> 30} GiB of requests were sent; the last ones are not recorded"
            return refusal(507, self.failure)
        try:
            self._record(self._record_of(request, reply))
        except OSError as error:
            self.failure = f"a request could not be recorded: {error.strerror}"
            return refusal(507, self.failure)
        return reply

    def _record(self, recorded: RecordedRequest) -> None:
        if self._journal is not None:
            self._record_size += self._journal.append(recorded)
        self._record_size += self._audit.http_call(recorded)

    def _record_of(self, request: MockRequest, reply: MockReply) -> RecordedRequest:
        raw = request.raw
        sent = reply.text if reply.has_body and request.method != "HEAD" else ""
        if self._record_size > FULL_RECORD:
            request.cut_body(KIB)
            sent = sent if len(sent) <= KIB else f"{sent[:KIB]}\n[… {len(sent) - KIB:,} characters cut …]"
        return RecordedRequest(
            service=self._name,
            method=request.method,
            path=request.path,
            url=f"http://{self.host}:{self.port}{raw.target}" if raw.target.startswith("/") else raw.target,
            query=request.query,
            headers=request.headers,
            body=request.body,
            body_bytes=raw.body_bytes,
            cut=raw.cut,
            status=reply.status,
            response_body=sent,
            ts=now(),
        )

    def check_complete(self) -> None:
        """Raises OutputError when something that was sent is not in the record."""
        if self.failure is not None:
            raise OutputError(f"the record of {self._name} is incomplete: {self.failure}")

    def close(self) -> None:
        """Say in the audit log what was turned away, and close the journal."""
        counts = self.counts
        if counts.strangers or counts.unknown or counts.not_http:
            details = {"service": self._name, **vars(counts)}
            try:
                self._audit.write("connections_refused", details, ts=now())
            except OSError as error:
                self.failure = f"the audit log could not be written: {error.strerror}"
        if self._journal is not None:
            self._journal.close()


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
            name, _address(cell.host, cell.port), _address(MOCK_HOST, cell.port), requests=requests, notices=notices
        )

    def settle(self) -> None:
        """Blocks until all that clients have sent is in journal and audit log. Raises OutputError when they don't stop
        to send."""
        cell = self._cell
        if cell.endless or not self._server.settle(cell.port):
            cell.endless = True
            raise OutputError(
                f"the record of {self.name} is incomplete: a client still sent after {MOCK_SETTLE_SECONDS:g} s in which"
                " it was waited for"
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
