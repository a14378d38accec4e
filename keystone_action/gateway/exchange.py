"""One request to a model and its answer, whichever API it went by: what is counted, traced and limited.

Only what a provider answered counts. What a request says of earlier answers is the agent's word, so of a request only
the results of tools are read, by the ids of calls that a provider made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from keystone_action.gateway.faults import Fault
from keystone_action.pricing import NO_EXTRAS, Extras

ResultStatus = Literal["ok", "error"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one answer; None where the provider did not say."""

    uncached: int | None = None
    """Input tokens that were neither read from a cache nor written to one."""
    cache_read: int | None = None
    """Input tokens that were read from a cache."""
    cache_write: int | None = None
    """Input tokens that were written to one."""
    output: int | None = None
    """Output tokens, reasoning included."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a tool that a model asked for."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None where they did not arrive whole, or are not an object. The text for a tool that takes free text is under
    `input`."""
    by_provider: bool = False
    """Whether the provider ran it itself: then no result of it is sent back."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call, as a request sends it back."""

    call: str
    """The id of the call. It is empty in an API without ids, where `name` is the name of the tool."""
    text: str
    status: ResultStatus | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    model: str
    """Empty where the request names none."""
    other_models: tuple[str, ...] = ()
    """Models that may answer in its place."""
    upstreams: tuple[str, ...] = ()
    """Fields that would lead the request to another provider."""
    streams: bool = False
    """Whether the answer is to come as a stream."""
    background: bool = False
    """Whether the provider is to answer later, in the background."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it offers."""
    run_by_provider: tuple[str, ...] = ()
    """Tools that the provider would run itself, and whatever else it would reach out for."""
    results: tuple[ToolResult, ...] = ()
    """Results of tools that it sends back."""
    conversation: int = 0
    """How many messages there are."""
    digest: str = ""
    """Equal for requests that ask the same; empty where nobody looked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered."""

    model: str = ""
    text: str = ""
    thought: str = ""
    calls: tuple[ModelCall, ...] = ()
    tokens: Tokens = Tokens()
    stop: str = ""
    """Why the model stopped, in the API's own word."""
    problem: str = ""
    """What the provider said went wrong in the middle of the answer; empty where nothing did."""
    finished: bool = False
    """Whether the answer came to its end."""
    unread: int = 0
    """How many characters of the answer no other field has: for an estimate."""
    unreadable: bool = False
    """Whether the agent got something that we could not read: a call of a tool may be missing here."""
    is_unsure: bool = False
    """Whether two clients may make different calls of this answer. The calls of both are here."""
    has_partial_call: bool = False
    """Whether the arguments of a call did not come to their end."""
    extras: Extras = NO_EXTRAS
    """What the answer costs besides its tokens."""


NOTHING = Tokens(0, 0, 0, 0)


@dataclass(slots=True)
class Exchange:
    """One request that was let through, and its answer. Equal requests whose answers failed are one exchange with
    retries."""

    api: str
    path: str
    asked: Asked
    """Of the last try. Kept of its results are those that answer a call which a provider made, and of its tools the
    first one's name."""
    digest: str
    """Of API, path and what is asked: equal for retries."""
    ts: str = ""
    """When the last try came."""
    status: int | None = None
    """The HTTP status of the last try's answer; None where none came."""
    answer: Answer | None = None
    """The answer to the last try; None where none came."""
    failure: str = ""
    """Why the last answer does not count: `429`, `the connection was lost`. Empty for one that counts."""
    estimated: bool = False
    """Whether some of the tokens are an estimate."""
    seconds: float = 0.0
    """How long the last try took."""
    tries: int = 1
    """How often the request came."""
    tokens: Tokens = NOTHING
    """Of all tries."""
    cost_usd: float | None = 0.0
    """Of all tries, in US dollars; None where a price is not known."""
    characters: int = field(default=0, repr=False)
    """Length of the request's body, for an estimate."""
    unreadable: bool = False
    """Whether the agent got an answer that we could not read."""
    fault: Fault | None = None
    """What makes the upstream useless, where the last answer says so."""

    @property
    def model(self) -> str:
        """As the provider names it, else as the request does."""
        return (self.answer.model if self.answer is not None else "") or self.asked.model
