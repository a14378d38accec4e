"""One model for what an agent did, and the file `trace.jsonl` that is written of it. Every source is read into it:
Touchstone's envelope, Keystone's events, the transcripts of known agents, AgenticAssure's `AgentResult`.

Touchstone's words (research of its 0.1.1): message, thought, tool call, tool result, usage, permission, stop; the kinds
of tools read, write, execute, search, fetch, other. What was not observed is None, which never means zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

ToolKind = Literal["read", "write", "execute", "search", "fetch", "other"]
GATEWAY = "gateway"
"""The source of a trace that no agent can write."""
AGENT_RESULT = "agent_result"
"""The source of what an AgentResult document tells."""
UNSURE_CALLS = "answer whose calls of tools can be read in two ways"
"""Stands among what was not understood."""
TOOL_KINDS: tuple[ToolKind, ...] = ("read", "write", "execute", "search", "fetch", "other")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, joined with its result."""

    id: str
    raw_name: str
    """As the agent's protocol has it."""
    name: str
    """The portable name where the transcript tells it, else raw_name."""
    kind: ToolKind
    arguments: Mapping[str, Any] | None = None
    """None when they could not be read."""
    status: Literal["ok", "error"] | None = None
    """None = no result was seen."""
    result: str = ""
    ts: str = field(default="", compare=False)
    """When it was made; empty where the source does not tell."""
    ended: str = field(default="", compare=False)
    """When its result came; empty where the source does not tell."""
    turn: int | None = field(default=None, compare=False)
    """The turn of the conversation; None where there is none."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something that was said."""

    role: str
    """`user`, `assistant`, `system` or another; `thought` for what the model only thought."""
    text: str
    ts: str = field(default="", compare=False)
    """When; empty where the source does not tell."""
    turn: int | None = field(default=None, compare=False)
    """The turn of the conversation; None where there is none."""


@dataclass(frozen=True, slots=True)
class Permission:
    """A request to be allowed something."""

    tool_call_id: str
    allowed: bool | None
    """None = nobody answered."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the whole run. None = not observed. cost in US dollars. The gateway alone tells of caches and requests."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    requests: int | None = None

    @property
    def tokens(self) -> int | None:
        """Both together; None when neither was observed."""
        known = [one for one in (self.input_tokens, self.output_tokens) if one is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What an agent did, in order.

    Tokens and cost are the source's own figures: Claude Code's input_tokens leave out what its cache held, Codex's have
    it in.
    """

    source: str
    """The format it was read from."""
    tool_calls: tuple[ToolCall, ...] | None = None
    """None = this source can't tell."""
    messages: tuple[Message, ...] = ()
    permissions: tuple[Permission, ...] | None = None
    """None = this source can't tell."""
    usage: Usage = Usage()
    stop_reason: str = ""
    """Empty when none was seen."""
    final_output: str = ""
    not_understood: tuple[str, ...] = ()
    """Sentences about events and lines that were skipped, each with how often."""
    problem: str = ""
    """Why a trace that was declared is missing or malformed. The checks that need it fail then with this sentence
    (spec.md 5.1)."""
    timeline: tuple[Message | ToolCall, ...] = ()
    """Messages and calls in the order they came in, where the source tells it."""
    local_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that no model asked for, by the agent's own word, where the source is the gateway. They count
    nowhere."""
    unpriced: tuple[str, ...] = ()
    """Models without a price that answered, as the gateway saw."""
    uncertain: str = ""
    """Why there may be more calls than these; empty when these are certainly all."""
    failure: str = ""
    """Why the run failed, by the transcript's own word; empty where it does not say so."""

    @property
    def calls_unsure(self) -> str:
        """Why a rule or a limit that these calls keep may be broken all the same; empty where they are certain."""
        reasons = (*filter(None, [self.uncertain]), *(one for one in self.not_understood if UNSURE_CALLS in one))
        return next((f"not certain: {one}" for one in reasons), "")


def with_turns(trace: Trace, turn_at: Callable[[str], int | None]) -> Trace:
    """The trace with the turn of each event. turn_at: the turn that a moment belongs to."""
    known: dict[int, Any] = {}

    def marked(entry: Any) -> Any:
        # An entry of the timeline is one of the calls or messages, too.
        return known.setdefault(id(entry), replace(entry, turn=turn_at(entry.ts)))

    return replace(
        trace,
        tool_calls=None if trace.tool_calls is None else tuple(map(marked, trace.tool_calls)),
        messages=tuple(map(marked, trace.messages)),
        timeline=tuple(map(marked, trace.timeline)),
        local_calls=tuple(map(marked, trace.local_calls)),
    )


