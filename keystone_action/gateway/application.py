"""The gateway of one cell as an ASGI application: says which requests pass, and writes each into the ledger."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import Asked, Exchange
from keystone_action.gateway.faults import fault_of_answer
from keystone_action.gateway.ledger import Ledger, Refusal
from keystone_action.gateway.registry import SHOWN, ApiRoute, problem_of_query, provider_for, route_of
from keystone_action.gateway.relay import AnswerSource, Lost, ProviderRelay, failure_of, shapes_of
from keystone_action.gateway.request import AgentReply, AgentRequest, Bodies, Receive, Scope, Send
from keystone_action.gateway.request_body import (
    bodies_of,
    body_digest,
    other_models,
    parsed_body,
    upstreams_named,
    with_usage,
)
from keystone_action.gateway.upstreams import Upstream, UpstreamClient

AT_ONCE = 32
"""Requests of a cell under way; only these can exceed a limit."""
AFTER_LEAVING_SECONDS = 60.0
"""For the rest of an answer whose client has left: it is billed all the same."""
SILENCE_SECONDS = 60.0
"""A client that leaves a provider which said nothing for so long did not fail."""
TARGET_LIMIT = 8 << 10
"""Characters of a path and a query."""
_VISIBLE = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What one cell's gateway needs to know."""

    key: str = field(repr=False)
    """The worthless key that the agent has."""
    upstreams: Mapping[str, Upstream]
    """By the name that a path begins with."""
    ledger: Ledger
    deny_tools_of_provider: bool = False
    """Whether `provider_tools` is `deny`."""
    missing_key: Mapping[str, str] = field(default_factory=dict)
    """What to say where a provider has no key, by its name."""
    admits: Callable[[str], bool] = lambda _peer: True
    """Whether a client at this address may ask."""
    on_spent: Callable[[], None] = lambda: None
    """Called when a limit was reached, so that the agent ends."""
    on_hopeless: Callable[[], None] = lambda: None
    """Called when an upstream was given up."""
    patience: float = AFTER_LEAVING_SECONDS
    """Seconds to wait for the rest of an answer whose client has left."""
    look_through: Callable[[str, bytes], None] | None = None
    """Gets the path with its query, and the body, of each request with this cell's key. It is called in several
    threads."""
    source: Callable[[AnswerSource], AnswerSource] = lambda providers: providers
    """Makes the source of answers out of the one that asks providers."""


