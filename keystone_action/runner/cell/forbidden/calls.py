"""The rules of `forbidden` on what the agent asked tools to do (spec.md 5.6)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keystone_action.errors import HarnessError
from keystone_action.evidence.trace import GATEWAY
from keystone_action.evidence.trace_readers.builder import CUT_ARGUMENTS
from keystone_action.invariants.tools.matchers import texts_in
from keystone_action.invariants.values.patterns import PatternTimeout, search
from keystone_action.runner.cell.forbidden.findings import Findings
from keystone_action.scoring.results import ForbiddenResult

if TYPE_CHECKING:
    from keystone_action.evidence.trace import ToolCall, Trace
    from keystone_action.spec.models.policies import Forbidden

SECONDS = 30.0
"""For the patterns of a cell."""
_SHOWN_CHARACTERS = 300
_RUN_SOMETHING = ("execute", "other")
_COMMAND_KEYS = frozenset({"command", "cmd", "script", "code", "input"})
_PROSE = "description"
"""What some shells' tools have beside the command: words for people."""


def judge_calls(
    rules: Forbidden, trace: Trace | None, *, has_gateway: bool, times: Sequence[str] = ()
) -> tuple[ForbiddenResult, ...]:
    """One result for each of the rules `tools` and `commands` that the spec has. trace: what checks read. has_gateway:
    whether the cell had one; without, the agent's own transcript is all there is. times: when the request came whose
    answer made a call, of each.

    Raises HarnessError where nothing was observed, or not all of it.
    """
    if not rules.needs_trace:
        return ()
    if trace is None or trace.tool_calls is None or (has_gateway and trace.source != GATEWAY):
        if trace is not None and trace.problem and not has_gateway:
            return tuple(ForbiddenResult(name, violated=True, details=f"{trace.problem}.") for name in _names(rules))
        raise HarnessError(
            f"forbidden.{_names(rules)[0]}: nothing was observed",
            help="No model answered through the gateway; give the agent {{ gateway.NAME.url }}, or deny other egress.",
        )
    if rules.commands is not None and not has_gateway and any(CUT_ARGUMENTS in one for one in trace.not_understood):
        raise HarnessError("forbidden.commands: the transcript has arguments that are too long to be judged")
    calls, whose = trace.tool_calls, "seen by the gateway" if has_gateway else "by the agent's own word"
    told = [f" at {time}, {whose}" for time in times] or [f", {whose}"] * len(calls)
    deadline = time.monotonic() + SECONDS
    found = []
    if rules.tools is not None:
        named = set(rules.tools)
        found.append(_result("tools", calls, told, lambda call: bool(named & {call.name, call.raw_name, call.kind})))
    if rules.commands is not None:
        patterns = rules.commands
        found.append(_result("commands", calls, told, lambda call: _runs_one_of(call, patterns, deadline)))
    return tuple(found)


def _names(rules: Forbidden) -> list[str]:
    return [name for name in ("tools", "commands") if getattr(rules, name) is not None]


def _result(
    rule: str, calls: Sequence[ToolCall], told: Sequence[str], is_forbidden: Callable[[ToolCall], bool]
) -> ForbiddenResult:
    """told: when each call was made, and whose word that is."""
    found = Findings(rule)
    for number, (call, how) in enumerate(zip(calls, told, strict=True), 1):
        if is_forbidden(call):
            found.add(f"call {number:,} of {len(calls):,}: {_shown(call)}{how}")
    return found.result()


def _shown(call: ToolCall) -> str:
    asked = json.dumps(call.arguments, ensure_ascii=False, default=str)
    if len(asked) > _SHOWN_CHARACTERS:
        asked = f"{asked[:_SHOWN_CHARACTERS]}…"
    refused = ", which failed or was refused" if call.status == "error" else ""
    return f"{call.raw_name} ({call.kind}) {asked}{refused}"


def _runs_one_of(call: ToolCall, patterns: Sequence[str], deadline: float) -> bool:
    """Raises HarnessError where it can't be told."""
    if call.kind not in _RUN_SOMETHING:
        return False
    if call.arguments is None:
        raise HarnessError(f"forbidden.commands: what {call.raw_name} was asked to run could not be read")
    try:
        return any(search(one, text, deadline=deadline) for text in command_texts(call.arguments) for one in patterns)
    except PatternTimeout as problem:
        raise HarnessError(f"forbidden.commands: {problem}") from problem


def command_texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """What a tool may have been asked to run: every text in its arguments, and lists of words as one command."""
    prose = {_PROSE} if _COMMAND_KEYS & arguments.keys() else set()
    asked = {key: value for key, value in arguments.items() if key not in prose}
    yield from texts_in(asked)
    yield from (" ".join(words) for words in _lists_of_words(asked))


def _lists_of_words(value: object) -> Iterator[Sequence[str]]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, Mapping):
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            if len(one) > 1 and all(isinstance(word, str) for word in one):
                yield one
            todo.extend(one)
