"""Which conversation a request belongs to (contract, 5.6 "Recordings", `turn`).

A conversation continues when its messages extend those of an earlier request; else it is the next one with, or without,
tools. Recorder and replay count by this one rule, so that the n-th request of each gets the n-th answer. (Clients ask
for titles with the task's own words, so requests without tools never continue one with tools.)
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Conversation:
    """with_tools, number: which one it is, from 0 among those of its kind. answered: its requests that were."""

    with_tools: bool
    number: int
    answered: int = 0


class Conversations:
    """Of one cell, as its requests come."""

    def __init__(self) -> None:
        self._by_messages: dict[tuple[str, bool, bytes], Conversation] = {}
        self._by_answer: dict[str, Conversation] = {}
        self._begun: Counter[bool] = Counter()

    def of(self, api: str, messages: Sequence[Any], *, with_tools: bool, previous: str = "") -> Conversation:
        """The conversation that a request continues or begins. messages: in their normal form. previous: the id of the
        answer that it says it continues, in an API whose requests send only what is new; empty otherwise."""
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
        """Its last request was answered. answer_id: by which a later request can continue it."""
        conversation.answered += 1
        if answer_id:
            self._by_answer[answer_id] = conversation


def _digests(messages: Sequence[Any]) -> Iterator[bytes]:
    """Of the first message, the first two, and so on."""
    so_far = hashlib.sha256()
    for message in messages:
        so_far.update(json.dumps(message, sort_keys=True).encode())
        so_far.update(b"\n")
        yield so_far.digest()
