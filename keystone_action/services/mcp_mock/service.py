"""The service kind `mcp_mock`: a port for each cell, served by the run's one `MockServer`, and the cell's own token in
the path of its URL."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import importlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from keystone_action.errors import OutputError, ServiceError
from keystone_action.evidence.audit import now
from keystone_action.evidence.calls import JournaledCalls, open_call_journal
from keystone_action.evidence.model import Address, RecordedCall
from keystone_action.services.http_mock.guarded import (
    RECORD_LIMIT,
    GuardedCell,
    GuardedMock,
    MockPlace,
    journal_path,
)
from keystone_action.services.http_mock.request import RawRequest
from keystone_action.services.http_mock.responses import MockReply, refusal
from keystone_action.services.http_mock.server import MOCK_SETTLE_SECONDS, MockServer
from keystone_action.services.mcp_mock.tools import ToolAnswer, ToolPlan
from keystone_action.services.service import CellScope, Place, ServiceKind, Surroundings
from keystone_action.spec.models.services import McpMockService
from keystone_action.system.shutdown import undoing

if TYPE_CHECKING:
    from keystone_action.services.mcp_mock.protocol import McpProtocol

WAITING_BYTES = 64 << 20
"""Bytes of the requests of one cell that wait for their answers at the same time."""
_RELAY = Path(__file__).with_name("relay.sh")


class McpCell(GuardedCell):
    """Answers calls, and records them. protocol: set before it listens."""

    protocol: McpProtocol

    def __init__(self, definition: McpMockService, plans: dict[str, ToolPlan], scope: CellScope) -> None:
        """Raises OSError when its journal can't be made."""
        self.journal_path = journal_path(scope, definition.name, "calls")
        super().__init__(definition.name, scope, open_call_journal(self.journal_path) if definition.record else None)
        self.token = secrets.token_urlsafe(24)
        self._plans = plans
        self._used = dict.fromkeys(plans, 0)
        self._threads = anyio.CapacityLimiter(2)
        self._waiting: set[asyncio.Task[MockReply]] = set()
        self._waiting_bytes = 0
        self._record_size = 0

    def path(self, name: str = "mcp") -> str:
        """Of its endpoint, or of the relay's (`stdio`)."""
        return f"/{self.token}/{name}"

    def address(self, host: str) -> Address:
        """See GuardedCell."""
        plain = super().address(host)
        return replace(plain, url=plain.url + self.path())

    def respond(self, request: RawRequest) -> MockReply | asyncio.Future[MockReply]:
        """A request without the cell's token is refused, and does not count as a call."""
        target = request.target.partition("?")[0].encode("latin-1")
        relayed = hmac.compare_digest(target, self.path("stdio").encode())
        if not relayed and not hmac.compare_digest(target, self.path().encode()):
            return refusal(401, "this is not the URL of the cell's own MCP server")
        if request.refusal is not None:
            return refusal(*request.refusal)
        size = len(request.body)
        if self._waiting_bytes + size > WAITING_BYTES:
            return refusal(503, "the requests that are open at the same time hold too much memory")
        self._waiting_bytes += size
        task = asyncio.get_running_loop().create_task(self._answer(request, relayed))
        self._waiting.add(task)

        def over(done: asyncio.Task[MockReply]) -> None:
            self._waiting.discard(done)
            self._waiting_bytes -= size

        task.add_done_callback(over)
        return task

    async def _answer(self, request: RawRequest, relayed: bool) -> MockReply:
        try:
            return await self.protocol.reply(request, is_relayed=relayed)
        except Exception as error:  # noqa: BLE001 - one client must not end what serves all mocks
            self.failure = f"a request could not be answered: {type(error).__name__}: {error}"
            return refusal(500, self.failure)

    async def idle(self) -> None:
        """Returns when no request is under way."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def call(self, name: str, arguments: Any) -> ToolAnswer:
        """See CallTool. A call that can't be recorded is not answered."""
        plan = self._plans.get(name)
        if plan is None:
            problem = f"Unknown tool: {name[:200]}"
            self._record(name, arguments, ToolAnswer(problem, is_error=True))
            raise LookupError(problem)
        misfit = await anyio.to_thread.run_sync(plan.misfit, arguments, limiter=self._threads)
        if misfit:
            answer = ToolAnswer(f"Input validation error: {misfit}", is_error=True)
        else:
            used, self._used[name] = self._used[name], self._used[name] + 1
            answer = await anyio.to_thread.run_sync(plan.plan(used).render, arguments, limiter=self._threads)
        return self._record(name, arguments, answer)

    def refuse(self, name: str, arguments: Any, why: str) -> None:
        """See RefuseCall."""
        self._record(name, arguments, ToolAnswer(why, is_error=True))

    def _record(self, tool: str, arguments: Any, answer: ToolAnswer) -> ToolAnswer:
        # Nothing of an answer that is not sent is evidence.
        text = answer.text if answer.fault is None else ""
        is_error = answer.is_error or answer.fault is not None
        recorded = RecordedCall(self.name, tool, arguments, text, is_error, now())
        if self._record_size > RECORD_LIMIT:
            return self._unrecorded(f"more than {RECORD_LIMIT >> 30} GiB of calls were sent")
        try:
            if self.journal is not None:
                self._record_size += self.journal.append(recorded)
            self._record_size += self.scope.audit_log.mcp_call(recorded)
        except OSError as error:
            return self._unrecorded(error.strerror or str(error))
        return answer

    def _unrecorded(self, why: str) -> ToolAnswer:
        self.failure = f"a call could not be recorded: {why}"
        return ToolAnswer(f"keystone mock: {self.failure}", is_error=True)


