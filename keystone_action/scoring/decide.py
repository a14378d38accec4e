"""The verdict of specs and of a run from their cells: the one place for a run, a shard and joined shards. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from keystone_action.scoring import aggregate
from keystone_action.scoring.fields import USAGE
from keystone_action.scoring.intervals import composite_interval
from keystone_action.scoring.replicas import reliability, smallest_drop
from keystone_action.scoring.results import CellResult, RunResult, SpecResult

JUDGE_USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "requests",
    "cached",
)

_AT_LEAST = re.compile(r"at least ([1-9][0-9]{0,8})")


def decide_spec(head: SpecResult, cells: Sequence[CellResult]) -> SpecResult:
    """The spec with these cells, in their order, and all that follows from them. `head` gives the threshold and the
    rule for replicas. Raises ValueError for an unknown rule."""
    groups = aggregate.aggregate_groups(cells, rule_of(head.replica_aggregation), head.pass_threshold)
    return replace(
        head,
        verdict=aggregate.worst(group.verdict for group in groups) if groups else "error",
        composite=aggregate.mean(cell.composite for cell in cells),
        pass_rate=aggregate.pass_rate(cells),
        cells=tuple(cells),
        groups=groups,
    )


def with_certainty(spec: SpecResult) -> SpecResult:
    """The decided spec, and how sure its figures are: for reports alone, no verdict asks for it."""
    graded = aggregate.count_graded(spec.cells)
    return replace(
        spec,
        composite_interval=composite_interval(spec.cells),
        reliability=reliability(graded),
        smallest_drop=smallest_drop(graded),
    )


def decide_run(head: RunResult, specs: Sequence[SpecResult]) -> RunResult:
    """The run with these specs, and all that follows from them. `head` says whether it was cancelled: then there is
    no verdict on the agent, and what finished is in the cells."""
    cells = [cell for spec in specs for cell in spec.cells]
    return replace(
        head,
        specs=tuple(specs),
        verdict="error" if head.cancelled else aggregate.worst(spec.verdict for spec in specs),
        composite=aggregate.mean(spec.composite for spec in specs),
        counts=aggregate.count(specs),
        usage=aggregate.add_usage((cell.usage for cell in cells), USAGE),
        judge_usage=aggregate.add_usage((cell.judge_usage for cell in cells), JUDGE_USAGE_KEYS),
    )


def rule_name(rule: aggregate.Aggregation) -> str:
    """The rule for replicas as results have it: `all`, `at least 2`."""
    return rule if isinstance(rule, str) else f"at least {rule}"


def rule_of(name: str) -> aggregate.Aggregation:
    """The inverse of `rule_name`. Raises ValueError."""
    match name:
        case "all" | "any" | "majority" | "mean":
            return name
    number = _AT_LEAST.fullmatch(name)
    if number is None:
        raise ValueError(f"{name[:60]!r} is no rule for replicas")
    return int(number[1])
