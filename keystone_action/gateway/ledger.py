"""What the agent of one cell asked of models, was answered and spent: limits and the trace read it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from keystone_action.gateway.exchange import Answer, Asked, Tokens
from keystone_action.pricing import Price, cost_of

CHARACTERS_A_TOKEN = 4
"""For what a provider did not count, since its answer broke off."""


NOTHING = Tokens(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """`gateway.budget` of a spec; None = no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_requests: int | None = None
    max_tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """So far. requests: those that were let through, with each retry. cost_usd: None once a model without a price was
    asked."""

    requests: int = 0
    tokens: Tokens = NOTHING
    tool_calls: int = 0
    cost_usd: float | None = 0.0

    @property
    def all_tokens(self) -> int:
        """Of all kinds."""
        counted = self.tokens
        return sum(one or 0 for one in (counted.uncached, counted.cache_read, counted.cache_write, counted.output))


@dataclass(slots=True)
class Exchange:
    """One request that was let through. status: of its answer, None while there is none. failure: why it is none that
    counts; empty for one that does. estimated: its tokens are. digest: of API, path and body: equal for retries."""

    api: str
    path: str
    asked: Asked
    digest: str
    status: int | None = None
    answer: Answer | None = None
    failure: str = ""
    estimated: bool = False
    seconds: float = 0.0
    tries: int = 1
    characters: int = field(default=0, repr=False)
    """Of the request's body, for an estimate."""

    @property
    def model(self) -> str:
        """As the provider names it, else as the request does."""
        return (self.answer.model if self.answer is not None else "") or self.asked.model


