"""`tool_correctness`: the agent called the tools that were expected, and no others (Touchstone; spec.md 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.evidence.trace import TOOL_KINDS, ToolCall, Trace
from keystone_action.invariants.base import Check, CheckContext, Outcome, failed, passed, skipped
from keystone_action.invariants.tools.alignment import Alignment, align
from keystone_action.invariants.tools.matchers import NonEmpty, ToolMatcher, shown_calls
from keystone_action.spec.loading.diagnostics import nearest
from keystone_action.spec.models.shapes import TextOrMapping

_SHOWN = 20


class ToolCorrectness(Check):
    """Scores whether the agent called the tools that were expected, and no others.

    Each of `expected` is to have a call of its own, and there are to be no further calls. The score is F1 of precision
    and recall; with `ordered`, times the share of the matched calls that came in order. It passes only when calls and
    expectations are the same, each as often (with `ordered`: in the same sequence). Without a trace the check is
    skipped.
    """

    type_name: ClassVar[str] = "tool_correctness"
    origin: ClassVar[str] = "Touchstone"
    late_fails: ClassVar[bool] = True

    expected: Annotated[list[TextOrMapping[NonEmpty, ToolMatcher]], Field(min_length=1)] = Field(
        description="The calls that are expected: a name, or a matcher. A tool that is to be called twice stands here "
        "twice."
    )
    match: Literal["name", "raw_name", "kind"] = Field(
        default="name", description="What a name in `expected` is compared with."
    )
    ordered: bool = Field(default=False, description="Whether the order of the calls counts.")

    @model_validator(mode="after")
    def _kinds_are_known(self) -> Self:
        for one in self.expected if self.match == "kind" else ():
            if isinstance(one, str) and "{{" not in one and one not in TOOL_KINDS:
                close = nearest(one, list(TOOL_KINDS))
                raise PydanticCustomError(
                    "tool_kind",
                    "unknown kind of tool {found}, expected one of {expected}",
                    {"found": repr(one), "expected": ", ".join(TOOL_KINDS), "suggestion": close or ""},
                )
        return self

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        trace = context.evidence.observed
        if trace is None:
            return skipped("There is no trace of this agent.")
        if trace.problem:
            return failed(f"{trace.problem}.")
        if trace.tool_calls is None:
            return skipped(f"The trace ({trace.source}) does not tell of tool calls.")
        return await anyio.to_thread.run_sync(self._evaluate, context.evidence, trace, abandon_on_cancel=True)

    def _evaluate(self, evidence: Evidence, trace: Trace) -> Outcome:
        calls = trace.tool_calls or ()
        matchers = [self._matcher(one) for one in self.expected]
        masks = _masks(calls, matchers, evidence.workspace)
        found = align(len(matchers), masks)
        missing = [self._show_tool(self.expected[index]) for index in found.missing]
        unexpected = [call for call, mask in zip(calls, masks, strict=True) if not mask]
        score = found.f1 * (found.order if self.ordered else 1.0)
        holds = found.exact(ordered=self.ordered)
        return (passed if holds else failed)(
            self._message(found, missing, unexpected, calls),
            score=score,
            precision=found.precision,
            recall=found.recall,
            f1=found.f1,
            order=found.order if self.ordered else None,
            matched=found.matched,
            missing=missing[:_SHOWN],
            unexpected=[call.name for call in unexpected[:_SHOWN]],
            not_understood=list(trace.not_understood),
        )

    def _matcher(self, one: str | ToolMatcher) -> ToolMatcher:
        if isinstance(one, ToolMatcher):
            return one
        # Not validated again: what an expression of `match: kind` became is no kind at worst, and matches nothing.
        keys: dict[str, Any] = {self.match: one}
        return ToolMatcher.model_construct(**keys)

    def _show_tool(self, one: str | ToolMatcher) -> str:
        return one if isinstance(one, str) else str(one)

    def _message(
        self, found: Alignment, missing: list[str], unexpected: list[ToolCall], calls: Sequence[ToolCall]
    ) -> str:
        rates = f"precision {found.precision:.2f}, recall {found.recall:.2f}, F1 {found.f1:.2f}"
        lines = [f"{found.matched} of {found.expected} expected calls were made, among {found.observed:,}: {rates}."]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            lines.append(f"Missing: {', '.join(missing[:_SHOWN])}{more}.")
        extra = found.observed - found.matched
        if extra:
            # A call too many may be one of several that fit: only those that fit nothing can be named.
            named = f": {shown_calls(unexpected)}" if unexpected else ""
            lines.append(f"Calls too many: {extra:,}; not expected at all: {len(unexpected):,}{named}.")
        if self.ordered and found.in_order < found.matched:
            lines.append(f"Only {found.in_order} of them came in order. The calls were: {shown_calls(calls)}.")
        return "\n".join(lines)


def _masks(calls: Sequence[ToolCall], matchers: Sequence[ToolMatcher], workspace: Path) -> list[int]:
    """For each call the expectations that mean it, as `align` takes them; what names alone decide, once a name."""
    by_name: dict[tuple[str, str, str], list[int]] = {}
    masks = []
    for call in calls:
        key = (call.kind, call.name, call.raw_name)
        if key not in by_name:
            by_name[key] = [index for index, one in enumerate(matchers) if one.fits_name(call)]
        fitting = by_name[key]
        masks.append(sum(1 << index for index in fitting if matchers[index].fits_arguments(call, workspace)))
    return masks
