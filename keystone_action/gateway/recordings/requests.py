"""A request of an agent as recorder and replay see it: its normal form, its keys, its place in a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keystone_action.gateway.bodies import SHORT
from keystone_action.gateway.exchange import Asked, Provider
from keystone_action.gateway.recordings.conversations import Conversation, Conversations
from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.request_key import Keys, NormalForms, Sameness
from keystone_action.gateway.request_body import parsed_body


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """number: from 1, in the order in which the requests of a cell came. body: as it came. normal: its normal form.
    key: of that; whole_key: the same without `gateway.ignore`. turn: which answered request of its conversation it
    would be, from 0."""

    number: int
    api: str
    body: Mapping[str, Any]
    asked: Asked
    normal: Mapping[str, Any]
    key: str
    whole_key: str
    conversation: Conversation
    turn: int


class Requests:
    """Of one cell. names: of this run's values, once it has begun."""

    def __init__(self, sameness: Sameness) -> None:
        self._sameness = sameness
        self._conversations = Conversations()
        self._turn = asyncio.Lock()
        self._number = 0
        self._forms = NormalForms(Names({}), sameness)
        self._keys, self._whole_keys = Keys(sameness.ignore), Keys()
        self.names = Names({})

    def begin(self, names: Names) -> None:
        """The cell's sandbox is there, and what differs from run to run is known."""
        self.names, self._forms = names, NormalForms(names, self._sameness)

    async def know(self, api: str, provider: Provider, path: str, body: bytes) -> KnownRequest:
        """Read a request. One at a time, in the order in which they came. Raises Refusal, RecordingError."""
        async with self._turn:
            self._number += 1
            if len(body) <= SHORT:
                return self._read(api, provider, path, body)
            return await asyncio.to_thread(self._read, api, provider, path, body)

    def answered(self, request: KnownRequest, answer: Mapping[str, Any]) -> None:
        """A request was answered with this document."""
        answer_id = answer.get("id")
        self._conversations.answered(request.conversation, answer_id if isinstance(answer_id, str) else "")

    def _read(self, api: str, provider: Provider, path: str, body: bytes) -> KnownRequest:
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
