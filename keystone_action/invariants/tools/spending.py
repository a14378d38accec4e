"""What a cell spent, as far as it was observed: dollars, tokens, tool calls, seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from keystone_action.evidence.model import Evidence
from keystone_action.spec.limits import MOST_COUNTED

Metric = Literal["cost_usd", "tokens", "tool_calls", "seconds"]
WORDS: Mapping[Metric, str] = {
    "cost_usd": "cost in US dollars",
    "tokens": "tokens",
    "tool_calls": "tool calls",
    "seconds": "seconds",
}


@dataclass(frozen=True, slots=True)
class CellSpending:
    """amounts: each finite and at least 0; one that was not observed is not in it. problem: why the trace that was
    declared can't be used, without a full stop; then `seconds` alone are known. unsure: why the number of tool calls is
    not certain; empty where it is."""

    amounts: Mapping[Metric, float]
    problem: str = ""
    unsure: str = ""

    def of(self, metric: Metric) -> float | None:
        """The amount, None when it was not observed."""
        return self.amounts.get(metric)


def measure_spending(evidence: Evidence) -> CellSpending:
    """What was spent. Seconds are ours and always there; the others are what the trace tells."""
    trace = evidence.observed
    problem = trace.problem if trace is not None else ""
    found: dict[Metric, float | None] = {"seconds": evidence.agent.duration_s}
    if trace is not None and not problem:
        found |= {
            "cost_usd": trace.usage.cost_usd,
            "tokens": trace.usage.tokens,
            "tool_calls": None if trace.tool_calls is None else len(trace.tool_calls),
        }
    known = {metric: amount for metric, amount in found.items() if amount is not None}
    for metric, amount in known.items():
        if not 0 <= amount < MOST_COUNTED:
            malformed = f"the trace is malformed: expected a finite number of at least 0 as {WORDS[metric]}"
            return CellSpending({"seconds": evidence.agent.duration_s}, malformed)
    return CellSpending(known, problem, trace.calls_unsure if trace is not None else "")


def within(amount: float, limit: float) -> bool:
    """At or under a limit; sums of cents that differ in their last bit only are equal."""
    return amount <= limit or math.isclose(amount, limit, rel_tol=1e-9)


def shown_amount(amount: float) -> str:
    """`12,000`, `0.3`, `0.000125`."""
    if amount == int(amount):
        return f"{int(amount):,}"
    text = f"{amount:,.6f}".rstrip("0")
    return text if text.strip("0.,") else f"{amount:g}"
