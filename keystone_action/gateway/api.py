"""How one API of models is read and spoken. Each API has a file of its own, which `registry.py` finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from keystone_action.gateway.exchange import Answer, Asked


class AnswerReader(ABC):
    """Reads the events of one streamed answer as they come. Nothing in here raises for what an event holds."""

    keeps_document = False
    """Whether `document` will be asked for. Without it, all of an answer is not kept in memory."""

    @abstractmethod
    def event(self, data: Mapping[str, Any]) -> None:
        """The next event. What it doesn't know is passed over, or kept where it can be: APIs grow."""

    @abstractmethod
    def answer(self) -> Answer:
        """What has come so far, as it is counted. It can be asked for at any time."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What has come so far, as the API answers in one piece."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer that we give ourselves."""

    content_type: str
    pieces: tuple[bytes, ...]
    """The events of a stream, one by one; or one JSON document."""


class ModelApi(ABC):
    """How one API is read and spoken. All inputs are parsed JSON of others: nothing in here raises for what it holds.

    name: as `gateway.providers` of a spec has it. title: as people call the API. conversation_field: under which name
    a body has its conversation.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    conversation_field: ClassVar[str]

    @abstractmethod
    def asked(self, body: Mapping[str, Any], path: str) -> Asked:
        """What a request asks for. path: of its URL, below the provider's base."""

    @abstractmethod
    def whole(self, body: Any) -> Answer:
        """An answer that came in one piece."""

    @abstractmethod
    def reader(self) -> AnswerReader:
        """For an answer that comes as a stream of events."""

    @abstractmethod
    def rendered(self, document: Mapping[str, Any], *, body: Mapping[str, Any], path: str, query: str) -> Rendered:
        """An answer in one piece, as this request asks for it: as it is, or as a stream. What of a document can't be
        streamed event by event, as in one that was edited, is in the stream as it stands."""

    @abstractmethod
    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        """The body of a refusal by us, in the form of this API's errors."""

    @abstractmethod
    def counted(self, tokens: int) -> dict[str, Any]:
        """The answer to a request that has its tokens counted."""

    @abstractmethod
    def one_model(self, name: str) -> dict[str, Any]:
        """The answer to a request for what is known of a model."""

    @abstractmethod
    def models(self, names: Sequence[str]) -> dict[str, Any]:
        """A list of models."""


_KINDS = {401: "authentication_error", 404: "not_found_error"}


class OpenAiApi(ModelApi):
    """Errors, counts and models."""

    name = "openai"

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        return {"error": {"message": sentence, "type": kind, "param": None, "code": None}}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def one_model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "openai"}

    def models(self, names: Sequence[str]) -> dict[str, Any]:
        return {"object": "list", "data": [self.one_model(name) for name in names]}