def join_turns(traces: Sequence[Trace], *, usage_of_last: bool = False) -> Trace:
    """The traces of the turns of one conversation, the first one first, as that of all of it. usage_of_last: the
    figures of a turn are those of all turns until then."""
    marked = [with_turns(trace, lambda _: number) for number, trace in enumerate(traces, 1)]  # noqa: B023 - called at once
    of_usage = [trace.usage for trace in marked]
    known = [usage for usage in of_usage if usage != Usage()]
    calls = [trace.tool_calls for trace in marked if trace.tool_calls is not None]
    asked = [trace.permissions for trace in marked if trace.permissions is not None]
    problems = [f"turn {turn}: {trace.problem}" for turn, trace in enumerate(marked, 1) if trace.problem]
    return Trace(
        source=marked[0].source,
        tool_calls=tuple(chain.from_iterable(calls)) if len(calls) == len(marked) else None,
        messages=tuple(chain.from_iterable(trace.messages for trace in marked)),
        permissions=tuple(chain.from_iterable(asked)) if asked else None,
        usage=_add_up(known[-1:] if usage_of_last else of_usage),
        stop_reason=marked[-1].stop_reason,
        final_output=marked[-1].final_output,
        not_understood=tuple(chain.from_iterable(trace.not_understood for trace in marked)),
        problem=problems[0] if problems else "",
        timeline=tuple(
            chain.from_iterable(trace.timeline or (*trace.messages, *(trace.tool_calls or ())) for trace in marked)
        ),
        failure=marked[-1].failure,
    )


def _add_up(usages: Sequence[Usage]) -> Usage:
    """What one of them does not know, nobody knows of all."""
    sums: dict[str, Any] = {}
    for field_ in fields(Usage):
        values = [getattr(one, field_.name) for one in usages]
        sums[field_.name] = sum(values) if values and None not in values else None
    return Usage(**sums)


def write_trace(trace: Trace, path: Path) -> None:
    """Write our own copy of it, `trace.jsonl`: Touchstone's envelope `{seq, ts, type, payload}`, one event a line, with
    ts where it is known, and with `turn` where there is a conversation. What was there is replaced. Raises OSError.

    The first line is of type `trace`: `{source, problem, not_understood}`. Then, in the order they came in where that
    is known: `message {role, text}`, `thought {text}`, `tool_call {tool_call_id, raw_name, name, kind, input}` with its
    `tool_result {tool_call_id, status, output}` after it where one was seen; then `permission_request {request_id,
    tool_call_id, options}` with its `permission_response {request_id, outcome: allow|deny}`, one `usage {input_tokens,
    output_tokens, cost_usd, cache_read_tokens, cache_write_tokens, requests}` where any of these is known, and one
    `stop {reason, final_output}`. Where the source is the gateway, what only the agent told (permissions, calls that no
    model asked for) has `told_by: agent`.
    """
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for number, (ts, turn, kind, payload) in enumerate(_events(trace)):
            head = {"seq": number, **({"ts": ts} if ts else {}), **({"turn": turn} if turn else {})}
            json.dump({**head, "type": kind, "payload": payload}, file, ensure_ascii=False)
            file.write("\n")


_Event = tuple[str, int | None, str, Mapping[str, Any]]
"""Its time, empty where that is not known, its turn, its type and its payload."""


def _events(trace: Trace) -> Iterator[_Event]:
    head = {"source": trace.source, "problem": trace.problem, "not_understood": list(trace.not_understood)}
    yield "", None, "trace", head
    for entry in trace.timeline or (*trace.messages, *(trace.tool_calls or ())):
        yield from _message_events(entry) if isinstance(entry, Message) else _call_events(entry)
    mark = {"told_by": "agent"} if trace.source == GATEWAY else {}
    for call in trace.local_calls:
        for ts, turn, kind, payload in _call_events(call):
            yield ts, turn, kind, {**payload, **mark}
    for number, permission in enumerate(trace.permissions or ()):
        request = {"request_id": str(number), "tool_call_id": permission.tool_call_id, "options": []}
        yield "", None, "permission_request", {**request, **mark}
        if permission.allowed is not None:
            outcome = "allow" if permission.allowed else "deny"
            yield "", None, "permission_response", {"request_id": str(number), "outcome": outcome, **mark}
    usage = trace.usage
    if usage != Usage():
        yield "", None, "usage", asdict(usage)
    if trace.stop_reason or trace.final_output:
        yield "", None, "stop", {"reason": trace.stop_reason, "final_output": trace.final_output}


def _message_events(message: Message) -> Iterator[_Event]:
    if message.role == "thought":
        yield message.ts, message.turn, "thought", {"text": message.text}
    else:
        yield message.ts, message.turn, "message", {"role": message.role, "text": message.text}


def _call_events(call: ToolCall) -> Iterator[_Event]:
    payload = {"tool_call_id": call.id, "raw_name": call.raw_name, "name": call.name, "kind": call.kind}
    yield call.ts, call.turn, "tool_call", {**payload, "input": call.arguments}
    if call.status is not None or call.result:
        yield (
            call.ended,
            call.turn,
            "tool_result",
            {"tool_call_id": call.id, "status": call.status, "output": call.result},
        )
