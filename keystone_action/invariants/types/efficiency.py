"""`efficiency`: how cheaply the result was reached (Touchstone, `004_722b8593dcd13c4e.txt`; spec.md 5.3)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from keystone_action.invariants.agent_work import (
    WORDS,
    CellSpending,
    Metric,
    is_at_most,
    measure_spending,
    shown_amount,
)
from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.spec.models.fields import Duration

_TOLERANCE = 1e-9
_FIELDS: dict[Metric, str] = {
    "cost_usd": "target_cost_usd",
    "tokens": "target_tokens",
    "tool_calls": "target_tool_calls",
    "seconds": "target_seconds",
}


class Efficiency(Check):
    """Scores how cheaply the agent reached its result, on a ramp instead of a limit.

    Give at least one target. Each earns 1.0 at or under it, and target/actual above it: at twice the target 0.5. The
    score is their mean. A target whose amount was not observed leaves the mean and is named; with none observed the
    check is skipped. Seconds are the run of the agent, which is always observed; the rest comes from its trace.
    """

    type_name: ClassVar[str] = "efficiency"
    origin: ClassVar[str] = "Touchstone"

    target_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The cost of the agent's models that earns the full score, in US dollars.

    Example: `0.1`
    """
    target_tokens: Annotated[int, Field(ge=0)] | None = None
    """The tokens that earn the full score, of input and output together.

    Example: `20000`
    """
    target_tool_calls: Annotated[int, Field(ge=0)] | None = None
    """The calls of tools that earn the full score.

    Example: `10`
    """
    target_seconds: Duration | None = None
    """The seconds of the agent's run that earn the full score.

    Example: `30`
    """
    pass_threshold: float = Field(default=0.8, ge=0, le=1, allow_inf_nan=False)
    """The lowest score that passes the check.

    Example: `0.5`
    """

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if not self._targets():
            raise PydanticCustomError("missing_target", f"expected at least one of {', '.join(_FIELDS.values())}")
        return self

    def _targets(self) -> dict[Metric, float]:
        given = {metric: getattr(self, field) for metric, field in _FIELDS.items()}
        return {metric: target for metric, target in given.items() if target is not None}

    async def evaluate(self, context: CheckContext) -> Outcome:
        return _grade(self._targets(), measure_spending(context.evidence), self.pass_threshold)


def ramp(target: float, actual: float) -> float:
    """1.0 at or under the target, target/actual above it; both finite and at least 0."""
    return 1.0 if is_at_most(actual, target) else target / actual


def _grade(targets: dict[Metric, float], spending: CellSpending, threshold: float) -> Outcome:
    if spending.problem and targets.keys() - {"seconds"}:
        return failed(f"{spending.problem}.")
    if spending.unsure and "tool_calls" in targets:
        return broken(f"tool_calls: {spending.unsure}.")
    observed = {metric: amount for metric in targets if (amount := spending.of(metric)) is not None}
    unobserved = [WORDS[metric] for metric in targets if metric not in observed]
    note = f"Not observed: {', '.join(unobserved)}." if unobserved else ""
    if not observed:
        return skipped(note)
    parts = {metric: ramp(targets[metric], amount) for metric, amount in observed.items()}
    score = sum(parts.values()) / len(parts)
    lines = [f"Efficiency {score:.2f}; {threshold:.2f} or more passes."]
    lines += [
        f"{WORDS[metric]}: {shown_amount(amount)} for a target of {shown_amount(targets[metric])} "
        f"gives {parts[metric]:.2f}."
        for metric, amount in observed.items()
    ]
    return (passed if score >= threshold - _TOLERANCE else failed)(
        "\n".join([*lines, note] if note else lines),
        score=score,
        targets=dict(targets),
        observed=dict(observed),
        scores=dict(parts),
        not_observed=unobserved,
        pass_threshold=threshold,
    )
