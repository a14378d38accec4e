"""A source of answers that reads them from a recording. It opens no connection and needs no key. For a request without
an answer it says where the nearest recorded one differs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keystone_action.errors import HarnessError
from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.api import ModelApi, Rendered
from keystone_action.gateway.ledger import CHARACTERS_A_TOKEN, Refusal
from keystone_action.gateway.recordings.recorder import Conversation, KnownRequest, Requests
from keystone_action.gateway.recordings.recording import CONVERSATIONS, Entry, Recording
from keystone_action.gateway.registry import ApiRoute, provider_for
from keystone_action.gateway.request import AgentReply, AgentRequest

PLACES_SHOWN = 3
_AROUND = 40
"""Characters shown on either side of the first one that differs."""
_NAMES_SHOWN = 5


def first_differences(wanted: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """The first places in which a request, in its normal form, differs from the recorded one that is most like it, as
    `messages[3].content: recorded "…", asked "…"`."""
    if not entries:
        return "the recording holds no request"
    nearest = max(entries, key=lambda entry: _likeness(wanted, entry.request))
    found = _places(nearest.request, wanted)
    shown = [place for _, place in zip(range(PLACES_SHOWN + 1), found, strict=False)]
    if not shown:
        return f"the API or the model: recorded {_shown(nearest.api)} and {_shown(nearest.model)}"
    return "; ".join([*shown[:PLACES_SHOWN], *(["and more"] if len(shown) > PLACES_SHOWN else [])])


def _likeness(wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Equal messages at the beginning, equal fields, equal messages in all, and how near the numbers of messages
    are."""
    ours, theirs = _messages(wanted), _messages(recorded)
    equal = [one == other for one, other in zip(ours, theirs, strict=False)]
    first = equal.index(False) if False in equal else len(equal)
    fields = sum(name in recorded and recorded[name] == value for name, value in wanted.items())
    return first, fields, sum(equal), -abs(len(ours) - len(theirs))


def _messages(request: Mapping[str, Any]) -> list[Any]:
    return next((value for name in CONVERSATIONS if isinstance(value := request.get(name), list)), [])


def _places(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """The places that differ. What a request is about comes first: its model, its tools, what was said."""
    names = dict.fromkeys(["model", "tools", *recorded, *asked])
    for name in names:
        if name not in recorded and name not in asked:
            continue
        if name not in recorded:
            yield f"{name}: not recorded, asked {_shown(asked[name])}"
        elif name not in asked:
            yield f"{name}: recorded {_shown(recorded[name])}, not asked"
        elif name == "tools" and (change := _tools(recorded[name], asked[name])):
            yield change
        else:
            yield from _differences(name, recorded[name], asked[name])


def _tools(recorded: Any, asked: Any) -> str:
    before, now = _tool_names(recorded), _tool_names(asked)
    gone, new = [one for one in before if one not in now], [one for one in now if one not in before]
    parts = [f"recorded and not asked: {_listed(gone)}"] if gone else []
    parts += [f"asked and not recorded: {_listed(new)}"] if new else []
    return f"tools: {'; '.join(parts)}" if parts else ""


def _tool_names(tools: Any, depth: int = 4) -> dict[str, None]:
    """Names of tools, in the form of any API, with those in namespaces."""
    found: dict[str, None] = {}
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        function = tool.get("function")
        inner = [tool.get(name) for name in ("tools", "functionDeclarations", "function_declarations")]
        name = (function.get("name") if isinstance(function, dict) else None) or tool.get("name") or tool.get("type")
        if isinstance(name, str):
            found[name] = None
        for one in inner if depth else []:
            found |= _tool_names(one, depth - 1)
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(_shown(name) for name in names[:_NAMES_SHOWN]) + more


def _differences(place: str, recorded: Any, asked: Any) -> Iterator[str]:
    if recorded is asked or (recorded == asked and type(recorded) is type(asked)):
        return
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in dict.fromkeys([*recorded, *asked]):
            here = f"{place}.{_name(name)}"
            if name not in recorded:
                yield f"{here}: not recorded, asked {_shown(asked[name])}"
            elif name not in asked:
                yield f"{here}: recorded {_shown(recorded[name])}, not asked"
            else:
                yield from _differences(here, recorded[name], asked[name])
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            yield from _differences(f"{place}[{index}]", one, other)
        if len(recorded) != len(asked):
            yield f"{place}: recorded {len(recorded):,}, asked {len(asked):,}"
    elif isinstance(recorded, str) and isinstance(asked, str):
        at = max(0, _common(recorded, asked) - _AROUND)
        yield f"{place}: recorded {_window(recorded, at)}, asked {_window(asked, at)}"
    else:
        yield f"{place}: recorded {_shown(recorded)}, asked {_shown(asked)}"


def _common(one: str, other: str) -> int:
    """How many characters at the beginnings of two texts are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _name(name: str) -> str:
    """The beginning of a field's name, on one line."""
    return name if name.isidentifier() and len(name) <= _AROUND else _window(name, 0)


def _window(text: str, at: int) -> str:
    end = at + 2 * _AROUND
    return json.dumps(f"{'…' if at else ''}{text[at:end]}{'…' if end < len(text) else ''}", ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return _window(value, 0)
    text = _bounded(value)
    return text if len(text) <= 2 * _AROUND else f"{text[: 2 * _AROUND]}…"


def _bounded(value: Any) -> str:
    """JSON of about as much as is shown."""
    if isinstance(value, list):
        return f"{len(value):,} items" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(_name, list(value)[:_NAMES_SHOWN]))}" if value else "{}"
    return json.dumps(value)[: 2 * _AROUND + 1]


