"""A source of answers that asks the provider, and keeps what was asked and answered.

A conversation continues when its messages extend those of an earlier request; else it is the next one with, or without,
tools (contract, 5.6 "Recordings", `turn`). Recorder and replay count by this one rule, so that the n-th request of each
gets the n-th answer. Clients ask for titles in the words of the task, so a request without tools never continues a
conversation with tools.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_action.errors import HarnessError
from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.api import ModelApi
from keystone_action.gateway.exchange import Asked, Tokens
from keystone_action.gateway.ledger import Refusal
from keystone_action.gateway.recordings.names import Names, ids_in
from keystone_action.gateway.recordings.recording import LINES_LIMIT, MESSAGES_LIMIT, SIZE_LIMIT, Entry, count_messages
from keystone_action.gateway.recordings.request_key import Keys, NormalForms, Sameness
from keystone_action.gateway.registry import ApiRoute
from keystone_action.gateway.relay import AnswerSource, failure_of
from keystone_action.gateway.request import SHORT, AgentReply, AgentRequest
from keystone_action.gateway.request_body import parsed_body


@dataclass(slots=True)
class Conversation:
    """A conversation of an agent with a model."""

    with_tools: bool
    """Whether its requests offer tools."""
    number: int
    """Counted from 0 among those with, or without, tools."""
    answered: int = 0
    """How many of its requests were answered."""


class Conversations:
    """The conversations of one cell, as its requests come."""

    def __init__(self) -> None:
        self._by_messages: dict[tuple[str, bool, bytes], Conversation] = {}
        self._by_answer: dict[str, Conversation] = {}
        self._begun: Counter[bool] = Counter()

    def of(self, api: str, messages: Sequence[Any], *, with_tools: bool, previous: str = "") -> Conversation:
        """The conversation that a request continues or begins. messages: in their normal form. previous: the id of the
        answer that the request says it continues, in an API whose requests send only what is new; else empty."""
        digests = list(_digests(messages))
        known = self._by_answer.get(previous) if previous else None
        earlier = (self._by_messages.get((api, with_tools, one)) for one in reversed(digests))
        found = known or next(filter(None, earlier), None)
        if found is None:
            found = Conversation(with_tools, self._begun[with_tools])
            self._begun[with_tools] += 1
        if digests:
            self._by_messages[api, with_tools, digests[-1]] = found
        return found

    def answered(self, conversation: Conversation, answer_id: str = "") -> None:
        """The last request of a conversation was answered. answer_id: a later request can continue the conversation by
        it."""
        conversation.answered += 1
        if answer_id:
            self._by_answer[answer_id] = conversation


def _digests(messages: Sequence[Any]) -> Iterator[bytes]:
    """The digests of the first message, of the first two, and so on."""
    so_far = hashlib.sha256()
    for message in messages:
        so_far.update(json.dumps(message, sort_keys=True).encode())
        so_far.update(b"\n")
        yield so_far.digest()


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A request as the recorder and the replay see it."""

    number: int
    """From 1, in the order in which the requests of a cell came."""
    api: str
    body: Mapping[str, Any]
    """As it came."""
    asked: Asked
    normal: Mapping[str, Any]
    """The body in its normal form."""
    key: str
    """With `gateway.ignore` applied."""
    whole_key: str
    """Without `gateway.ignore`."""
    conversation: Conversation
    turn: int
    """Which answered request of its conversation it would be, from 0."""


class Requests:
    """The requests of one cell. names: this run's values, once it has begun."""

    def __init__(self, sameness: Sameness) -> None:
        self._sameness = sameness
        self._conversations = Conversations()
        self._turn = asyncio.Lock()
        self._number = 0
        self._forms = NormalForms(Names({}), sameness)
        self._keys, self._whole_keys = Keys(sameness.ignore), Keys()
        self.names = Names({})

    def begin(self, names: Names) -> None:
        """The sandbox of the cell is there, so that what differs from run to run is known."""
        self.names, self._forms = names, NormalForms(names, self._sameness)

    async def know(self, api: str, provider: ModelApi, path: str, body: bytes) -> KnownRequest:
        """Read a request. They are read one at a time, in the order in which they come. Raises Refusal,
        RecordingError."""
        async with self._turn:
            self._number += 1
            if len(body) <= SHORT:
                return self._read(api, provider, path, body)
            return await asyncio.to_thread(self._read, api, provider, path, body)

    def answered(self, request: KnownRequest, answer: Mapping[str, Any]) -> None:
        """A request was answered with this document."""
        answer_id = answer.get("id")
        self._conversations.answered(request.conversation, answer_id if isinstance(answer_id, str) else "")

    def _read(self, api: str, provider: ModelApi, path: str, body: bytes) -> KnownRequest:
        parsed = parsed_body(body)
        asked = provider.asked(parsed, path)
        normal = self._forms.of(parsed)
        messages = normal.get(provider.conversation_field)
        previous = parsed.get("previous_response_id")
        conversation = self._conversations.of(
            api,
            _messages(messages),
            with_tools=bool(asked.tools),
            previous=previous if isinstance(previous, str) else "",
        )
        return KnownRequest(
            self._number,
            api,
            parsed,
            asked,
            normal,
            self._keys.key_of(api, asked.model, normal),
            self._whole_keys.key_of(api, asked.model, normal),
            conversation,
            conversation.answered,
        )


def _messages(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list) else [] if found is None else [found]


_END_SECONDS = 5.0
"""For the end of an answer that its client has read already: its ids are known once it has come."""


class Recorder:
    """The recorder of one cell. relay: asks the provider. problem: why the recording is not complete; empty where it
    is."""

    keeps_documents = True

    def __init__(self, relay: AnswerSource, requests: Requests) -> None:
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
        self,
        request: AgentRequest,
        route: ApiRoute,
        body: bytes | None,
        reply: AgentReply,
        copy: AnswerCopy | None = None,
    ) -> int:
        """See AnswerSource."""
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
        """Waits for answers that their clients have read to the end and we have not: their ids come back at once."""
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
        """Bounds our memory, and keeps what is written within what can be read. `NormalForms` bounds what requests
        hold."""
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
