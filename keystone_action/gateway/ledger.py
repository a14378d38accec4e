"""What the agent of one cell asked of models, what it was answered and what it spent. Limits and the trace are read
from here."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from keystone_action.evidence.audit import now
from keystone_action.evidence.trace_readers.builder import TEXT_LIMIT
from keystone_action.gateway.exchange import NOTHING, Answer, Asked, Exchange, ModelCall, Tokens, ToolResult
from keystone_action.gateway.faults import Faults
from keystone_action.pricing import Extras, Price, Purse, cost_of, is_priced

Key = tuple[str, str, str]
"""API, what a call is joined with its result by (`id`, `name`), and that."""


def result_key(api: str, call: ModelCall) -> Key:
    """By what the result of this call is found. Some APIs have no ids."""
    return (api, "id", call.id) if call.id else (api, "name", call.name)


def keys_of(api: str, result: ToolResult) -> tuple[Key, Key]:
    """By what its call may be found, the better key first."""
    return (api, "id", result.call), (api, "name", result.name)


class OpenCalls:
    """Calls without a result. A request repeats all earlier results of its conversation and may invent some. Only what
    answers an open call is kept, so that memory does not grow with the square of a conversation."""

    def __init__(self) -> None:
        self._open: Counter[Key] = Counter()

    def add(self, api: str, answer: Answer) -> None:
        """A provider made these calls."""
        self._open.update(_awaited(api, answer))

    def take(self, api: str, results: Sequence[ToolResult], under_way: Iterable[Answer]) -> tuple[ToolResult, ...]:
        """The results that answer an open call, cut to what a trace keeps.

        Where an id or a name came before, the last results in the request are the new ones. under_way: answers that are
        still coming, since an agent may be faster than the end of an answer.
        """
        if not results:
            return ()
        coming: Counter[Key] = Counter(key for answer in under_way for key in _awaited(api, answer))
        found: dict[Key, list[ToolResult]] = defaultdict(list)
        for result in results:
            for key in keys_of(api, result):
                if self._open[key] + coming[key] > 0:
                    found[key].append(result)
                    break
        kept = []
        for key, sent in found.items():
            new = sent[-(self._open[key] + coming[key]) :]
            self._open[key] -= len(new)
            kept += [_cut(key, result) for result in new]
        return tuple(kept)


def _awaited(api: str, answer: Answer) -> list[Key]:
    """The keys of the calls whose results an agent sends."""
    return [result_key(api, call) for call in answer.calls if not call.by_provider]


def _cut(key: Key, result: ToolResult) -> ToolResult:
    text = result.text[: TEXT_LIMIT + 1]  # one more, so that the trace says that it was cut
    _, kind, value = key
    return ToolResult(value if kind == "id" else "", text, result.status, value if kind == "name" else "")


CHARACTERS_A_TOKEN = 4
"""For what a provider did not count, since its answer broke off."""
REQUESTS_LIMIT = 20_000
"""Of one cell, whatever its budget: each is kept until the cell is graded."""
_REFUSED_LIMIT = 1_000
NAMES_LIMIT, NAME_LIMIT = 20, 100
"""Models without a price that are named, and characters of each name."""
_REFUSALS = {"401", "403"}


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """`gateway.budget` of a spec; None = no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_requests: int | None = None
    max_tool_calls: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a cell has spent so far."""

    requests: int = 0
    """Requests that were let through, each retry included."""
    tokens: Tokens = NOTHING
    tool_calls: int = 0
    cost_usd: float | None = 0.0
    """US dollars; None once a model without a price has answered."""
    unpriced: tuple[str, ...] = ()
    """The first models without a price."""
    unsure: int = 0
    """Answers whose calls can't be read for certain."""

    @property
    def all_tokens(self) -> int:
        """Tokens of all kinds."""
        counted = self.tokens
        return sum(one or 0 for one in (counted.uncached, counted.cache_read, counted.cache_write, counted.output))


