"""`budget`: what the agent may spend (spec.md 5.3)."""

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

_FIELDS: dict[Metric, str] = {
    "cost_usd": "max_cost_usd",
    "tokens": "max_tokens",
    "seconds": "max_seconds",
    "tool_calls": "max_tool_calls",
}


class Budget(Check):
    """Passes when the agent kept within every limit on money, tokens, time and calls that is given.

    Give at least one limit. The score is the share of limits that were kept. A limit whose amount was not observed
    leaves the score and is named; with none observed the check is skipped. Seconds are the run of the agent, which is
    always observed; the rest comes from its trace.
    """

    type_name: ClassVar[str] = "budget"

    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How much the agent's models may cost, in US dollars.

    Example: `0.25`
    """
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """How many tokens the agent may use, of input and output together.

    Example: `50000`
    """
    max_seconds: Duration | None = None
    """How many seconds the agent may run.

    Example: `60`
    """
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    """How many calls of tools the agent may make.

    Example: `20`
    """

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if not self._limits():
            raise PydanticCustomError("missing_limit", f"expected at least one of {', '.join(_FIELDS.values())}")
        return self

    def _limits(self) -> dict[Metric, float]:
        given = {metric: getattr(self, field) for metric, field in _FIELDS.items()}
        return {metric: limit for metric, limit in given.items() if limit is not None}

    async def evaluate(self, context: CheckContext) -> Outcome:
        return _grade(self._limits(), measure_spending(context.evidence))


def _grade(limits: dict[Metric, float], spending: CellSpending) -> Outcome:
    if spending.problem and limits.keys() - {"seconds"}:
        return failed(f"{spending.problem}.")
    if spending.unsure and "tool_calls" in limits:
        return broken(f"tool_calls: {spending.unsure}.")
    observed = {metric: amount for metric in limits if (amount := spending.of(metric)) is not None}
    unobserved = [WORDS[metric] for metric in limits if metric not in observed]
    note = f"Not observed: {', '.join(unobserved)}." if unobserved else ""
    if not observed:
        return skipped(note)
    over = [metric for metric, amount in observed.items() if not is_at_most(amount, limits[metric])]
    lines = [
        f"{WORDS[metric]}: {shown_amount(amount)}, {'above' if metric in over else 'within'} {_FIELDS[metric]} "
        f"{shown_amount(limits[metric])}."
        for metric, amount in observed.items()
    ]
    score = (len(observed) - len(over)) / len(observed)
    message = "\n".join([*lines, note] if note else lines)
    return (failed if over else passed)(
        message, score=score, limits=dict(limits), observed=dict(observed), not_observed=unobserved
    )
