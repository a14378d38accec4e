"""A real mcp_mock with one cell attached, and clients for it: the official one, and plain requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from support.mocks import scope_in
from support.places import attached

from keystone_action.evidence.model import RecordedCall
from keystone_action.services.http_mock.server import MockServer
from keystone_action.services.mcp_mock.service import McpMock
from keystone_action.services.service import CellScope, Place
from keystone_action.spec.models.services import McpMockService

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
ORDER = {
    "name": "get_order",
    "description": "The state of an order.",
    "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    "template": "order {{ arguments.id }} is paid",
}


def mcp_model(**fields: Any) -> McpMockService:
    """A service `shop`, as the loader makes it."""
    return McpMockService.model_validate({"name": "shop", "type": "mcp_mock", "tools": [ORDER], **fields})


@dataclass
class RunningMcp:
    """An mcp_mock as one cell has it."""

    server: MockServer
    place: Place
    scope: CellScope

    @property
    def url(self) -> str:
        return self.place.for_agent.url

    def calls(self) -> Sequence[RecordedCall]:
        assert self.place.calls is not None
        return self.place.calls.calls()

    def audit(self) -> list[dict[str, Any]]:
        self.place.settle()
        return [json.loads(line) for line in self.scope.audit_log.path.read_text().splitlines()]

    def post(self, body: bytes | str, url: str = "") -> httpx.Response:
        return httpx.post(url or self.url, content=body, headers=HEADERS, timeout=60)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One message of an older client, which says no version."""
        found: dict[str, Any] = self.post(request_of(method, **params)).json()
        return found

    def call(self, tool: str, arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)


def request_of(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["result"]["content"][0]["text"])


@contextmanager
def running_mcp(
    directory: Path, definition: McpMockService | None = None, *, server: MockServer | None = None, **fields: Any
) -> Iterator[RunningMcp]:
    """fields: of the service. server: another one's, which goes on."""
    own = server or MockServer()
    service = McpMock(definition or mcp_model(**fields), own)
    scope = scope_in(directory, shared=directory / "task")
    try:
        asyncio.run(service.start())
        with attached(service, scope) as place:
            yield RunningMcp(own, place, scope)
        assert own.defects == []
    finally:
        if server is None:
            own.stop()


@asynccontextmanager
async def official_client(place: Place, way: str) -> AsyncIterator[Any]:
    """way: `http` or `stdio`."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    address = place.for_agent
    transport: Any = address.url if way == "http" else stdio_client(StdioServerParameters(command=address.command))
    async with Client(transport) as client:
        yield client
