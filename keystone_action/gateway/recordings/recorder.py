"""A source that asks the provider, and keeps what was asked and answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from keystone_action.errors import HarnessError
from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.conversation import Reply, Request
from keystone_action.gateway.exchange import Tokens
from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.recordings.lines import count_messages
from keystone_action.gateway.recordings.names import ids_in
from keystone_action.gateway.recordings.recording import LINES_LIMIT, MESSAGES_LIMIT, SIZE_LIMIT, Entry
from keystone_action.gateway.recordings.requests import KnownRequest, Requests
from keystone_action.gateway.relay import Source, failure_of
from keystone_action.gateway.routes import Route

_END_SECONDS = 5.0
"""For the end of an answer that its client has read already: its ids are known once it has come."""


class Recorder:
    """Of one cell. relay: asks the provider. problem: why what was kept is not all; empty when it is."""

    keeps_documents = True

    def __init__(self, relay: Source, requests: Requests) -> None:
        self._relay, self._requests = relay, requests
        self._entries: dict[int, Entry] = {}
        self._size = self._messages = 0
        self._under_way: dict[AnswerCopy, asyncio.Event] = {}
        self.problem = ""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """In the order in which the requests came."""
        return tuple(entry for _, entry in sorted(self._entries.items()))

    async def pass_on(
        self, request: Request, route: Route, body: bytes | None, reply: Reply, copy: AnswerCopy | None = None
    ) -> int:
        """See Source."""
        if route.provider is None or body is None or copy is None:
            return await self._relay.pass_on(request, route, body, reply, copy)
        if self.problem:  # the cell is an error already, and what it asks from now on would only cost
            raise Refusal(400, "this cell can't be recorded any more", spent=True)
        await self._ended_answers()
        try:
            known = await self._requests.know(request.upstream.api, route.provider, request.path, body)
        except HarnessError as error:
            self.problem = self.problem or error.sentences
            raise Refusal(400, "this request can't be recorded", spent=True) from None
        over, started = self._under_way.setdefault(copy, asyncio.Event()), time.monotonic()
        try:
            status = await self._relay.pass_on(request, route, body, reply, copy)
            if not failure_of(status, copy):
                self._keep(known, status, copy, time.monotonic() - started)
            return status
        finally:
            del self._under_way[copy]
            over.set()

    async def _ended_answers(self) -> None:
        """Waits for answers that have ended for their clients and not yet for us: their ids come back at once."""
        ended = [over for copy, over in self._under_way.items() if copy.so_far().finished]
        if ended:
            await asyncio.wait([asyncio.ensure_future(over.wait()) for over in ended], timeout=_END_SECONDS)

    def _keep(self, known: KnownRequest, status: int, copy: AnswerCopy, seconds: float) -> None:
        document = copy.document() if copy.is_answer else copy.error()
        if not isinstance(document, dict):
            what = "an answer could not be put together" if copy.is_answer else "a refusal is not JSON"
            self.problem = self.problem or f"request {known.number}: {what}, so there is nothing to replay"
            return
        names = self._requests.names
        try:
            names.number(ids_in(document))
            answer = names.named(document)
        except HarnessError as error:
            self.problem = self.problem or f"request {known.number}: {error.sentences}"
            return
        turn = known.conversation.answered
        self._requests.answered(known, document)
        self._count(known, document)
        self._entries[known.number] = Entry(
            api=known.api,
            model=known.asked.model,
            key=known.key,
            whole_key=known.whole_key,
            conversation=known.conversation.number,
            turn=turn,
            with_tools=known.conversation.with_tools,
            request=known.normal,
            status=status,
            answer=answer,
            usage=_usage(copy.answer().tokens if copy.is_answer else Tokens()),
            seconds=round(seconds, 3),
        )

    def _count(self, known: KnownRequest, document: Mapping[str, Any]) -> None:
        """Bounds our memory, and what is written to what can be read; `NormalForms` bounds what requests hold."""
        self._size += len(str(document))
        self._messages += count_messages(known.normal)
        if self.problem:
            pass
        elif self._size > 2 * SIZE_LIMIT:
            self.problem = f"there is more than a recording may hold ({SIZE_LIMIT >> 20} MiB)"
        elif len(self._entries) >= LINES_LIMIT:
            self.problem = f"there are more requests than a recording may hold ({LINES_LIMIT:,})"
        elif self._messages > MESSAGES_LIMIT:
            self.problem = f"its requests repeat more than a recording may hold ({MESSAGES_LIMIT:,} messages in all)"
        if self.problem:
            self._entries.clear()


def _usage(tokens: Tokens) -> dict[str, int]:
    found = {name: getattr(tokens, name) for name in ("uncached", "cache_read", "cache_write", "output")}
    return {name: count for name, count in found.items() if count is not None}
