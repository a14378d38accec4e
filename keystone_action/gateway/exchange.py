"""One request to a model and its answer, whichever API it went by: what is counted, traced and limited.

Only what a provider answered counts. What a request says of earlier answers is the agent's word, so of a request only
the results of tools are read, by the ids of calls that a provider made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from keystone_action.pricing import NO_EXTRAS, Extras

Status = Literal["ok", "error"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of one answer; None = the provider did not say. uncached: of the input, neither read from a cache nor written to
    one. output: reasoning included."""

    uncached: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a tool that a model asked for. arguments: None where they did not arrive whole, or are no object; a
    tool that takes free text has it under `input`. by_provider: the provider ran it itself, so no result of it is sent
    back."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    by_provider: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What was sent back for a call. call: its id; empty in an API that joins by name, and `name` tells it then."""

    call: str
    text: str
    status: Status | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. model: empty where it names none. other_models: that may answer in its place.
    upstreams: fields that would lead it to another provider. tools: the names that it offers. run_by_provider:
    those among its tools that the provider would run itself, and what else it would reach out for. conversation: how
    many messages it has. digest: equal for requests that ask the same; empty where nobody looked."""

    model: str
    other_models: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    streams: bool = False
    background: bool = False
    tools: tuple[str, ...] = ()
    run_by_provider: tuple[str, ...] = ()
    results: tuple[ToolResult, ...] = ()
    conversation: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered. finished: the answer came to its end. problem: what the provider said went wrong in the
    middle of it. stop: why the model stopped, in that API's word. unread: characters of it that no other field has, for
    an estimate. unreadable: the agent got something that we could not read, so a call of a tool may be missing here.
    is_unsure: two clients may make different calls of the same answer; those of both are here. has_partial_call: the
    arguments of a call did not come to their end. extras: what it costs besides its tokens."""

    model: str = ""
    text: str = ""
    thought: str = ""
    calls: tuple[ModelCall, ...] = ()
    tokens: Tokens = Tokens()
    stop: str = ""
    problem: str = ""
    finished: bool = False
    unread: int = 0
    unreadable: bool = False
    is_unsure: bool = False
    has_partial_call: bool = False
    extras: Extras = NO_EXTRAS


class AnswerReader(ABC):
    """Reads the events of one streamed answer as they come; `answer` can be asked at any time."""

    @abstractmethod
    def event(self, data: Mapping[str, Any]) -> None:
        """The next event. What it doesn't know is passed over: APIs grow."""

    @abstractmethod
    def answer(self) -> Answer:
        """What has come so far."""


class Assembler(ABC):
    """Puts the events of one streamed answer together."""

    @abstractmethod
    def event(self, data: Mapping[str, Any]) -> None:
        """The next event. What it doesn't know is kept where it can be: APIs grow."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What has come so far, as the API answers in one piece."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer that we give ourselves. pieces: each one event of a stream, or the one JSON document."""

    content_type: str
    pieces: tuple[bytes, ...]


class Provider(ABC):
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
    def assembler(self) -> Assembler:
        """For an answer that comes as a stream of events and is kept in one piece."""

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