class Refusal(Exception):  # noqa: N818 - an outcome, which the agent is told
    """We don't let a request through. status: of HTTP. spent: a limit was reached, so the agent is to end."""

    def __init__(self, status: int, sentence: str, *, spent: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.spent = status, sentence, spent


class Ledger:
    """Written by the gateway's thread, read by the run's.

    limits, prices, models: `budget`, `prices` and `models` of a spec's gateway; no models = any.
    """

    def __init__(
        self, limits: Limits | None = None, prices: Mapping[str, Price] | None = None, models: Sequence[str] = ()
    ) -> None:
        self._limits, self._prices, self._models = limits or Limits(), prices or {}, models
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._spent = Spent()
        self._under_way = 0
        self.refused: list[str] = []
        """Sentences, one for each request that was not let through."""
        self.stopped = ""
        """The sentence of the limit that was reached; empty when none was."""

    @property
    def spent(self) -> Spent:
        """So far."""
        with self._lock:
            return self._spent

    @property
    def under_way(self) -> int:
        """Requests whose answers have not ended."""
        with self._lock:
            return self._under_way

    @property
    def answered(self) -> bool:
        """Whether a provider answered."""
        with self._lock:
            return any(one.answer is not None for one in self._exchanges)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """In the order in which the requests came; the retries of a failed one are one with it."""
        with self._lock:
            return tuple(replace(one) for one in _folded(self._exchanges))

    def open(self, api: str, path: str, asked: Asked, body: bytes) -> Exchange:
        """Let a request through, or raise Refusal. Whoever opens one closes it."""
        with self._lock:
            try:
                self._admit(api, asked)
            except Refusal as refusal:
                self.refused.append(refusal.sentence)
                self.stopped = self.stopped or (refusal.sentence if refusal.spent else "")
                raise
            digest = hashlib.sha256(b"\0".join([api.encode(), path.encode("utf-8", "replace"), body])).hexdigest()
            exchange = Exchange(api, path, asked, digest, characters=len(body))
            self._exchanges.append(exchange)
            self._under_way += 1
            self._spent = replace(self._spent, requests=self._spent.requests + 1)
            return exchange

    def close(
        self, exchange: Exchange, *, status: int | None, answer: Answer | None, failure: str, seconds: float
    ) -> None:
        """The answer has ended. failure: why it is none that counts: `429`, `the connection was lost`."""
        with self._lock:
            self._under_way -= 1
            exchange.status, exchange.failure, exchange.seconds = status, failure, seconds
            exchange.answer = answer
            if answer is None:
                return
            tokens, exchange.estimated = _counted(exchange, answer)
            exchange.answer = replace(answer, tokens=tokens)
            self._spent = self._with(exchange, tokens, len(answer.calls))

    def _with(self, exchange: Exchange, tokens: Tokens, calls: int) -> Spent:
        was, cost = self._spent, self._cost(exchange.api, exchange.model, tokens)
        if cost is None:  # a provider may name the model that answered more exactly than its price does
            cost = self._cost(exchange.api, exchange.asked.model, tokens)
        return replace(
            was,
            tokens=_sum(was.tokens, tokens),
            tool_calls=was.tool_calls + calls,
            cost_usd=None if cost is None or was.cost_usd is None else was.cost_usd + cost,
        )

    def _cost(self, api: str, model: str, tokens: Tokens) -> float | None:
        return cost_of(
            api,
            model,
            uncached=tokens.uncached or 0,
            output=tokens.output or 0,
            cache_read=tokens.cache_read or 0,
            cache_write=tokens.cache_write or 0,
            prices=self._prices,
        )

    def _admit(self, api: str, asked: Asked) -> None:
        if self._models and not any(fnmatchcase(asked.model, glob) for glob in self._models):
            allowed = ", ".join(self._models)
            raise Refusal(400, f"the model {asked.model or '(none)'} is not let through; gateway.models has {allowed}")
        limits, spent = self._limits, self._spent
        if limits.max_cost_usd is not None:
            if self._cost(api, asked.model, NOTHING) is None:
                raise Refusal(400, f"the model {asked.model or '(none)'} has no price; add one to gateway.prices")
            if spent.cost_usd is not None and spent.cost_usd >= limits.max_cost_usd:
                raise Refusal(400, f"stopped at ${spent.cost_usd:.2f} of ${limits.max_cost_usd:.2f}", spent=True)
        for found, limit, noun in (
            (spent.all_tokens, limits.max_tokens, "tokens"),
            (spent.requests, limits.max_requests, "requests"),
            (spent.tool_calls, limits.max_tool_calls, "tool calls"),
        ):
            if limit is not None and found >= limit:
                raise Refusal(400, f"stopped at {found:,} of {limit:,} {noun}", spent=True)

    def provider_failure(self) -> str:
        """Why the provider is at fault when the agent then failed (contract, 5.6 "Fault"); empty when it is not."""
        exchanges = self.exchanges
        working = [one for one in exchanges if one.asked.tools] or list(exchanges)
        if not working or not working[-1].failure:
            return ""
        last = working[-1]
        return f"the provider failed: {last.failure} after {last.tries} {'try' if last.tries == 1 else 'tries'}"


def _folded(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Equal requests whose answers failed are one request with retries: the last of them."""
    folded: list[Exchange] = []
    failed: dict[str, int] = {}
    for exchange in exchanges:
        place = failed.pop(exchange.digest, None)
        if place is None:
            place = len(folded)
            folded.append(exchange)
        else:
            folded[place] = replace(exchange, tries=folded[place].tries + 1)
        if exchange.failure:
            failed[exchange.digest] = place
    return folded


def _counted(exchange: Exchange, answer: Answer) -> tuple[Tokens, bool]:
    """The provider's count, or an estimate of what it did not tell; and whether it is one."""
    told = answer.tokens
    if told.uncached is not None and told.output is not None and answer.finished:
        return told, False
    said = len(answer.text) + len(answer.thought) + sum(len(str(call.arguments or "")) for call in answer.calls)
    guessed = max(told.output or 0, -(-said // CHARACTERS_A_TOKEN))
    asked = told.uncached
    if asked is None:
        asked = -(-exchange.characters // CHARACTERS_A_TOKEN)
    return replace(told, uncached=asked, output=guessed), True


def _sum(one: Tokens, other: Tokens) -> Tokens:
    def both(first: int | None, second: int | None) -> int:
        return (first or 0) + (second or 0)

    return Tokens(
        both(one.uncached, other.uncached),
        both(one.cache_read, other.cache_read),
        both(one.cache_write, other.cache_write),
        both(one.output, other.output),
    )
