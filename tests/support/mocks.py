"""A real mock service with one cell attached, for clients of a test."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.places import attached

from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import RecordedRequest
from keystone_action.services.http_mock.server import MOCK_HOST, MockServer
from keystone_action.services.http_mock.service import HttpMock
from keystone_action.services.service import CellScope, Place
from keystone_action.spec.models.services import HttpMockService


@dataclass
class RunningMock:
    """A mock as one cell has it."""

    service: HttpMock
    server: MockServer
    place: Place
    scope: CellScope

    @property
    def url(self) -> str:
        return self.place.for_agent.url

    @property
    def port(self) -> int:
        assert self.place.for_agent.port is not None
        return self.place.for_agent.port

    def requests(self) -> Sequence[RecordedRequest]:
        assert self.place.requests is not None
        return self.place.requests.requests()

    def audit(self) -> list[dict[str, Any]]:
        self.settle()
        return [json.loads(line) for line in self.scope.audit_log.path.read_text().splitlines()]

    def settle(self) -> None:
        self.place.settle()

    def connect(self) -> socket.socket:
        connection = socket.create_connection((MOCK_HOST, self.port))
        connection.settimeout(30)
        return connection

    def exchange(self, *pieces: bytes) -> bytes:
        """Send the pieces, half-close, and read to the end."""
        with self.connect() as connection:
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side has closed."""
    received = bytearray()
    while piece := connection.recv(65536):
        received += piece
    return bytes(received)


def read_response(connection: socket.socket) -> bytes:
    """One response with Content-Length, from a connection that stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1)
        if not piece:
            return received
        received += piece
    head = received.decode("latin-1").lower()
    missing = int(head.split("content-length:")[1].split("\r\n")[0]) if "content-length:" in head else 0
    while missing:
        piece = connection.recv(missing)
        received += piece
        missing -= len(piece)
    return received


def model(**fields: Any) -> HttpMockService:
    """A service `api` that records, as the loader makes it."""
    return HttpMockService.model_validate({"name": "api", "type": "http_mock", "record": True, **fields})


def scope_in(directory: Path, **fields: Any) -> CellScope:
    """The scope of a cell whose files are in this directory."""
    private = directory / "private"
    values: dict[str, Any] = {"exclusive": True, "allowed_users": set(), **fields}
    return CellScope("cell-1", private, directory / "workspace", AuditLog(directory / "audit.jsonl"), **values)


@contextmanager
def running_mock(
    directory: Path, definition: HttpMockService | None = None, *, scope: CellScope | None = None, **fields: Any
) -> Iterator[RunningMock]:
    """fields: of the service; a definition or scope replaces what is made of them and of the directory."""
    server = MockServer()
    service = HttpMock(definition or model(**fields), server, directory)
    where = scope or scope_in(directory)
    try:
        asyncio.run(service.start())
        with attached(service, where) as place:
            yield RunningMock(service, server, place, where)
        assert server.defects == []
    finally:
        server.stop()
