"""Where the answers to an agent come from: a provider (`relay.py`), or a recording (`recordings/replay.py`)."""

from __future__ import annotations

from typing import Protocol

from keystone_action.gateway.answer_copy import AnswerCopy
from keystone_action.gateway.conversation import Reply, Request
from keystone_action.gateway.routes import Route


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
