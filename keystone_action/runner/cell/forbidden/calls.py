"""The rules of `forbidden` on what the agent asked tools to do (spec.md 5.6)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keystone_action.errors import HarnessError
from keystone_action.evidence.trace import GATEWAY
from keystone_action.evidence.trace_readers.builder import CUT_ARGUMENTS
from keystone_action.invariants.agent_work import texts_in
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.runner.cell.forbidden.findings import Findings
from keystone_action.scoring.results import ForbiddenResult

if TYPE_CHECKING:
    from keystone_action.evidence.trace import ToolCall, Trace
    from keystone_action.spec.models.policies import Forbidden

SECONDS = 30.0
"""For the patterns of a cell."""
_SHOWN_CHARACTERS = 300
_COMMAND_KEYS = frozenset({"command", "cmd", "script", "code", "input"})
_PROSE = "description"
"""What some shells' tools have beside the command: words for people."""
_NAME = re.compile(r"[\w.$-]*")
"""Of an argument, as tools have them."""


def judge_calls(
    rules: Forbidden,
    trace: Trace | None,
    *,
    has_gateway: bool,
    times: Sequence[str] = (),
    harmless: Collection[str] | None = None,
) -> tuple[ForbiddenResult, ...]:
    """One result for each of the rules `tools` and `commands` that the spec has. trace: what checks read. has_gateway:
    whether the cell had one; without, the agent's own transcript is all there is. times: when the request came whose
    answer made a call, of each. harmless: the tools of a known agent that run no command; None for any other agent,
    which may call its shell as it likes (`read_file`): what one of its tools does is told by no name.

    Raises HarnessError where nothing was observed, or not all of it and no rule is violated by what was.
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
    problems = [HarnessError(f"forbidden.{_names(rules)[0]}: {trace.calls_unsure}")] if trace.calls_unsure else []
    calls, whose = trace.tool_calls, "seen by the gateway" if has_gateway else "by the agent's own word"
    told = [f" at {time}, {whose}" for time in times] or [f", {whose}"] * len(calls)
    deadline, is_known = time.monotonic() + SECONDS, harmless is not None

    def result(rule: str, is_forbidden: Callable[[ToolCall], bool]) -> ForbiddenResult:
        found = Findings(rule)
        for number, (call, how) in enumerate(zip(calls, told, strict=True), 1):
            try:
                if is_forbidden(call):
                    found.add(f"call {number:,} of {len(calls):,}: {_shown(call, is_known=is_known)}{how}")
            except HarnessError as problem:  # another call may violate the rule for certain
                problems.append(problem)
        return found.result()

    results = []
    if (names := rules.tools) is not None:
        results.append(result("tools", lambda call: not _names_of_call(call, is_known=is_known).isdisjoint(names)))
    if (patterns := rules.commands) is not None:
        results.append(result("commands", lambda call: _runs_one_of(call, patterns, harmless, deadline)))
    if problems and not any(one.violated for one in results):
        raise problems[0]
    return tuple(results)


def _names(rules: Forbidden) -> list[str]:
    return [name for name in ("tools", "commands") if getattr(rules, name) is not None]


def _names_of_call(call: ToolCall, *, is_known: bool) -> set[str]:
    """By what a rule may name a call. is_known: whether its tools are those of a known agent. Else one that got a text
    is of unknown kind too, unless its name says that it runs commands."""
    is_open = not is_known and call.kind != "execute" and (call.arguments is None or any(texts_in(call.arguments)))
    return {call.name, call.raw_name, call.kind, *(["other"] if is_open else [])}


def _shown(call: ToolCall, *, is_known: bool) -> str:
    asked = json.dumps(call.arguments, ensure_ascii=False, default=str)
    if len(asked) > _SHOWN_CHARACTERS:
        asked = f"{asked[:_SHOWN_CHARACTERS]}…"
    refused = ", which failed or was refused" if call.status == "error" else ""
    kind = call.kind if is_known or call.kind in ("execute", "other") else f"{call.kind} by its name"
    return f"{call.raw_name} ({kind}) {asked}{refused}"


def _runs_one_of(call: ToolCall, patterns: Sequence[str], harmless: Collection[str] | None, deadline: float) -> bool:
    """Raises HarnessError where it can't be told."""
    if harmless is not None and call.raw_name in harmless:
        return False
    if call.arguments is None:
        raise HarnessError(f"forbidden.commands: what {call.raw_name} was asked to run could not be read")
    texts = command_texts(call.arguments, is_known=harmless is not None)
    try:
        return any(search_pattern(one, text, deadline=deadline) for text in texts for one in patterns)
    except PatternTimeout as problem:
        raise HarnessError(f"forbidden.commands: {problem}") from problem


def command_texts(arguments: Mapping[str, Any], *, is_known: bool) -> Iterator[str]:
    """What a tool may have been asked to run: every text in its arguments, lists of words as one command, and all of it
    as one (`{"program": "rm", "args": ["-rf", "x"]}`). Names of arguments count where they are more than a name.
    is_known: of a known agent, whose shells have words for people beside the command."""
    prose = {_PROSE} if is_known and _COMMAND_KEYS & arguments.keys() else set()
    texts: list[str] = []
    todo: list[Any] = [{key: value for key, value in arguments.items() if key not in prose}]
    while todo:  # no recursion: the agent decides on the depth
        one = todo.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, Mapping):
            texts += [key for key in one if isinstance(key, str) and not _NAME.fullmatch(key)]
            todo += reversed(list(one.values()))
        elif isinstance(one, list | tuple):
            todo += reversed(one)
            if len(one) > 1 and all(isinstance(word, str) for word in one):
                yield " ".join(one)
    yield from texts
    if len(texts) > 1:
        yield " ".join(texts)
