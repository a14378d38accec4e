"""What is told of the requests of a cell: the trace, which no agent can write (contract, 5.6 "What counts"), and lines
of the audit log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from keystone_action.evidence.audit import now
from keystone_action.evidence.trace import AGENT_RESULT, GATEWAY, UNSURE_CALLS, Trace, Usage
from keystone_action.evidence.trace_readers.builder import MalformedTrace, TraceBuilder
from keystone_action.evidence.trace_readers.reading import reader_of
from keystone_action.gateway.exchange import Exchange, ModelCall, ToolResult
from keystone_action.gateway.ledger import Key, Ledger, Spent, keys_of, result_key

_TAKE_CODE = {"exec"}
"""Tools of Codex that run code in which others are called."""


def trace_of(exchanges: Sequence[Exchange], spent: Spent) -> Trace:
    """The trace: calls as providers asked for them, each with the result that was sent back under its id, and what was
    said.

    The final output is the last answer of a conversation with tools, where there was one: a client asks for titles,
    too. What was said, called or sent back has the time of its request.
    """
    builder = TraceBuilder(GATEWAY)
    open_calls = _OpenCalls()
    for exchange in exchanges:
        builder.ts = exchange.ts
        for place, result in open_calls.ended_by(exchange):
            builder.result(place, result.status, result.text)
        answer = exchange.answer
        if answer is None:
            continue
        builder.message("thought", answer.thought)
        builder.message("assistant", answer.text)
        for call in answer.calls:
            _add(builder, open_calls.add(exchange.api, call), call)
    for _ in range(spent.unsure):
        builder.skip(UNSURE_CALLS)
    builder.usage = _usage(spent, len(exchanges))
    last = [one.answer for one in _with_tools(exchanges) if one.answer is not None][-1:]
    for answer in last:
        builder.stop_reason = answer.stop
        builder.final_output = answer.text if all(call.by_provider for call in answer.calls) else ""
    return replace(builder.finish(), unpriced=spent.unpriced)


def _add(builder: TraceBuilder, place: str, call: ModelCall) -> None:
    try:
        builder.call(place, call.name, call.arguments)
    except MalformedTrace:  # nested too deep
        builder.call(place, call.name, None)
        builder.skip("tool call whose arguments could not be kept")


class _OpenCalls:
    """Calls without a result, by what a result is found by. Each has a name of its own here: its id, or the name of its
    tool in an API without ids, with a number where that came before."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._open: dict[Key, list[str]] = defaultdict(list)

    def add(self, api: str, call: ModelCall) -> str:
        """A call was made. Returns its name here."""
        name = told = call.id or call.name
        while name in self._names:
            self._names[told] += 1
            name = f"{told}#{self._names[told]}"
        self._names[name] = 1
        if not call.by_provider:
            self._open[result_key(api, call)].append(name)
        return name

    def ended_by(self, exchange: Exchange) -> Iterator[tuple[str, ToolResult]]:
        """The calls that a request has results for."""
        for result in exchange.asked.results:
            for key in keys_of(exchange.api, result):
                if waiting := self._open[key]:
                    yield waiting.pop(0), result
                    break


def _with_tools(exchanges: Iterable[Exchange]) -> list[Exchange]:
    known = list(exchanges)
    return [one for one in known if one.asked.tools] or known


def _usage(spent: Spent, requests: int) -> Usage:
    tokens = spent.tokens
    return Usage(
        input_tokens=tokens.uncached,
        output_tokens=tokens.output,
        cost_usd=spent.cost_usd,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        requests=requests,
    )


def differences(seen: Trace, declared: Trace) -> tuple[str, ...]:
    """Sentences on what the agent's own transcript tells differently. What was seen counts."""
    found = []
    if declared.tool_calls is not None and len(declared.tool_calls) != len(seen.tool_calls or ()):
        found.append(
            f"the agent's own transcript tells of {_count(len(declared.tool_calls), 'call')} of tools, and models asked"
            f" for {len(seen.tool_calls or ()):,}: those count"
        )
    usage, told = seen.usage, declared.usage
    # Some count what their cache held as input, others don't.
    cached = (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0)
    for what, theirs, ours, more in (
        ("input", told.input_tokens, usage.input_tokens or 0, cached),
        ("output", told.output_tokens, usage.output_tokens or 0, 0),
    ):
        if theirs is not None and theirs not in (ours, ours + more):
            found.append(
                f"the agent's own transcript tells of {theirs:,} {what} tokens, not of the {ours:,} that passed"
            )
    return tuple(found)


def calls_elsewhere(seen: Trace, declared: Trace) -> int:
    """How many calls the agent's own transcript has that no answer here asked for.

    They are told apart by their ids, where the transcript has those of the API (Gemini CLI puts the tool's name before
    them); else by their number, unless a tool was called that runs code, which may call any number of other tools.
    """
    told, known = declared.tool_calls or (), seen.tool_calls or ()
    if declared.source != AGENT_RESULT and reader_of(declared.source).has_ids_of_api and all(call.id for call in known):
        ids = {call.id for call in known}
        return sum(call.id not in ids and call.id.rpartition("__")[2] not in ids for call in told)
    if any(call.raw_name in _TAKE_CODE for call in known):
        return 0
    return max(0, len(told) - len(known))


def with_declared(seen: Trace, declared: Trace) -> Trace:
    """The trace with what only the agent can tell: permissions, why it stopped, its own final answer where the models'
    words have none, and calls of tools that no model asked for, which count nowhere."""
    known = {call.id for call in seen.tool_calls or ()}
    told = declared.tool_calls or ()
    # Ids that are all unknown are of another kind: they tell nothing.
    local = tuple(call for call in told if call.id not in known) if any(call.id in known for call in told) else ()
    elsewhere = calls_elsewhere(seen, declared)
    return replace(
        seen,
        uncertain=f"its transcript tells of {_count(elsewhere, 'call')} that did not pass the gateway"
        if elsewhere
        else "",
        failure=declared.failure,
        permissions=declared.permissions,
        stop_reason=declared.stop_reason or seen.stop_reason,
        final_output=seen.final_output or declared.final_output,
        local_calls=local,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


_CALLS_LIMIT = 1_000
"""Names of tools in one line."""


def audit_records(ledger: Ledger) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Type, time and details of each line, as `AuditLog.write` takes them: the requests in their order, then those that
    were not let through."""
    for exchange in ledger.exchanges:
        yield "model_request", exchange.ts, _details(exchange)
    if refused := Counter(ledger.refused):
        yield "model_requests_refused", now(), {"reasons": dict(refused)}


def _details(exchange: Exchange) -> dict[str, Any]:
    tokens, answer = exchange.tokens, exchange.answer
    return {
        "api": exchange.api,
        "path": exchange.path,
        "model": exchange.model[:200],
        "status": exchange.status,
        "tries": exchange.tries,
        "seconds": round(exchange.seconds, 3),
        "tokens": {
            "uncached": tokens.uncached or 0,
            "cache_read": tokens.cache_read or 0,
            "cache_write": tokens.cache_write or 0,
            "output": tokens.output or 0,
        },
        "estimated": exchange.estimated,
        "cost_usd": exchange.cost_usd,
        "failure": exchange.failure,
        "calls": [call.name[:200] for call in answer.calls[:_CALLS_LIMIT]] if answer is not None else [],
    }
