"""A source that answers from a recording. It opens no connection and needs no key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from keystone_action.errors import HarnessError
from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.conversation import Reply, Request
from keystone_action.gateway.exchange import Provider, Rendered
from keystone_action.gateway.ledger import CHARACTERS_A_TOKEN, Refusal
from keystone_action.gateway.recordings.conversations import Conversation
from keystone_action.gateway.recordings.nearest import difference
from keystone_action.gateway.recordings.recording import Entry, Recording
from keystone_action.gateway.recordings.requests import KnownRequest, Requests
from keystone_action.gateway.routes import Route, provider_for

Match = Literal["content", "turn"]
ESTIMATED = b"x-keystone-estimated"
"""The header of an answer that no provider gave: a count of tokens, a list of models."""
_STALE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Found:
    entry: Entry
    position: int


class Replay:
    """Of one cell. match: `gateway.match`. miss: the sentence for the first request that no recording fits; empty while
    all do. problem: why requests could not be compared; empty while they could. estimates: how many requests for a
    count of tokens or a list of models were answered, all of them by an estimate."""

    keeps_documents = False

    def __init__(self, recording: Recording, match: Match, requests: Requests, shown: str) -> None:
        """shown: what the recording is called in sentences."""
        self._recording, self._match, self._requests, self._shown = recording, match, requests, shown
        self._by_key: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._by_turn: dict[tuple[bool, int], list[int]] = defaultdict(list)
        for position, entry in enumerate(recording.entries):
            self._by_key[entry.api, entry.key].append(position)
            self._by_turn[entry.with_tools, entry.conversation].append(position)
        self._taken: Counter[tuple[str, str]] = Counter()
        self._parts: dict[int, tuple[bool, int]] = {}
        """By the ids of conversations, the recorded one that each has."""
        self._begun: dict[int, Conversation] = {}
        self._used: set[int] = set()
        self._stale: list[str] = []
        self.miss = self.problem = ""
        self.estimates = 0

    @property
    def date(self) -> str:
        """When it was recorded, in UTC as ISO 8601."""
        return self._recording.date

    @property
    def left_over(self) -> int:
        """Recorded answers that nobody asked for."""
        return len(self._recording.entries) - len(self._used)

    @property
    def answered(self) -> int:
        """Recorded answers that were given."""
        return len(self._used)

    @property
    def stale(self) -> tuple[str, ...]:
        """Sentences on the first requests that differed from the recorded ones."""
        return tuple(self._stale)

    async def pass_on(
        self, request: Request, route: Route, body: bytes | None, reply: Reply, copy: AnswerCopy | None = None
    ) -> int:
        """See Source."""
        if route.provider is None or body is None or copy is None:
            return await self._estimate(request, body, reply)
        try:
            known = await self._requests.know(request.upstream.api, route.provider, request.path, body)
            entry = self._entry(known, route.provider)
            document = self._requests.names.filled(entry.answer)
        except HarnessError as error:
            self.problem = self.problem or error.sentences
            raise Refusal(400, error.message, spent=True) from None
        self._requests.answered(known, document)
        await self._answer(entry.status, self._rendered(known, entry, document, request, route.provider), reply, copy)
        return entry.status

    @staticmethod
    def _rendered(known: KnownRequest, entry: Entry, document: Any, request: Request, provider: Provider) -> Rendered:
        if entry.status >= 400:
            return Rendered("application/json", (json.dumps(document).encode(),))
        return provider.rendered(document, body=known.body, path=request.path, query=request.query)

    @staticmethod
    async def _answer(status: int, rendered: Rendered, reply: Reply, copy: AnswerCopy) -> None:
        headers = [(b"content-type", rendered.content_type.encode())]
        copy.start(status, rendered.content_type)
        await reply.start(status, headers)
        for piece in rendered.pieces:
            await reply.body(copy.feed(piece))
            await asyncio.sleep(0)  # other cells have their turn
        await reply.body(copy.end())

    async def _estimate(self, request: Request, body: bytes | None, reply: Reply) -> int:
        self.estimates += 1
        api = request.upstream.api
        provider = provider_for(api)
        if body is not None:
            document = provider.counted(-(-len(body) // CHARACTERS_A_TOKEN))
        elif name := request.path.partition("/models/")[2]:
            document = provider.one_model(name)
        else:
            models = dict.fromkeys(entry.model for entry in self._recording.entries if entry.api == api)
            document = provider.models(tuple(models))
        content = json.dumps(document).encode()
        await reply.start(200, [(b"content-type", b"application/json"), (ESTIMATED, b"true")])
        await reply.body(content)
        return 200

    def _entry(self, known: KnownRequest, provider: Provider) -> Entry:
        """The recorded answer for a request. Raises Refusal."""
        found = self._by_content(known) if self._match == "content" else self._by_position(known)
        if found is None:
            raise self._missed(known, self._difference(known))
        entry = found.entry
        if self._match == "turn":
            self._require_offered(known, entry, provider)
        self._used.add(found.position)
        if entry.whole_key != known.whole_key and len(self._stale) < _STALE_SHOWN:
            why = "turn" if self._match == "turn" and entry.key != known.key else "ignore"
            where = difference(known.normal, [entry])
            self._stale.append(f"request {known.number} differs ({why}): {where}")
        return entry

    def _difference(self, known: KnownRequest) -> str:
        entries = self._recording.entries
        candidates = [entry for entry in entries if entry.api == known.api] or entries
        if not candidates:
            return "the recording holds no request"
        if self._match == "turn" and known.conversation.answered:
            return f"the recorded conversation has {known.conversation.answered:,} answers and no further one"
        return f"nearest differs at {difference(known.normal, candidates)}"

    def _by_content(self, known: KnownRequest) -> _Found | None:
        """Of equal requests the first gets the first answer; once all are used, the last one's again: a client that
        asks once more gets what it got."""
        key = known.api, known.key
        positions = self._by_key.get(key)
        if not positions:
            return None
        place = min(self._taken[key], len(positions) - 1)
        self._taken[key] += 1
        return _Found(self._recording.entries[positions[place]], positions[place])

    def _by_position(self, known: KnownRequest) -> _Found | None:
        part = self._parts.get(id(known.conversation))
        if part is None:
            part = self._part(known)
            if part is None:
                return None
            self._parts[id(known.conversation)] = part
            self._begun[id(known.conversation)] = known.conversation
        positions = self._by_turn[part]
        turn = known.conversation.answered
        return _Found(self._recording.entries[positions[turn]], positions[turn]) if turn < len(positions) else None

    def _part(self, known: KnownRequest) -> tuple[bool, int] | None:
        """The recorded conversation that one that begins now has: the first that began with this very request, else the
        next one, with or without tools as it is."""
        taken = set(self._parts.values())
        free = [part for part in self._by_turn if part not in taken and part[0] == known.conversation.with_tools]
        first = (self._recording.entries[self._by_turn[part][0]] for part in free)
        equal = [part for part, entry in zip(free, first, strict=True) if entry.key == known.key]
        return next(iter([*equal, *sorted(free)]), None)

    def _require_offered(self, known: KnownRequest, entry: Entry, provider: Provider) -> None:
        """A call of a tool that the request no longer offers is a miss (contract, 5.6)."""
        calls = {call.name for call in provider.whole(entry.answer).calls} if entry.status < 400 else set()
        offered = set(provider.asked(entry.request, "").tools)
        if gone := sorted(calls & offered - set(known.asked.tools)):
            raise self._missed(known, f"it no longer offers the tool {gone[0]}, which the recorded answer calls")

    def _missed(self, known: KnownRequest, where: str) -> Refusal:
        sentence = f"no recording for request {known.number} of {self._shown}: {where}"
        self.miss = self.miss or sentence
        return Refusal(400, f"{sentence}; record anew with --gateway record", spent=True)
