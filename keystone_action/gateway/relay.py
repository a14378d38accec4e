"""Where the answers to an agent come from: a provider, whose answer is passed on as it comes, without our keys, while a
copy is read; or a recording (`recordings/replay.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from keystone_action.evidence.masking import MINIMUM
from keystone_action.gateway.answer_copy import READ_LIMIT, AnswerCopy, TooLong
from keystone_action.gateway.faults import Fault, fault_of_error, page_instead, reason_of_account
from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.registry import ApiRoute
from keystone_action.gateway.request import AgentReply, AgentRequest
from keystone_action.gateway.upstreams import UpstreamClient, answer_headers


class SecretBytes:
    """Replaces every secret in a stream of bytes. It holds back only what may be the beginning of one.

    secrets: each with what takes its place. Where several fit, the first one in the stream counts, and of those that
    begin at one place the longest, so the result does not depend on how the stream was split.
    """

    def __init__(self, secrets: Mapping[bytes, bytes]) -> None:
        self._instead = {secret: instead for secret, instead in secrets.items() if secret}
        longest_first = sorted(self._instead, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(secret) for secret in longest_first) or b"(?!)")
        self._longest = len(longest_first[0]) if longest_first else 0
        self._kept = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on by now."""
        return self._pass(self._kept + piece if self._kept else piece, is_last=False)

    def end(self) -> bytes:
        """What was held back: the stream is over."""
        return self._pass(self._kept, is_last=True)

    def replace(self, content: bytes) -> bytes:
        """The content without the secrets in it."""
        return self._pattern.sub(lambda found: self._instead[found.group()], content)

    def _pass(self, content: bytes, *, is_last: bool) -> bytes:
        end = len(content) if is_last else self._unclear(content, 0)
        passed, at = bytearray(), 0
        while (found := self._pattern.search(content, at)) and found.start() < end:
            passed += content[at : found.start()] + self._instead[found.group()]
            at = found.end()
            if at > end:
                end = self._unclear(content, at)
        passed += content[at:end]
        self._kept = content[end:]
        return bytes(passed)

    def _unclear(self, content: bytes, at: int) -> int:
        """Where the last bytes begin that may be the beginning of a secret; the end where there are none."""
        first = len(content)
        for secret in self._instead:
            place = content.find(secret[:1], max(at, len(content) - len(secret) + 1), first)
            while place >= 0:
                if secret.startswith(content[place:]):
                    first = place
                    break
                place = content.find(secret[:1], place + 1, first)
        return first


def shapes_of(keys: Iterable[str], instead: str) -> dict[bytes, bytes]:
    """Keys in the forms in which a provider may echo them, each with what takes its place. A key that is too short to
    be one is left out: it would spoil every answer."""
    shapes = {}
    for key in keys:
        if len(key) >= MINIMUM:
            escaped = json.dumps(key)[1:-1]
            for shape in (key, escaped, escaped.replace("/", "\\/"), quote(key, safe="")):
                shapes[shape.encode("utf-8", "replace")] = instead.encode()
    return shapes


_PROBLEM_LIMIT = 300
"""Characters of a provider's own words that are shown as a failure."""
_DECODED = {"", "identity", "gzip", "deflate"}
"""What an answer may be encoded with. We ask for none of it; some providers do it all the same."""


class Lost(Exception):  # noqa: N818 - an outcome
    """No answer came. why: in words, without an address or a key. fault: what makes the upstream useless; None where it
    may pass."""

    def __init__(self, why: str, fault: Fault | None = None) -> None:
        super().__init__(why)
        self.why, self.fault = why, fault


class AnswerSource(Protocol):
    """Where answers come from. It lives in the gateways' loop."""

    @property
    def keeps_documents(self) -> bool:
        """Whether it asks for `AnswerCopy.document`."""

    async def pass_on(
        self,
        request: AgentRequest,
        route: ApiRoute,
        body: bytes | None,
        reply: AgentReply,
        copy: AnswerCopy | None = None,
    ) -> int:
        """Answer a request, while a copy of the answer is read. Returns the status of the answer.

        copy: None for a request that costs nothing. Raises Lost where no answer came, and Refusal where the request
        can't be passed on. An answer that breaks off makes the reply break off.
        """


class ProviderRelay:
    """The source that asks providers. client: returns the client for that. secrets: real keys, each with what an agent
    gets in its place."""

    keeps_documents = False

    def __init__(self, client: Callable[[], UpstreamClient], secrets: Mapping[bytes, bytes]) -> None:
        self._client, self._secrets = client, secrets

    async def pass_on(
        self,
        request: AgentRequest,
        route: ApiRoute,
        body: bytes | None,
        reply: AgentReply,
        copy: AnswerCopy | None = None,
    ) -> int:
        """See AnswerSource."""
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

    async def _pass_answer(self, response: Any, reply: AgentReply, copy: AnswerCopy | None) -> None:
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
    """Why an answer does not count. Empty where it does, and where the request itself was at fault."""
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
