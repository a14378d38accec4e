"""The service kind `http_mock`: a port for each cell, served by the run's one `MockServer`.

The routes of a spec are compiled once. Each cell has its own state of them, its own record, and nobody else's
connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.evidence.audit import now
from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.requests import JournalLog, RequestJournal
from keystone_action.services.http_mock.guarded import (
    RECORD_LIMIT,
    GuardedCell,
    GuardedMock,
    MockPlace,
    journal_path,
)
from keystone_action.services.http_mock.request import MockRequest, RawRequest
from keystone_action.services.http_mock.responses import MockReply, ResponsePlan, json_reply, refusal
from keystone_action.services.http_mock.server import MockServer
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.spec.globs import compile_path
from keystone_action.spec.models.services import HttpMockService

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


FULL_RECORD = 1 << 30
"""Bytes of record above which only the first KIB of a body is kept, as `cut` says."""
KIB = 1 << 10


class MockCell(GuardedCell):
    """Answers by routes, and records."""

    def __init__(self, name: str, table: RouteTable, scope: CellScope, *, record: bool) -> None:
        """Raises OSError when its journal can't be made."""
        self.journal_path = journal_path(scope, name, "requests")
        super().__init__(name, scope, RequestJournal(self.journal_path) if record else None)
        self._state = RouteState(table)
        self._record_size = 0

    def respond(self, raw: RawRequest, origin: str = "") -> MockReply:
        """Record, then answer. A request that can't be recorded is not answered by its route. origin: scheme and host
        that it was sent to; empty for this mock's own."""
        request = MockRequest(raw)
        reply = self._state.answer(request) if raw.refusal is None else refusal(*raw.refusal)
        if self._record_size > RECORD_LIMIT:
            self.failure = f"more than {RECORD_LIMIT >> 30} GiB of requests were sent; the last ones are not recorded"
            return refusal(507, self.failure)
        try:
            self._record(self._record_of(request, reply, origin or f"http://{self.host}:{self.port}"))
        except OSError as error:
            self.failure = f"a request could not be recorded: {error.strerror}"
            return refusal(507, self.failure)
        return reply

    def _record(self, recorded: RecordedRequest) -> None:
        if self.journal is not None:
            self._record_size += self.journal.append(recorded)
        self._record_size += self.scope.audit_log.http_call(recorded)

    def _record_of(self, request: MockRequest, reply: MockReply, origin: str) -> RecordedRequest:
        raw = request.raw
        sent = reply.text if reply.has_body and request.method != "HEAD" else ""
        if self._record_size > FULL_RECORD:
            request.cut_body(KIB)
            sent = sent if len(sent) <= KIB else f"{sent[:KIB]}\n[… {len(sent) - KIB:,} characters cut …]"
        return RecordedRequest(
            service=self.name,
            method=request.method,
            path=request.path,
            url=f"{origin}{raw.target}" if raw.target.startswith("/") else raw.target,
            query=request.query,
            headers=request.headers,
            body=request.body,
            body_bytes=raw.body_bytes,
            cut=raw.cut,
            status=reply.status,
            response_body=sent,
            ts=now(),
        )


class HttpMock(GuardedMock[HttpMockService, MockCell], ServiceKind[HttpMockService]):
    """A `RunningService` for one http_mock of a spec."""

    def __init__(self, model: HttpMockService, server: MockServer | None = None, directory: Path | None = None) -> None:
        """server: as a GuardedMock has it. directory: the spec's [the current one]; files of responses are read from
        there, now. Raises UsageError that names the route."""
        super().__init__(model, server)
        self._table = RouteTable(model, directory if directory is not None else Path())

    @classmethod
    def build(cls, definition: HttpMockService, surroundings: Surroundings) -> HttpMock:
        """See ServiceKind."""
        return cls(definition, surroundings.mocks, surroundings.directory)

    def make_cell(self, scope: CellScope) -> MockCell:
        """See GuardedMock."""
        return MockCell(self.name, self._table, scope, record=self.model.record)

    def make_place(self, cell: MockCell, notices: tuple[str, ...]) -> Place:
        """See GuardedMock."""
        place = HttpMockPlace(cell, self.server, notices)
        if self.model.record:
            place.requests = JournalLog(cell.journal_path, place.require_whole_record)
        return place


class HttpMockPlace(MockPlace):
    """See MockPlace."""

    cell: MockCell
    noun = "an http_mock"
