"""`tool_correctness`: the agent called the tools that were expected, and no others (Touchstone; spec.md 5.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.model import Evidence
from keystone_action.evidence.trace import TOOL_KINDS, ToolCall, Trace
from keystone_action.invariants.agent_work import NonEmpty, ToolMatcher, shown_calls
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.spec.loading.diagnostics import nearest
from keystone_action.spec.models.fields import TextOrMapping

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

    expected: Annotated[list[TextOrMapping[NonEmpty, ToolMatcher]], Field(min_length=1)]
    """The calls that are expected: a name, or a matcher. A tool that is to be called twice stands here twice.

    Example: `[look_up_order, {name: refund, args: {order: 7}}]`
    """
    match: Literal["name", "raw_name", "kind"] = "name"
    """What a name in `expected` is compared with.

    Example: `kind`
    """
    ordered: bool = False
    """Whether the order of the calls counts.

    Example: `true`
    """

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

        trace = context.evidence.answer_trace
        if trace is None:
            return skipped("There is no trace of this agent.")
        if trace.problem:
            return failed(f"{trace.problem}.")
        if trace.tool_calls is None:
            return skipped(f"The trace ({trace.source}) does not tell of tool calls.")
        if trace.calls_unsure:
            return broken(f"The trace is {trace.calls_unsure}.")
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
            "\n".join(filter(None, [self._message(found, missing, unexpected, calls), evidence.answer_trace_note])),
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
        # Not validated again: what an expression of `match: kind` became may be no kind at all, and matches nothing.
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


@dataclass(frozen=True, slots=True)
class Alignment:
    """How expected calls and observed ones fit together."""

    expected: int
    observed: int
    matched: int
    """How many expectations got a call of their own."""
    missing: tuple[int, ...]
    """The indices of the others."""
    in_order: int
    """The longest run of expectations that were met in their order; calls between them don't matter."""

    @property
    def precision(self) -> float:
        """Share of calls that were expected; 0 without calls."""
        return self.matched / self.observed if self.observed else 0.0

    @property
    def recall(self) -> float:
        """Share of expectations that were met; 0 without expectations."""
        return self.matched / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 when nothing matched."""
        return 2 * self.matched / (self.expected + self.observed) if self.matched else 0.0

    @property
    def order(self) -> float:
        """Share of the matched that are in order; 1 when nothing matched."""
        return self.in_order / self.matched if self.matched else 1.0

    def exact(self, *, ordered: bool) -> bool:
        """Each expectation has one call, each call one expectation and, if asked, in that order."""
        same = self.matched == self.expected == self.observed
        return same and (not ordered or self.in_order == self.matched)


def align(expected: int, calls: Sequence[int]) -> Alignment:
    """The best alignment of expectations 0 … expected-1 with calls, given as masks in the order they came."""
    missing = _unmatched(expected, calls)
    return Alignment(expected, len(calls), expected - len(missing), missing, _longest_in_order(expected, calls))


def _unmatched(expected: int, calls: Sequence[int]) -> tuple[int, ...]:
    """The expectations left over by a maximum matching (Kuhn's algorithm; calls with the same mask are one node that
    takes as many expectations as there are calls)."""
    room = Counter(mask for mask in calls if mask)
    taken: dict[int, list[int]] = {mask: [] for mask in room}
    return tuple(index for index in range(expected) if not _assign(index, room, taken))


def _assign(index: int, room: Counter[int], taken: dict[int, list[int]]) -> bool:
    """Give an expectation a call, moving others along a shortest path where need be."""
    came_from: dict[int, int] = {}
    todo, seen = [index], {index}
    for one in todo:
        for mask in room:
            if mask in came_from or not mask >> one & 1:
                continue
            came_from[mask] = one
            if len(taken[mask]) < room[mask]:
                _reassign(mask, index, came_from, taken)
                return True
            todo.extend(other for other in taken[mask] if other not in seen)
            seen.update(taken[mask])
    return False


def _reassign(mask: int, index: int, came_from: dict[int, int], taken: dict[int, list[int]]) -> None:
    while True:
        one = came_from[mask]
        left = next((held for held, others in taken.items() if one in others), None)
        if left is not None:
            taken[left].remove(one)
        taken[mask].append(one)
        if one == index or left is None:
            return
        mask = left


def _longest_in_order(expected: int, calls: Sequence[int]) -> int:
    """Length of the longest common subsequence (Hyyrö's bit-parallel recurrence: a zero bit is a step of the row)."""
    full = (1 << expected) - 1
    row = full
    for mask in calls:
        hits = row & mask
        row = ((row + hits) | (row - hits)) & full
    return expected - row.bit_count()
