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
    status: ResultStatus | None = None
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


NOTHING = Tokens(0, 0, 0, 0)


@dataclass(slots=True)
class Exchange:
    """One request that was let through, with its retries: of the last try are all fields but `tries`, `estimated`,
    `tokens` and `cost_usd`, which are of all.

    asked: of its results, those that answer a call that a provider made; of its tools, the first one's name. digest:
    of API, path and what is asked: equal for retries. ts: when it came. status: of its answer, None where none came.
    failure: why it is none that counts; empty for one that does. estimated: its tokens are. cost_usd: None = nobody
    knows. characters: of the request's body, for an estimate. unreadable: the agent got an answer that we could not
    read.
    """

    api: str
    path: str
    asked: Asked
    digest: str
    ts: str = ""
    status: int | None = None
    answer: Answer | None = None
    failure: str = ""
    estimated: bool = False
    seconds: float = 0.0
    tries: int = 1
    tokens: Tokens = NOTHING
    cost_usd: float | None = 0.0
    characters: int = field(default=0, repr=False)
    unreadable: bool = False
    fault: Fault | None = None

    @property
    def model(self) -> str:
        """As the provider names it, else as the request does."""
        return (self.answer.model if self.answer is not None else "") or self.asked.model
