"""`passfail`: AgenticAssure's default scorer (`002_220bb8e992e29d33.txt`; spec.md 5.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.evidence.model import Evidence
from keystone_action.evidence.trace import ToolCall
from keystone_action.invariants.agent_work import NonEmpty, argument_problem
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed

_WARNING = 'Warning: an expected_output of "" is found in every output; leave it out.'
_SHOWN = 200

_Step = tuple[str, bool, str]
"""What was checked, whether it holds, and what is said of it in parentheses (may be empty)."""


class PassFail(Check):
    """Passes when there is output, the expected tools were called with the expected arguments, and a text is in the
    output.

    Up to four checks in this order; the first failure ends the rest. Those whose field is left out are not
    made. First, always: the agent's output is not blank. Names of tools are case-sensitive; further tools and arguments
    don't matter, nor does the order. The message has AgenticAssure's form: `Output produced: PASS. Expected tools
    called: FAIL (missing: format_response).`
    """

    type_name: ClassVar[str] = "passfail"
    origin: ClassVar[str] = "AgenticAssure"

    expected_output: str | None = None
    """A text that is somewhere in the output, upper and lower case being the same.

    Example: `refund issued`
    """
    expected_tools: list[NonEmpty] | None = None
    """Tools that were each called at least once.

    Example: `[look_up_order, refund]`
    """
    expected_tool_args: dict[Annotated[str, Field(min_length=1)], dict[str, Any]] | None = None
    """By the name of the tool: some call of it had all these arguments. Numbers compare by value, never with a boolean
    or a text.

    Example: `{refund: {order: 7}}`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        done: list[_Step] = []
        for step in self._steps(context.evidence):
            done.append(step)
            if not step[1]:
                break
        holds = all(one for _, one, _ in done)
        sentences = [_sentence(*step) for step in done]
        if holds and self.expected_output == "":
            sentences.append(_WARNING)
        if self.expected_tools or self.expected_tool_args:
            sentences += filter(None, [context.evidence.answer_trace_note])
            trace = context.evidence.answer_trace
            if holds and trace is not None and trace.calls_unsure:
                return broken(f"The trace is {trace.calls_unsure}.")
        return (passed if holds else failed)(" ".join(sentences), checks={what: one for what, one, _ in done})

    def _steps(self, evidence: Evidence) -> Iterator[_Step]:
        output = evidence.agent.whole_output()
        produced = bool(output.strip()) and not evidence.agent.problem
        yield "Output produced", produced, "" if produced else evidence.agent.problem or "it is blank"
        if self.expected_tools is not None:
            yield self._tools_called(*_calls(evidence))
        if self.expected_tool_args is not None:
            yield self._arguments_match(*_calls(evidence))
        if self.expected_output is not None:
            shown = _quote(self.expected_output)
            if self.expected_output.lower() in output.lower():
                yield "Expected output found", True, f"{shown} found in output"
            else:
                yield "Expected output found", False, f"{shown} not found in output"

    def _tools_called(self, calls: Sequence[ToolCall], problem: str) -> _Step:
        wanted = list(dict.fromkeys(self.expected_tools or ()))
        missing = [name for name in wanted if not _of(name, calls)]
        if not missing:
            return "Expected tools called", True, ", ".join(wanted) or "none expected"
        why = f"; {problem}" if problem else ""
        return "Expected tools called", False, f"missing: {', '.join(missing)}{why}"

    def _arguments_match(self, calls: Sequence[ToolCall], problem: str) -> _Step:
        what = "Tool arguments match"
        for name, wanted in (self.expected_tool_args or {}).items():
            found = _of(name, calls)
            if not found:
                return what, False, f"{name} was not called{f'; {problem}' if problem else ''}"
            problems = [argument_problem(wanted, call.arguments) for call in found]
            if None not in problems:
                # The last call is most often the one that was meant to be right.
                others = f"; the last of {len(found):,} calls, and none has them" if len(found) > 1 else ""
                return what, False, f"{name}: {problems[-1]}{others}"
        return what, True, ""


def _calls(evidence: Evidence) -> tuple[Sequence[ToolCall], str]:
    """The calls that were seen, and why there may be none to see."""
    trace = evidence.answer_trace
    if trace is None:
        return (), "no tool calls were observed: there is no trace of this agent"
    if trace.problem:
        return (), trace.problem
    if trace.tool_calls is None:
        return (), f"the trace ({trace.source}) does not tell of tool calls"
    return trace.tool_calls, ""


def _of(name: str, calls: Sequence[ToolCall]) -> list[ToolCall]:
    return [call for call in calls if name in (call.raw_name, call.name)]


def _sentence(what: str, holds: bool, told: str) -> str:
    return f"{what}: {'PASS' if holds else 'FAIL'}{f' ({told})' if told else ''}."


def _quote(text: str) -> str:
    return f'"{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"}"'