class McpMock(GuardedMock[McpMockService, McpCell], ServiceKind[McpMockService]):
    """A `RunningService` for one mcp_mock of a spec."""

    def __init__(self, model: McpMockService, server: MockServer | None = None) -> None:
        """Raises UsageError that names the tool."""
        super().__init__(model, server)
        self._plans = {tool.name: ToolPlan(tool, model.name) for tool in model.tools}

    @classmethod
    def build(cls, definition: McpMockService, surroundings: Surroundings) -> McpMock:
        """See ServiceKind."""
        return cls(definition, surroundings.mocks)

    async def start(self) -> None:
        """As that of a GuardedMock. What it needs is imported here, not in the loop that serves all mocks."""
        await anyio.to_thread.run_sync(_import_protocol)
        await super().start()

    def make_cell(self, scope: CellScope) -> McpCell:
        """See GuardedMock."""
        return McpCell(self.model, self._plans, scope)

    def make_place(self, cell: McpCell, notices: tuple[str, ...]) -> Place:
        """See GuardedMock."""
        return _McpPlace(cell, self.server, notices, record=self.model.record)

    @asynccontextmanager
    async def attach(self, scope: CellScope) -> AsyncIterator[Place]:
        """As that of a GuardedMock, with the program for clients that start one where the cell has a sandbox."""
        async with super().attach(scope) as place:
            if scope.shared is not None:
                relay = _write_relay(scope.shared / f"{self.name}.mcp", place.for_agent)
                place.for_agent = replace(place.for_agent, command=str(relay))
            yield place

    @asynccontextmanager
    async def serving(self, cell: McpCell) -> AsyncIterator[None]:
        """See GuardedMock."""
        cell.protocol = await self.server.thread.call(_make_protocol(self.model, cell))
        async with undoing(partial(self._stop, cell)):
            yield

    async def _stop(self, cell: McpCell) -> None:
        if self.server.is_running:
            await self.server.thread.call(cell.protocol.stop())


def _import_protocol() -> None:
    importlib.import_module("keystone_action.services.mcp_mock.protocol")
    # It tells of what clients do wrong, at length; what is ours to tell, the record and `failure` have.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)


async def _make_protocol(definition: McpMockService, cell: McpCell) -> McpProtocol:
    from keystone_action.services.mcp_mock.protocol import McpProtocol

    protocol = McpProtocol(definition, cell.call, cell.refuse)
    await protocol.start()
    return protocol


def _write_relay(path: Path, address: Address) -> Path:
    """The program, which anybody may run. Raises ServiceError."""
    _, _, rest = address.url.partition("://")
    names = {
        "NAME": path.name.removesuffix(".mcp"),
        "HOST": address.host,
        "PORT": str(address.port),
        "PATH": "/" + rest.partition("/")[2].removesuffix("mcp") + "stdio",
    }
    text = _RELAY.read_text("utf-8")
    for name, value in names.items():
        text = text.replace(f"@{name}@", value)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        path.write_text(text, "utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise ServiceError(f"service {names['NAME']}: its program can't be written to {path}: {error}") from error
    return path


class _McpPlace(MockPlace):
    noun = "an mcp_mock"

    def __init__(self, cell: McpCell, server: MockServer, notices: tuple[str, ...], *, record: bool) -> None:
        super().__init__(cell, server, notices)
        self._mcp = cell
        if record:
            self.calls = JournaledCalls(cell.journal_path, self.require_whole_record)

    def settle(self) -> None:
        """See MockPlace; answers are awaited, too."""
        super().settle()
        loop = self.server.thread.loop
        if loop is None:
            return
        future = asyncio.run_coroutine_threadsafe(self._mcp.idle(), loop)
        try:
            future.result(MOCK_SETTLE_SECONDS)
        except concurrent.futures.TimeoutError:
            future.cancel()
            self._mcp.endless = True
            raise OutputError(f"the record of {self.name} is incomplete: a call was not answered in time") from None
