"""An open gateway of one cell over real sockets, a scripted provider behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from support.process_world import eventually
from support.scripted_provider import Says, ScriptedProvider, provider

from keystone_action.gateway.application import GatewaySettings
from keystone_action.gateway.exchange import Exchange
from keystone_action.gateway.ledger import BudgetLimits, Ledger
from keystone_action.gateway.server import Gateways, OpenGateway
from keystone_action.gateway.upstreams import Upstream

REAL, WORTHLESS = "sk-real-key-of-ours-0001", "keystone-cell-key"
KEY = {"x-api-key": WORTHLESS}
ASK: dict[str, Any] = {"model": "claude-opus-4-5", "messages": [{"role": "user", "content": "do it"}]}
ANSWER: dict[str, Any] = {
    "type": "message",
    "model": "claude-opus-4-5",
    "content": [{"type": "text", "text": "done"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 2},
}
CHUNK = {"model": "gpt-5", "choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}
USAGE = {"model": "gpt-5", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}


STREAM: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": {"model": "claude-opus-4-5", "usage": {"input_tokens": 10}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)
"""The same answer as events."""


@dataclass
class World:
    """An open gateway of one cell."""

    url: str
    ledger: Ledger
    behind: ScriptedProvider
    spent: list[bool]
    gateways: Gateways
    opened: OpenGateway
    client: httpx.Client

    def ask(
        self, path: str = "/anthropic/v1/messages", body: Any = ASK, method: str = "POST", **more: Any
    ) -> httpx.Response:
        """One request with the cell's key."""
        more = {"headers": KEY, "json": body if method == "POST" else None, "timeout": 30, **more}
        return self.client.request(method, self.url + path, **more)

    def say(self, *lines: str, body: bytes = b"", end: bool = True) -> bytes:
        """Bytes to the gateway as they are, lines of a head and what follows; what comes back until it hangs up, or is
        silent for some seconds."""
        with socket.create_connection(("127.0.0.1", self.opened.port), timeout=3) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" * end + body)
            found = bytearray()
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while piece := connection.recv(65536):
                    found += piece
            return bytes(found)

    def settled(self) -> tuple[Exchange, ...]:
        """What was asked, once nothing is under way."""
        assert eventually(lambda: not self.ledger.under_way)
        return self.ledger.exchanges

    def close(self) -> None:
        """The gateway answers nobody any more."""
        asyncio.run(self.gateways.close(self.opened))


@contextmanager
def world(
    *answers: Says,
    limits: BudgetLimits | None = None,
    models: tuple[str, ...] = (),
    silent: float = 600,
    is_broken: bool = False,
    others: Mapping[str, Upstream] | None = None,
    **settings: Any,
) -> Iterator[World]:
    """answers: of the provider. models: `gateway.models`. silent: seconds that it may think. is_broken: defects are
    expected. others: providers besides. settings: of the cell."""
    ledger, gateways, spent = Ledger(limits, models=models), Gateways(silent=silent), []
    gateways.start()
    try:
        limits_of_client = httpx.Limits(max_connections=None)
        with provider(*answers) as behind, httpx.Client(verify=False, limits=limits_of_client) as client:
            upstreams = {
                "anthropic": Upstream("anthropic", "anthropic", behind.url, REAL),
                "openai": Upstream("openai", "openai", f"{behind.url}/v1", REAL),
                "gemini": Upstream("gemini", "gemini", behind.url, REAL),
                **(others or {}),
            }
            told = GatewaySettings(WORTHLESS, upstreams, ledger, on_spent=lambda: spent.append(True), **settings)
            opened = asyncio.run(gateways.open(told))
            yield World(f"http://127.0.0.1:{opened.port}", ledger, behind, spent, gateways, opened, client)
            assert is_broken == bool(opened.defects)
            assert gateways.defects == ()
    finally:
        gateways.stop()