class Application:
    """The gateway of one cell. client: returns the client that asks providers."""

    def __init__(self, settings: GatewaySettings, client: Callable[[], UpstreamClient], bodies: Bodies) -> None:
        self._settings, self._ledger, self._bodies = settings, settings.ledger, bodies
        self._slots = asyncio.Semaphore(AT_ONCE)
        keys = [upstream.key for upstream in settings.upstreams.values()]
        self._source = settings.source(ProviderRelay(client, shapes_of(keys, settings.key)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        reply = AgentReply(send)
        try:
            await self._answer(scope, receive, reply)
        except Exception as error:  # noqa: BLE001 - our own defect, which the thread keeps for this cell
            reply.is_cut = True
            told = {"message": "the gateway", "exception": RuntimeError(_place(error))}
            asyncio.get_running_loop().call_exception_handler(told)
            await reply.json(500, {"error": {"message": "the gateway is broken"}})

    async def _answer(self, scope: Scope, receive: Receive, reply: AgentReply) -> None:
        if not self._settings.admits((scope.get("client") or ("",))[0]):
            await reply.json(403, {"error": {"message": "this gateway is another cell's"}})
            return
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        name, _, rest = path.lstrip("/").partition("/")
        upstream = self._settings.upstreams.get(name)
        if method in {"GET", "HEAD"} and (path == "/" or (upstream is not None and rest == "")):
            await reply.json(200, {"gateway": "keystone"})
            return
        if upstream is None:
            known = ", ".join(f"/{one}" for one in self._settings.upstreams)
            await reply.json(404, {"error": {"message": f"there is nothing at {path[:200]}; there is {known}"}})
            return
        try:
            await self._handle(AgentRequest(scope, receive, upstream, f"/{rest}"), reply)
        except Refusal as refusal:
            if refusal.spent:
                self._settings.on_spent()
            await reply.json(refusal.status, provider_for(upstream.api).refusal(refusal.status, refusal.sentence))

    async def _handle(self, request: AgentRequest, reply: AgentReply) -> None:
        """Raises Refusal."""
        route = self._route(request)
        # Before the body is read: bodies that wait for a slot would fill our memory.
        async with self._slots, self._bodies.place_for(request) as shrink:
            body = await request.body() if request.method == "POST" else None
            shrink(len(body or b""))
            if (look := self._settings.look_through) is not None:
                await self._bodies.read(len(body or b""), partial(look, request.target, body or b""))
            if body is not None and route.counted is not None:
                counted = partial(_read, route.counted, request.path, body)
                self._allowed((await self._bodies.read(len(body), counted))[0])
            if route.provider is None or body is None:
                await self._pass_without_reading(request, route, body, reply)
                return
            reader = partial(_read, route.provider, request.path, body)
            asked, sent, added = await self._bodies.read(len(body), reader)
            asked = self._allowed(asked)
            copy = AnswerCopy(route.provider, without_usage=added, keeps_document=self._source.keeps_documents)
            exchange = self._ledger.open(request.upstream.api, request.path, asked, body, copy.so_far)
            del body, reader
            await self._exchange(request, route, exchange, copy, sent, reply)

    def _route(self, request: AgentRequest) -> ApiRoute:
        """Raises Refusal."""
        upstream = request.upstream
        if request.header(b"upgrade").lower() == "websocket":
            raise Refusal(426, "this gateway speaks HTTP only, no WebSockets")
        given = request.given_keys()
        if not any(hmac.compare_digest(key.encode(), self._settings.key.encode()) for key in given):
            self._ledger.refuse(f"{upstream.name}: a request with {'another' if given else 'no'} key")
            raise Refusal(401, "this key is not this cell's; the gateway's stands in its environment")
        if len(request.path) + len(request.query) > TARGET_LIMIT:
            raise Refusal(414, f"a path and its query may have {TARGET_LIMIT:,} characters")
        route = route_of(upstream.api, request.method, request.path)
        if route is None:
            shown = SHOWN[upstream.api]
            raise Refusal(404, f"there is no {request.method} {request.path[:200]} here; there is {shown}")
        if problem := problem_of_query(upstream.api, request.query):
            raise Refusal(400, problem)
        why = self._settings.missing_key.get(upstream.name, "")
        if not why and not _VISIBLE.fullmatch(upstream.key):
            why = f"the key of {upstream.name} has characters that can't stand in a header"
        if why:
            self._ledger.missing_key = self._ledger.missing_key or why
            raise Refusal(401, why)
        return route

    def _allowed(self, asked: Asked) -> Asked:
        """Raises Refusal."""
        if asked.background:
            raise Refusal(400, "background: true is not let through: nobody would see what it came to")
        if asked.upstreams:
            raise Refusal(400, f"fields that name another upstream are not let through: {', '.join(asked.upstreams)}")
        if asked.run_by_provider and self._settings.deny_tools_of_provider:
            tools = ", ".join(asked.run_by_provider)
            raise Refusal(400, f"tools that the provider runs are not let through (provider_tools: deny): {tools}")
        return asked

    async def _pass_without_reading(
        self, request: AgentRequest, route: ApiRoute, body: bytes | None, reply: AgentReply
    ) -> None:
        """A request that costs nothing: counting tokens, lists of models."""
        if body is not None:
            self._ledger.count_side_request()
        try:
            async with self._while_wanted(request, reply, 0):
                await self._source.pass_on(request, route, body, reply)
            await reply.end()
        except Lost as lost:
            raise _bad_gateway(lost) from None
        except TimeoutError:
            return

    async def _exchange(
        self,
        request: AgentRequest,
        route: ApiRoute,
        exchange: Exchange,
        copy: AnswerCopy,
        body: bytes,
        reply: AgentReply,
    ) -> None:
        """A request to a model, from its first byte to the last of its answer. It gets into the ledger however it ends,
        also when the client leaves or the server is stopped."""
        started = reply.heard = time.monotonic()
        failure, status, is_billed, fault = "", None, False, None
        try:
            async with self._while_wanted(request, reply, self._settings.patience):
                status = await self._source.pass_on(request, route, body, reply, copy)
            failure = failure_of(status, copy)
            fault = fault_of_answer(request.upstream, status, copy.error()) if status >= 400 else None
            if status in (401, 403) and self._ledger.takes_key(exchange.api):
                fault = None
        except Refusal as refusal:
            status = refusal.status
            raise
        except Lost as lost:
            failure, fault = lost.why, lost.fault
            raise _bad_gateway(lost) from None
        except TimeoutError:
            # The client left, and the rest of its answer did not come in time. Had it waited long enough?
            is_billed = reply.silence >= SILENCE_SECONDS
            failure = f"no answer after {reply.silence:.0f} s" if is_billed else ""
        finally:
            answer = copy.answer() if copy.is_answer else None
            if answer is not None and reply.is_gone and not reply.was_seen:
                by_provider = tuple(call for call in answer.calls if call.by_provider)
                # Nobody could act on the rest.
                answer = replace(answer, text="", thought="", calls=by_provider, unreadable=False, is_unsure=False)
            seconds = time.monotonic() - started
            status = status or reply.status or None
            exchange.fault = fault
            self._ledger.close(
                exchange, status=status, answer=answer, failure=failure, seconds=seconds, is_billed=is_billed
            )
            self._judge(request.upstream.name, exchange, started)
        # Only now: the next request of this client finds this one counted.
        await reply.end()

    def _judge(self, name: str, exchange: Exchange, began: float) -> None:
        """Give up an upstream that is of no use, so that the agent ends."""
        faults = self._ledger.faults
        if exchange.fault is None and exchange.failure and exchange.status is None:
            return  # it broke off: that says nothing

        def look() -> None:
            faults.look(name)
            if faults.hopeless:
                self._settings.on_hopeless()

        if faults.add(name, exchange.fault, began):
            asyncio.get_running_loop().call_later(faults.seconds, look)
        look()

    @asynccontextmanager
    async def _while_wanted(self, request: AgentRequest, reply: AgentReply, patience: float) -> AsyncIterator[None]:
        """Raises TimeoutError in its block so many seconds after the client has left."""
        loop = asyncio.get_running_loop()

        async def watch() -> None:
            await request.left()
            reply.leave()
            limit.reschedule(loop.time() + patience)

        async with asyncio.timeout(None) as limit:
            watching = loop.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()


def _read(provider: ModelApi, path: str, body: bytes) -> tuple[Asked, bytes, bool]:
    """What a body asks for, the body to send, and whether we asked for usage in it. Raises Refusal."""
    parsed = parsed_body(body)
    asked = provider.asked(parsed, path)
    inner = [provider.asked(one, path) for one in bodies_of(parsed)[1:]]
    ran = [name for one in inner for name in one.run_by_provider]
    asked = replace(
        asked,
        background=asked.background or any(one.background for one in inner),
        other_models=other_models(parsed, asked.model),
        upstreams=upstreams_named(parsed),
        digest=body_digest(parsed, body),
        run_by_provider=tuple(dict.fromkeys((*asked.run_by_provider, *ran))),
    )
    if provider.title.endswith("Chat Completions") and asked.streams:
        return asked, *with_usage(body, parsed)
    return asked, body, False


def _bad_gateway(lost: Lost) -> Refusal:
    return Refusal(502, f"the provider's answer did not come: {lost.why}")


def _place(error: Exception) -> str:
    """Where an error of ours came from. Its text is left out, since it may hold a header with a key."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}" + "".join(f" at {Path(one.filename).name}:{one.lineno}" for one in last)