class Refusal(Exception):  # noqa: N818 - an outcome, which the agent is told
    """A request is not let through. status: of HTTP. spent: a limit was reached, so the agent is to end."""

    def __init__(self, status: int, sentence: str, *, spent: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.spent = status, sentence, spent


class Ledger:
    """The ledger of one cell. The gateway's thread writes it, the run's thread reads it.

    limits, prices, models: `budget`, `prices` and `models` of a spec's gateway; no models means any. purse: the job's.
    """

    def __init__(
        self,
        limits: BudgetLimits | None = None,
        prices: Mapping[str, Price] | None = None,
        models: Sequence[str] = (),
        purse: Purse | None = None,
    ) -> None:
        self._limits, self._prices, self._models, self._purse = limits or BudgetLimits(), prices or {}, models, purse
        self._counts_money = self._limits.max_cost_usd is not None or (purse is not None and purse.limit is not None)
        self._lock = threading.Lock()
        self._exchanges: dict[int, Exchange] = {}
        """By the order in which they came."""
        self._failed: dict[str, int] = {}
        """By digest, where the request stands that a retry continues."""
        self._under_way: dict[int, Callable[[], Answer]] = {}
        """By the ids of exchanges, what came of their answers by now."""
        self._calls = OpenCalls()
        self._spent = Spent()
        self._refused: list[str] = []
        self._unreadable = False
        self.faults = Faults()
        self.stopped = ""
        """The sentence of the limit that was reached; empty when none was."""
        self.missing_key = ""
        """The sentence for a provider that was asked and has no key; empty when none was."""
        self.is_cut = False
        """Whether that is the job's limit, so that nothing can be said of this cell."""

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        with self._lock:
            return self._spent

    @property
    def refused(self) -> tuple[str, ...]:
        """One sentence for each request that was not let through; the first thousand."""
        with self._lock:
            return tuple(self._refused)

    @property
    def under_way(self) -> int:
        """How many requests have an answer that has not ended."""
        with self._lock:
            return len(self._under_way)

    @property
    def answered(self) -> bool:
        """Whether a provider answered."""
        with self._lock:
            return any(one.answer is not None for one in self._exchanges.values())

    @property
    def unreadable(self) -> bool:
        """Whether the agent got an answer that we could not read, so that nobody knows which tools it called. A later
        answer to the same request does not change that."""
        with self._lock:
            return self._unreadable

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """In the order in which the requests came. A request and its retries are one exchange, which stands where the
        last retry came."""
        with self._lock:
            return tuple(replace(one) for one in self._exchanges.values())

    def refuse(self, sentence: str) -> None:
        """A request was not let through."""
        with self._lock:
            if len(self._refused) < _REFUSED_LIMIT:
                self._refused.append(sentence)

    def count_side_request(self) -> None:
        """Let a request through that no model answers, such as one that counts tokens. Raises Refusal."""
        with self._refusals(), self._lock:
            self._check_limits()
            self._spent = replace(self._spent, requests=self._spent.requests + 1)

    def open(self, api: str, path: str, asked: Asked, body: bytes, so_far: Callable[[], Answer] = Answer) -> Exchange:
        """Let a request through. Whoever opens an exchange closes it. so_far: returns what has come of the answer,
        until the exchange is closed. Raises Refusal."""
        with self._refusals(), self._lock:
            self._admit(api, asked)
            exchange = self._opened(api, path, asked, body)
            self._under_way[id(exchange)] = so_far
            self._spent = replace(self._spent, requests=self._spent.requests + 1)
            return exchange

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Keeps the refusals that are raised in its block."""
        try:
            yield
        except Refusal as refusal:
            self.refuse(refusal.sentence)
            self.stopped = self.stopped or (refusal.sentence if refusal.spent else "")
            raise

    def _opened(self, api: str, path: str, asked: Asked, body: bytes) -> Exchange:
        """Equal requests whose answers failed are one request with retries (contract, 5.6 "What counts")."""
        content = asked.digest.encode() or body
        digest = hashlib.sha256(b"\0".join([api.encode(), path.encode("utf-8", "replace"), content])).hexdigest()
        exchange = Exchange(api, path, asked, digest, now(), characters=len(body))
        results = self._calls.take(api, asked.results, (so_far() for so_far in self._under_way.values()))
        place = self._failed.pop(digest, -1)
        earlier = self._exchanges.get(place)
        if earlier is not None:
            exchange.tries = earlier.tries + 1
            # Calls that had arrived before the answer broke off stay: the agent has them.
            if earlier.answer is None or not earlier.answer.calls:
                del self._exchanges[place]
                exchange.estimated = earlier.estimated
                exchange.tokens, exchange.cost_usd = earlier.tokens, earlier.cost_usd
                results = (*earlier.asked.results, *results)
        # Of its tools only whether there are any: lists of long names would fill our memory.
        exchange.asked = replace(asked, results=results, tools=asked.tools[:1], run_by_provider=(), other_models=())
        self._exchanges[self._spent.requests] = exchange
        return exchange

    def close(
        self,
        exchange: Exchange,
        *,
        status: int | None,
        answer: Answer | None,
        failure: str,
        seconds: float,
        is_billed: bool = False,
    ) -> None:
        """The answer has ended. failure: why it does not count: `429`, `the connection was lost`. is_billed: the
        provider goes on with its answer although nobody waits for it."""
        with self._lock:
            self._under_way.pop(id(exchange), None)
            exchange.status, exchange.failure, exchange.seconds = status, failure, seconds
            exchange.answer = answer
            if failure:
                places = (place for place, one in reversed(self._exchanges.items()) if one is exchange)
                self._failed[exchange.digest] = next(places)
            if answer is not None:
                exchange.unreadable = answer.unreadable
                self._unreadable = self._unreadable or answer.unreadable
                self._calls.add(exchange.api, answer)
                tokens, is_estimate = _counted(exchange, answer)
                exchange.answer = replace(answer, tokens=tokens)
            elif status is None and (is_billed or not failure):
                # The client left first, and the answer is billed all the same.
                tokens, is_estimate = _counted(exchange, Answer())
            else:
                return
            exchange.estimated = exchange.estimated or is_estimate
            self._spend(exchange, tokens, answer or Answer())

    def _spend(self, exchange: Exchange, tokens: Tokens, answer: Answer) -> None:
        cost = self._cost(exchange.api, exchange.model, tokens, answer.extras)
        if cost is None:  # a provider may name the model that answered more exactly than its price does
            cost = self._cost(exchange.api, exchange.asked.model, tokens, answer.extras)
        if self._purse is not None and cost is not None:
            self._purse.spend(cost)
        exchange.tokens = _sum(exchange.tokens, tokens)
        exchange.cost_usd = _both(exchange.cost_usd, cost)
        was = self._spent
        self._spent = replace(
            was,
            tokens=_sum(was.tokens, tokens),
            tool_calls=was.tool_calls + len(answer.calls),
            cost_usd=_both(was.cost_usd, cost),
            unpriced=was.unpriced if cost is not None else _with_name(was.unpriced, exchange.asked.model),
            unsure=was.unsure + answer.is_unsure,
        )

    def _cost(self, api: str, model: str, tokens: Tokens, extras: Extras) -> float | None:
        return cost_of(
            api,
            model,
            uncached=tokens.uncached or 0,
            output=tokens.output or 0,
            cache_read=tokens.cache_read or 0,
            cache_write=tokens.cache_write or 0,
            extras=extras,
            prices=self._prices,
        )

    def _admit(self, api: str, asked: Asked) -> None:
        # Some routers take several names, parted by commas.
        for model in (*map(str.strip, asked.model.split(",")), *asked.other_models):
            named = model[:NAME_LIMIT] or "(none)"
            if self._models and not any(fnmatchcase(model, glob) for glob in self._models):
                allowed = ", ".join(self._models)
                raise Refusal(400, f"the model {named} is not let through; gateway.models has {allowed}")
            if self._counts_money and not is_priced(api, model, self._prices):
                raise Refusal(400, f"the model {named} has no price; add one to gateway.prices")
        self._check_limits()

    def _check_limits(self) -> None:
        limits, spent, job = self._limits, self._spent, self._purse
        if job is not None and (sentence := job.refusal()):
            self.is_cut = True
            raise Refusal(400, sentence, spent=True)
        money, most = spent.cost_usd, limits.max_cost_usd
        if money is None and self._counts_money:
            raise Refusal(400, f"stopped: nobody knows what {spent.unpriced[0]} cost with all it did", spent=True)
        if money is not None and most is not None and money >= most:
            digits = 2 if round(most, 2) == most else 6
            raise Refusal(400, f"stopped at ${money:.{digits}f} of ${most:.{digits}f}", spent=True)
        for found, limit, noun in (
            (spent.all_tokens, limits.max_tokens, "tokens"),
            (spent.requests, limits.max_requests, "requests"),
            (spent.requests, REQUESTS_LIMIT, "requests"),
            (spent.tool_calls, limits.max_tool_calls, "tool calls"),
        ):
            if limit is not None and found >= limit:
                raise Refusal(400, f"stopped at {found:,} of {limit:,} {noun}", spent=True)

    @property
    def is_rate_limited(self) -> bool:
        """Whether the last request that failed was refused because there were too many."""
        failed = [one for one in self.exchanges if one.failure]
        return bool(failed) and failed[-1].status == 429

    @property
    def fails_for_certain(self) -> bool:
        """Whether another run would end with the same `provider_failure`."""
        last = self._last()
        return last is not None and last.fault is not None and last.fault.is_certain

    def takes_key(self, api: str) -> bool:
        """Whether a provider of this API has answered. Then it accepts our key, and refuses what was asked."""
        return any(one.api == api and one.status is not None and one.status < 300 for one in self.exchanges)

    def _last(self) -> Exchange | None:
        """The last request; of those with tools, if there are any."""
        exchanges = self.exchanges
        return next(reversed([one for one in exchanges if one.asked.tools] or exchanges), None)

    def provider_failure(self) -> str:
        """Why the provider is at fault if the agent then failed (contract, 5.6 "Fault"); empty where it is not."""
        last = self._last()
        if last is None or not last.failure:
            return ""
        if last.failure in _REFUSALS and self.takes_key(last.api):
            return ""  # it takes our key, so what it refuses is what was asked
        if last.fault is not None:
            return last.fault.sentence
        return f"the provider failed: {last.failure} after {last.tries} {'try' if last.tries == 1 else 'tries'}"


def _counted(exchange: Exchange, answer: Answer) -> tuple[Tokens, bool]:
    """The tokens of an answer: the provider's count, or an estimate of what it did not tell. The second value says
    whether something was estimated."""
    told = answer.tokens
    arguments = sum(len(str(call.arguments or "")) + len(call.name) for call in answer.calls)
    said = len(answer.text) + len(answer.thought) + arguments + answer.unread
    # Some servers count nothing and say 0: no request and no word is without a token.
    has_input = told.uncached is not None and any((told.uncached, told.cache_read, told.cache_write))
    has_output = told.output is not None and bool(told.output or not said)
    if has_input and has_output and answer.finished:
        return told, False
    is_told = has_output and answer.finished
    guessed = told.output if is_told else max(told.output or 0, -(-said // CHARACTERS_A_TOKEN))
    asked = told.uncached
    if not has_input:
        asked = -(-exchange.characters // CHARACTERS_A_TOKEN)
    return replace(told, uncached=asked, output=guessed), True


def _with_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The names with one more, within limits: an agent can ask for any number of models, by names of any length."""
    name = name[:NAME_LIMIT] or "(none)"
    return names if name in names or len(names) >= NAMES_LIMIT else (*names, name)


def _sum(one: Tokens, other: Tokens) -> Tokens:
    def both(first: int | None, second: int | None) -> int:
        return (first or 0) + (second or 0)

    return Tokens(
        both(one.uncached, other.uncached),
        both(one.cache_read, other.cache_read),
        both(one.cache_write, other.cache_write),
        both(one.output, other.output),
    )


def _both(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
