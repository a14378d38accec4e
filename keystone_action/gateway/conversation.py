"""A request of an agent and the reply to it, over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.upstreams import Upstream

BODY_LIMIT = 32 << 20
"""Bytes of a request."""
_SLOW_SECONDS = 60.0
"""Without a byte of a request that is being sent."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent sent. path: below the provider's name."""

    scope: Scope
    receive: Receive
    upstream: Upstream
    path: str

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def query(self) -> str:
        return str(self.scope["query_string"].decode("latin-1"))

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.scope["headers"]]

    def header(self, name: str) -> str:
        return next((value for one, value in self.headers if one.lower() == name), "")

    def given_keys(self) -> Sequence[str]:
        """Wherever an API may have its key."""
        bearer = self.header("authorization")
        in_query = [value for name, value in parse_qsl(self.query) if name == "key"]
        scheme, _, token = bearer.partition(" ")
        return [
            *filter(
                None,
                [
                    token.strip() if scheme.lower() == "bearer" else "",
                    self.header("x-api-key"),
                    self.header("x-goog-api-key"),
                ],
            ),
            *in_query,
        ]

    async def body(self) -> bytes:
        """Raises Refusal."""
        content = bytearray()
        while True:
            try:
                async with asyncio.timeout(_SLOW_SECONDS):
                    message = await self.receive()
            except TimeoutError:
                raise Refusal(408, "the request did not come to its end") from None
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the client left")
            content += message.get("body", b"")
            if len(content) > BODY_LIMIT:
                raise Refusal(413, f"a request may have {BODY_LIMIT:,} bytes")
            if not message.get("more_body"):
                return bytes(content)


class Reply:
    """The answer to an agent. is_gone: it hung up. is_cut: the provider's ended in the middle, and so does ours."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.is_gone = self.is_cut = False
        self.status = 0

    async def json(self, status: int, document: Mapping[str, Any]) -> None:
        if self.started:
            return
        await self.start(status, [("content-type", "application/json")])
        await self.body(json.dumps(document).encode())
        await self.end()

    async def start(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.started, self.status = True, status
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._sent({"type": "http.response.start", "status": status, "headers": encoded})

    async def body(self, piece: bytes) -> None:
        if piece:
            await self._sent({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        if self.is_cut:
            return
        await self._sent({"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, message: dict[str, Any]) -> None:
        if self.is_gone:
            return
        try:
            await self._send(message)
        except OSError:
            self.is_gone = True
