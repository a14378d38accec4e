"""The gateway of one cell as an ASGI application: lets requests through, passes answers on, reads a copy of both."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.gateway.answer_copy import AnswerCopy, with_usage
from keystone_action.gateway.conversation import Receive, Reply, Request, Scope, Send
from keystone_action.gateway.exchange import Asked, Provider
from keystone_action.gateway.ledger import Exchange, Ledger, Refusal
from keystone_action.gateway.routes import SHOWN, Route, provider_for, route_of
from keystone_action.gateway.secret_bytes import SecretBytes
from keystone_action.gateway.upstreams import Client, Upstream, answer_headers

AT_ONCE = 32
"""Requests of a cell under way; only these can exceed a limit."""
_AFTER_LEAVING_SECONDS = 60.0
"""For the rest of an answer whose client has left: it is billed all the same."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one cell. key: the worthless one that its agent has. upstreams: by the name that stands first in a path.
    deny_tools_of_provider: `provider_tools: deny`. missing_key: by name, what to say where a provider has none. admits:
    says by its address who may ask. on_spent: called when a limit was reached, so that the agent ends."""

    key: str
    upstreams: Mapping[str, Upstream]
    ledger: Ledger
    deny_tools_of_provider: bool = False
    missing_key: Mapping[str, str] = field(default_factory=dict)
    admits: Callable[[str], bool] = lambda _peer: True
    on_spent: Callable[[], None] = lambda: None


class Application:
    """See the module. client: asks providers."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._settings, self._client = settings, client
        self._slots = asyncio.Semaphore(AT_ONCE)
        keys = {
            upstream.key.encode(): settings.key.encode() for upstream in settings.upstreams.values() if upstream.key
        }
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        reply = Reply(send)
        peer = (scope.get("client") or ("",))[0]
        if not self._settings.admits(peer):
            await reply.json(403, {"error": {"message": "this gateway is another cell's"}})
            return
        method, path = scope["method"], scope["raw_path"].decode("latin-1").partition("?")[0]
        name, _, rest = path.lstrip("/").partition("/")
        upstream = self._settings.upstreams.get(name)
        if method in {"GET", "HEAD"} and (path == "/" or (upstream is not None and rest == "")):
            await reply.json(200, {"gateway": "keystone"})
            return
        if upstream is None:
            known = ", ".join(f"/{one}" for one in self._settings.upstreams)
            await reply.json(404, {"error": {"message": f"there is nothing at {path[:200]}; there is {known}"}})
            return
        refuse = provider_for(upstream.api).refusal
        try:
            await self._handle(Request(scope, receive, upstream, f"/{rest}"), reply)
        except Refusal as refusal:
            if refusal.spent:
                self._settings.on_spent()
            await reply.json(refusal.status, refuse(refusal.status, refusal.sentence))

    async def _handle(self, request: Request, reply: Reply) -> None:
        """Raises Refusal."""
        upstream = request.upstream
        if request.header("upgrade").lower() == "websocket":
            raise Refusal(426, "this gateway speaks HTTP alone, no WebSockets")
        if not any(hmac.compare_digest(key.encode(), self._settings.key.encode()) for key in request.given_keys()):
            self._settings.ledger.refused.append(f"{upstream.name}: a request without this cell's key")
            raise Refusal(401, "this key is none of this cell's; the gateway's stands in its environment")
        route = route_of(upstream.api, request.method, request.path)
        if route is None:
            raise Refusal(
                404, f"there is no {request.method} {request.path[:200]} here; there is {SHOWN[upstream.api]}"
            )
        if why := self._settings.missing_key.get(upstream.name):
            raise Refusal(401, why)
        if request.method == "GET":
            await self._pass_on(request, route, None, reply)
            await reply.end()
            return
        body = await request.body()
        if route.provider is None:
            await self._pass_on(request, route, body, reply)
            await reply.end()
            return
        asked = self._read(request, route.provider, body)
        async with self._slots:
            exchange = self._settings.ledger.open(upstream.api, request.path, asked, body)
            await self._exchange(request, route, exchange, body, reply)

    def _read(self, request: Request, provider: Provider, body: bytes) -> Asked:
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise Refusal(400, "the body is no JSON object")
        asked = provider.asked(parsed, request.path)
        if asked.background:
            raise Refusal(400, "background: true is not let through: nobody would see what it came to")
        if asked.run_by_provider and self._settings.deny_tools_of_provider:
            tools = ", ".join(asked.run_by_provider)
            raise Refusal(400, f"tools that the provider runs are not let through (provider_tools: deny): {tools}")
        return asked

    async def _exchange(self, request: Request, route: Route, exchange: Exchange, body: bytes, reply: Reply) -> None:
        """One request of a model, from its first byte to the last of its answer."""
        assert route.provider is not None
        adds_usage = route.provider.title.endswith("Chat Completions") and exchange.asked.streams
        sent, added = with_usage(body) if adds_usage else (body, False)
        copy = AnswerCopy(route.provider, without_usage=added)
        started = time.monotonic()
        failure, status = "", None
        try:
            status = await self._pass_on(request, route, sent, reply, copy)
            failure = _failure(status, copy)
        except _Lost as lost:
            failure = lost.why
            raise Refusal(502, f"the provider's answer did not come: {lost.why}") from None
        finally:
            answer = copy.answer() if copy.is_answer else None
            seconds = time.monotonic() - started
            self._settings.ledger.close(exchange, status=status, answer=answer, failure=failure, seconds=seconds)
        # Only now: the next request of this client finds this one counted.
        await reply.end()

    async def _pass_on(
        self, request: Request, route: Route, body: bytes | None, reply: Reply, copy: AnswerCopy | None = None
    ) -> int:
        """The provider's status. Raises _Lost where no answer came."""
        import httpx

        upstream = request.upstream
        url = upstream.url(route.below, request.query)
        masked = SecretBytes(self._keys)
        try:
            async with self._client.stream(request.method, url, upstream.headers(request.headers), body) as response:
                status = response.status_code
                if 300 <= status < 400:
                    raise _Lost("it answered with a redirect, which is not followed")
                headers = [
                    (name, masked.replace(value.encode("latin-1")).decode("latin-1"))
                    for name, value in answer_headers(response.headers.multi_items())
                ]
                await reply.start(status, headers)
                if copy is not None:
                    copy.start(status, response.headers.get("content-type", ""))
                await self._stream(response, masked, reply, copy)
                return status
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            if copy is not None:
                copy.broken = True
            if reply.started:
                reply.is_cut = True
                return reply.status
            raise _Lost(_why(error)) from None

    async def _stream(self, response: Any, masked: SecretBytes, reply: Reply, copy: AnswerCopy | None) -> None:
        async for piece in _pieces(response, reply):
            content = masked.feed(piece)
            await reply.body(copy.feed(content) if copy is not None else content)
        rest = masked.end()
        await reply.body((copy.feed(rest) + copy.end()) if copy is not None else rest)


async def _pieces(response: Any, reply: Reply) -> AsyncIterator[bytes]:
    """What comes; once the client has left, for a while only."""
    left: float | None = None
    async for piece in response.aiter_raw():
        yield piece
        if reply.is_gone:
            left = left or time.monotonic()
            if time.monotonic() - left > _AFTER_LEAVING_SECONDS:
                return


class _Lost(Exception):  # noqa: N818 - an outcome
    """No answer came. why: in words without an address or a key."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _why(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return "it could not be reached"
    if isinstance(error, httpx.TimeoutException):
        return "it took too long"
    return "the connection was lost"


def _failure(status: int, copy: AnswerCopy) -> str:
    """Why an answer is none that counts; empty when it is one, or when the request was at fault."""
    if status in {401, 403, 429} or status >= 500:
        return str(status)
    if copy.broken:
        return "the connection was lost"
    return copy.answer().problem if copy.is_answer else ""
