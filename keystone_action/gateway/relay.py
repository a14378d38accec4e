"""Where the answers to an agent come from: a provider, which is asked what the agent asked, and whose answer is passed
on as it comes, while a copy is read; or a recording (`recordings/replay.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from keystone_action.gateway.answer_copy import READ_LIMIT, AnswerCopy, TooLong
from keystone_action.gateway.conversation import Reply, Request
from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.providers.faults import Fault, fault_of_error, page_instead, reason_of_account
from keystone_action.gateway.routes import Route
from keystone_action.gateway.secret_bytes import SecretBytes
from keystone_action.gateway.upstreams import Client, answer_headers

_PROBLEM_LIMIT = 300
"""Characters of a provider's own words that are shown as a failure."""
_DECODED = {"", "identity", "gzip", "deflate"}
"""What an answer may be encoded with. We ask for none of it; some providers do it all the same."""


class Lost(Exception):  # noqa: N818 - an outcome
    """No answer came. why: in words without an address or a key. fault: of the upstream, None for what may pass."""

    def __init__(self, why: str, fault: Fault | None = None) -> None:
        super().__init__(why)
        self.why, self.fault = why, fault


class Source(Protocol):
    """Lives in the gateways' loop."""

    @property
    def keeps_documents(self) -> bool:
        """Whether it wants answers put together as their API has them in one piece (`AnswerCopy.document`)."""

    async def pass_on(
        self, request: Request, route: Route, body: bytes | None, reply: Reply, copy: AnswerCopy | None = None
    ) -> int:
        """Answer a request, while a copy is read; the answer's status. copy: None for what costs nothing. Raises Lost
        where no answer came, Refusal where the request can't be passed on. An answer that breaks off makes the reply
        break off."""


class Relay:
    """A source: the providers. client: gives what asks them. secrets: real keys, each with what an agent gets
    in its place."""

    keeps_documents = False

    def __init__(self, client: Callable[[], Client], secrets: Mapping[bytes, bytes]) -> None:
        self._client, self._secrets = client, secrets

    async def pass_on(
        self, request: Request, route: Route, body: bytes | None, reply: Reply, copy: AnswerCopy | None = None
    ) -> int:
        """See Source."""
        import httpx

        upstream = request.upstream
        url = upstream.url(route.below, request.query)
        try:
            headers = upstream.headers(request.headers)
            async with self._client().stream(request.method, url, headers, body) as response:
                is_page = response.headers.get("content-type", "").lower().lstrip().startswith("text/html")
                if copy is not None and is_page and 200 <= response.status_code < 300:
                    raise Lost("it answered with a page of HTML", page_instead(upstream, response.status_code))
                await self._pass_answer(response, reply, copy)
                return response.status_code
        except (httpx.LocalProtocolError, httpx.InvalidURL):
            raise Refusal(400, "this request can't be passed on: its address or a header is not valid") from None
        except (httpx.HTTPError, httpx.StreamError, TooLong) as error:
            why = _why(error)
            if not reply.started:
                raise Lost(why, fault_of_error(upstream, error)) from None
            reply.is_cut = True
            if copy is not None:
                copy.lost = why
            return reply.status

    async def _pass_answer(self, response: Any, reply: Reply, copy: AnswerCopy | None) -> None:
        status = response.status_code
        if 300 <= status < 400:
            raise Lost("it answered with a redirect, which is not followed")
        if not 200 <= status < 600:
            raise Lost(f"it answered with the status {status}")
        if response.headers.get("content-encoding", "").strip().lower() not in _DECODED:
            raise Lost("it answered in an encoding that was not asked for")
        masked = SecretBytes(self._secrets)
        headers = answer_headers(response.headers.raw)
        if copy is not None:  # before anything waits for the client: from here on it counts
            copy.start(status, response.headers.get("content-type", ""))
        await reply.start(status, [(masked.replace(name), masked.replace(value)) for name, value in headers])
        async for piece in response.aiter_bytes():
            content = masked.feed(piece)
            await reply.body(copy.feed(content) if copy is not None else content)
        rest = masked.end()
        await reply.body((copy.feed(rest) + copy.end()) if copy is not None else rest)


def failure_of(status: int, copy: AnswerCopy) -> str:
    """Why an answer is not one that counts; empty when it is one, or when the request was at fault."""
    if status >= 400:
        why = reason_of_account(copy.error())
        return f"{status} {why}".strip() if why or status in {401, 402, 403, 429} or status >= 500 else ""
    if copy.lost:
        return copy.lost
    if not copy.is_answer:
        return ""
    answer = copy.answer()
    if answer.problem:
        return " ".join(answer.problem.split())[:_PROBLEM_LIMIT]
    return "" if answer.finished else "its answer broke off"


def _why(error: Exception) -> str:
    import httpx

    if isinstance(error, TooLong):
        return f"its answer is longer than {READ_LIMIT:,} bytes"
    if isinstance(error, httpx.DecodingError):
        return "its answer could not be decoded"
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError):
        return "it could not be reached"
    if isinstance(error, httpx.TimeoutException):
        return "it took too long"
    return "the connection was lost"
