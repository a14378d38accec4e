"""`trace`: how the agent worked, not just its output (Touchstone, `004_722b8593dcd13c4e.txt`; spec.md 5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, Union

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.evidence.trace import ToolCall, ToolKind, Trace
from keystone_action.invariants.agent_work import (
    WORDS,
    Metric,
    ToolMatcher,
    is_at_most,
    measure_spending,
    shown_amount,
    shown_calls,
)
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped, with_notices
from keystone_action.spec.loading.diagnostics import slip_of
from keystone_action.spec.models.fields import LIST, NumberOrMapping

_SWITCH = "<switch>"
_Count = Annotated[int, Field(ge=0)]
_Matchers = Annotated[list[ToolMatcher], Field(min_length=1)]


def _switch_or_list(value: Any) -> str:
    return LIST if isinstance(value, list | tuple) else _SWITCH


_ToolCalls = NumberOrMapping[_Count, Annotated[dict[ToolKind, _Count], Field(min_length=1)]]
_Order = Annotated[
    Union[Annotated[bool, Tag(_SWITCH)], Annotated[_Matchers, Tag(LIST)]],  # noqa: UP007
    Discriminator(_switch_or_list),
]


@dataclass(frozen=True, slots=True)
class TraceAssertion:
    """One thing asserted of a trace."""

    what: str
    holds: bool | None
    """None when the trace does not tell."""
    told: str
    """What was found, or why it is not known, without a full stop."""
    notice: str = ""
    """What the author should know, though it holds."""


class TraceCheck(Check):
    """Passes when the agent's trace holds what it must, and nothing that it must not: tools, their order, limits,
    permissions.

    Give at least one field. Each matcher, each kind of tool and each of the other fields is one assertion; the score is
    the share of assertions that hold, and it passes when all do. What the trace does not tell leaves the score and is
    named. Without a trace the check is skipped; a trace that was declared and is missing or malformed fails. Where an
    answer's calls can be read in two ways, or the agent tells of calls that did not pass the gateway, the check is an
    error, unless it fails whatever is true: a forbidden tool was called in either reading, a required one in neither.
    """

    type_name: ClassVar[str] = "trace"
    origin: ClassVar[str] = "Touchstone"
    late_fails: ClassVar[bool] = True

    require_tools: _Matchers | None = None
    """Each of these has at least one call.

    Example: `[{kind: read}, {name: bash}]`
    """
    forbid_tools: _Matchers | None = None
    """None of these has a call. A call that fits by its name, but whose arguments can't be read, counts as one: it
    can't be ruled out.

    Example: `[{kind: fetch}]`
    """
    order: _Order | None = None
    """Calls come in this order, others in between allowed; `true` means the order of `require_tools`.

    Example: `true`
    Example: `[{kind: read}, {kind: write}]`
    """
    max_tool_calls: _ToolCalls | None = None
    """At most so many calls, of all tools or by kind: `{execute: 5, fetch: 0}`.

    Example: `30`
    Example: `{execute: 5, fetch: 0}`
    """
    max_tokens: _Count | None = None
    """At most so many tokens, of input and output together.

    Example: `50000`
    """
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """At most so many US dollars.

    Example: `0.25`
    """
    require_no_denied: bool = False
    """No request for permission was denied.

    Example: `true`
    """

    @model_validator(mode="after")
    def _asserts_something(self) -> Self:
        if self.order is True and self.require_tools is None:
            raise PydanticCustomError("order", "order: true needs require_tools, whose order it is; found none")
        limits = (self.max_tool_calls, self.max_tokens, self.max_cost_usd)
        asserted = self.require_tools or self.forbid_tools or self.order or self.require_no_denied
        if not asserted and all(limit is None for limit in limits):
            names = [name for name in type(self).model_fields if name != "type"]
            raise PydanticCustomError("missing_assertion", f"expected at least one of {', '.join(names)}")
        return self

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        trace = context.evidence.observed
        if trace is None:
            return skipped("There is no trace of this agent.")
        if trace.problem:
            return failed(f"{trace.problem}.")
        return await anyio.to_thread.run_sync(self._evaluate, context.evidence, trace, abandon_on_cancel=True)

    def _evaluate(self, evidence: Evidence, trace: Trace) -> Outcome:
        spending = measure_spending(evidence)
        if spending.problem:
            return failed(f"{spending.problem}.")
        assertions = [*self._about_tools(evidence, trace), *self._about_limits(evidence, trace)]
        about_calls = (self.require_tools, self.forbid_tools, self.order, self.max_tool_calls)
        # The calls of both readings are there, so one of a tool that is missing among them was not seen in either.
        certain = ("forbid_tools", "require_tools")
        is_certain = any(one.holds is False for one in assertions if one.what.startswith(certain))
        if trace.calls_unsure and not is_certain and any(one not in (None, False) for one in about_calls):
            return broken(f"The trace is {trace.calls_unsure}.")
        if self.require_no_denied:
            assertions.append(_none_denied(trace))
        return _outcome(assertions, trace)

    def _about_tools(self, evidence: Evidence, trace: Trace) -> Iterator[TraceAssertion]:
        calls, workspace = trace.tool_calls, evidence.workspace
        for one in self.require_tools or ():
            hits = None if calls is None else any(one.matches(call, workspace) for call in calls)
            yield TraceAssertion(f"require_tools {one}", hits, _name_calls(calls))
        for one in self.forbid_tools or ():
            what = f"forbid_tools {one}"
            if calls is None:
                yield TraceAssertion(what, None, _name_calls(calls))
                continue
            hit = next((call for call in calls if one.matches(call, workspace)), None)
            unsure = next((call for call in calls if not one.can_tell(call)), None)
            if hit is not None:
                yield TraceAssertion(what, False, f"{hit.name} was called")
            elif unsure is not None:
                yield TraceAssertion(what, False, f"the arguments of a call of {unsure.name} could not be read")
            else:
                yield _none_called(what, one, calls, workspace)
        yield from self._about_order(evidence, trace)

    def _about_order(self, evidence: Evidence, trace: Trace) -> Iterator[TraceAssertion]:
        wanted = self.require_tools if self.order is True else self.order or None
        if wanted is None:
            return
        what = f"order {', '.join(map(str, wanted))}"
        if trace.tool_calls is None:
            yield TraceAssertion(what, None, _name_calls(None))
            return
        todo = list(wanted)
        for call in trace.tool_calls:
            if todo and todo[0].matches(call, evidence.workspace):
                todo.pop(0)
        told = (
            f"no {todo[0]} after what comes before it; {_name_calls(trace.tool_calls)}"
            if todo
            else "the calls are in it"
        )
        yield TraceAssertion(what, not todo, told)

    def _about_limits(self, evidence: Evidence, trace: Trace) -> Iterator[TraceAssertion]:
        spending = measure_spending(evidence)
        limits: dict[Metric, float | None] = {
            "tool_calls": self.max_tool_calls if isinstance(self.max_tool_calls, int) else None,
            "tokens": self.max_tokens,
            "cost_usd": self.max_cost_usd,
        }
        for metric, limit in limits.items():
            if limit is not None:
                yield _check_limit(f"max_{metric} {shown_amount(limit)}", spending.of(metric), limit, WORDS[metric])
        if isinstance(self.max_tool_calls, dict):
            for kind, limit in self.max_tool_calls.items():
                calls = trace.tool_calls
                count = None if calls is None else sum(call.kind == kind for call in calls)
                yield _check_limit(f"max_tool_calls {kind}: {limit:,}", count, limit, f"tool calls of kind {kind}")


def _none_called(what: str, one: ToolMatcher, calls: tuple[ToolCall, ...], workspace: Path) -> TraceAssertion:
    """Of a forbidden tool that no call fits: whether that is only because an argument's name is misspelt. A name that
    is like none of those that came may be an argument that calls need not have."""
    unseen = one.unseen_arguments(calls)
    if not unseen:
        return TraceAssertion(what, True, "none was called")
    came = dict.fromkeys(name for call in calls if one.fits_name(call) for name in call.arguments or ())
    meant = {name: slip for name in unseen if (slip := slip_of(name, came))}
    others = {name: value for name, value in (one.args or {}).items() if name not in meant}
    relaxed = one.model_copy(update={"args": others})
    if meant and any(relaxed.matches(call, workspace) for call in calls):
        told = ", ".join(f"{name!r} may be {slip!r} misspelt" for name, slip in meant.items())
        return TraceAssertion(what, False, f"none fits only because no call has such an argument: {told}")
    names = " and ".join(map(repr, unseen))
    return TraceAssertion(
        what, True, "none was called", f"{what}: no call that fits by its name has an argument {names}"
    )


def _check_limit(what: str, amount: float | None, limit: float, words: str) -> TraceAssertion:
    if amount is None:
        return TraceAssertion(what, None, f"the trace does not tell of {words}")
    return TraceAssertion(what, is_at_most(amount, limit), f"{words}: {shown_amount(amount)}")


def _none_denied(trace: Trace) -> TraceAssertion:
    if trace.permissions is None:
        return TraceAssertion("require_no_denied", None, "the trace does not tell of permissions")
    denied = sum(one.allowed is False for one in trace.permissions)
    return TraceAssertion(
        "require_no_denied", denied == 0, f"{denied:,} of {len(trace.permissions):,} requests were denied"
    )


def _name_calls(calls: tuple[ToolCall, ...] | None) -> str:
    return "the trace does not tell of tool calls" if calls is None else f"the calls were: {shown_calls(calls)}"


def _outcome(assertions: list[TraceAssertion], trace: Trace) -> Outcome:
    graded = [one for one in assertions if one.holds is not None]
    absent = [f"Not observed: {one.what} ({one.told})." for one in assertions if one.holds is None]
    if not graded:
        return skipped("\n".join(absent))
    broken = [f"{one.what}: does not hold; {one.told}." for one in graded if not one.holds]
    held = len(graded) - len(broken)
    lines = [f"{held} of {len(graded)} assertions about the trace hold.", *broken, *absent]
    lines += [f"Not understood in the trace: {'; '.join(trace.not_understood[:3])}."] if trace.not_understood else []
    outcome = (failed if broken else passed)(
        "\n".join(lines),
        score=held / len(graded),
        assertions=[{"what": one.what, "holds": one.holds, "told": one.told} for one in assertions],
        source=trace.source,
        not_understood=list(trace.not_understood),
    )
    return with_notices(outcome, (one.notice for one in assertions if one.notice))