Match = Literal["content", "turn"]
ESTIMATED = b"x-keystone-estimated"
"""The header of an answer that no provider gave: a count of tokens, a list of models."""
_STALE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Found:
    entry: Entry
    position: int


class Replay:
    """The replay of one cell.

    match: `gateway.match`. miss: the sentence for the first request that no recording fits; empty while all do.
    problem: why requests could not be compared; empty while they could. estimates: how many requests for a count of
    tokens or a list of models got an estimate.
    """

    keeps_documents = False

    def __init__(self, recording: Recording, match: Match, requests: Requests, shown: str) -> None:
        """shown: what sentences call the recording."""
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
        self,
        request: AgentRequest,
        route: ApiRoute,
        body: bytes | None,
        reply: AgentReply,
        copy: AnswerCopy | None = None,
    ) -> int:
        """See AnswerSource."""
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
    def _rendered(
        known: KnownRequest, entry: Entry, document: Any, request: AgentRequest, provider: ModelApi
    ) -> Rendered:
        if entry.status >= 400:
            return Rendered("application/json", (json.dumps(document).encode(),))
        return provider.rendered(document, body=known.body, path=request.path, query=request.query)

    @staticmethod
    async def _answer(status: int, rendered: Rendered, reply: AgentReply, copy: AnswerCopy) -> None:
        headers = [(b"content-type", rendered.content_type.encode())]
        copy.start(status, rendered.content_type)
        await reply.start(status, headers)
        for piece in rendered.pieces:
            await reply.body(copy.feed(piece))
            await asyncio.sleep(0)  # other cells have their turn
        await reply.body(copy.end())

    async def _estimate(self, request: AgentRequest, body: bytes | None, reply: AgentReply) -> int:
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

    def _entry(self, known: KnownRequest, provider: ModelApi) -> Entry:
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
            where = first_differences(known.normal, [entry])
            self._stale.append(f"request {known.number} differs ({why}): {where}")
        return entry

    def _difference(self, known: KnownRequest) -> str:
        entries = self._recording.entries
        candidates = [entry for entry in entries if entry.api == known.api] or entries
        if not candidates:
            return "the recording holds no request"
        if self._match == "turn" and known.conversation.answered:
            return f"the recorded conversation has {known.conversation.answered:,} answers and no further one"
        return f"nearest differs at {first_differences(known.normal, candidates)}"

    def _by_content(self, known: KnownRequest) -> _Found | None:
        """The first of several equal requests gets the first answer. Once all answers are used, the last one is given
        again: a client that asks once more gets what it got."""
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
        """The recorded conversation that belongs to one that begins now: the first that began with this very request,
        else the next one, with or without tools."""
        taken = set(self._parts.values())
        free = [part for part in self._by_turn if part not in taken and part[0] == known.conversation.with_tools]
        first = (self._recording.entries[self._by_turn[part][0]] for part in free)
        equal = [part for part, entry in zip(free, first, strict=True) if entry.key == known.key]
        return next(iter([*equal, *sorted(free)]), None)

    def _require_offered(self, known: KnownRequest, entry: Entry, provider: ModelApi) -> None:
        """A call of a tool that the request no longer offers is a miss (contract, 5.6)."""
        calls = {call.name for call in provider.whole(entry.answer).calls} if entry.status < 400 else set()
        offered = set(provider.asked(entry.request, "").tools)
        if gone := sorted(calls & offered - set(known.asked.tools)):
            raise self._missed(known, f"it no longer offers the tool {gone[0]}, which the recorded answer calls")

    def _missed(self, known: KnownRequest, where: str) -> Refusal:
        sentence = f"no recording for request {known.number} of {self._shown}: {where}"
        self.miss = self.miss or sentence
        return Refusal(400, f"{sentence}; record anew with --gateway record", spent=True)
