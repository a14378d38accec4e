"""What agents and judges took, in words, beside the baseline's: tokens, requests, calls of tools, money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keystone_action.report.escape import first_line
from keystone_action.scoring.results import BaselineComparison, CellResult, RunResult

MAX_MODELS = 5
_MAX_NAME = 60
_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")

_Usage = Mapping[str, float | None]


def cost_facts(run: RunResult) -> Iterator[str]:
    """One fact for the agents and one for the judges, each only where there is something to say."""
    cells = [cell for spec in run.specs for cell in spec.cells]
    before = run.baseline if run.baseline is not None and _is_comparable(run.baseline) else None
    asked = tuple(dict.fromkeys(model for cell in cells for model in cell.unpriced))
    agents = ", ".join(_amounts(run.usage, None if before is None else before.usage, asked))
    if agents:
        yield f"{_who(cells)}: {agents}"
    judged = tuple(dict.fromkeys(model for cell in cells for model in cell.judge_unpriced))
    judges = ", ".join(_amounts(run.judge_usage, None if before is None else before.judge_usage, judged))
    if judges:
        yield f"judges: {judges}"


def _who(cells: Sequence[CellResult]) -> str:
    """`agent`, `agents, by their own word`: what no gateway saw can be any number."""
    sources = {cell.trace.source for cell in cells}
    who, whose = ("agent", "its") if len(cells) == 1 else ("agents", "their")
    if "agent" not in sources:
        return who
    return f"{who}, {'partly ' if 'gateway' in sources else ''}by {whose} own word"


def cell_cost(cell: CellResult) -> str:
    """The same for the agent of one cell; empty where there is nothing to say."""
    return ", ".join(_amounts(cell.usage, None, cell.unpriced))


def _is_comparable(baseline: BaselineComparison) -> bool:
    return not (baseline.partial or baseline.partial_baseline)


def _amounts(usage: _Usage, before: _Usage | None, models: tuple[str, ...]) -> Iterator[str]:
    earlier = before or {}
    if (tokens := _tokens(usage)) is not None and tokens:
        yield _beside(f"{short_count(tokens)} tokens", _count_of(_tokens(earlier)))
    for name, noun in (("requests", "request"), ("tool_calls", "tool call")):
        if number := int(usage.get(name) or 0):
            yield _beside(f"{number:,} {noun}{'' if number == 1 else 's'}", _count_of(earlier.get(name)))
    yield from _cost(usage, earlier.get("cost_usd"), models)


def _cost(usage: _Usage, before: float | None, models: tuple[str, ...]) -> Iterator[str]:
    cost, paid = usage.get("cost_usd", 0), usage.get("spent_usd", usage.get("cost_usd", 0))
    if cost is None:
        # Of an agent that nobody saw asking a model there is nothing to say.
        if models or any(usage.get(name) for name in (*_TOKENS, "requests")):
            yield _beside(f"cost unknown{_because_of(models)}", money(before) if before else "")
    elif cost or usage.get("requests"):
        yield _beside(money(cost), money(before) if before else "")
    if cost is not None and paid is not None and abs(paid - cost) > 1e-9:
        yield f"{money(paid)} of it spent now" if paid < cost else f"{money(paid)} with what was tried again"


def _because_of(models: tuple[str, ...]) -> str:
    shown = [first_line(model, _MAX_NAME) for model in models[:MAX_MODELS]]
    more = f" and {len(models) - MAX_MODELS} more" if len(models) > MAX_MODELS else ""
    return f": no price for {', '.join(shown)}{more}" if shown else ""


def _tokens(usage: _Usage) -> float | None:
    """Of all kinds that are known; None when none is."""
    known = [amount for name in _TOKENS if (amount := usage.get(name)) is not None]
    return sum(known) if known else None


def _count_of(number: float | None) -> str:
    return short_count(number) if number else ""


def _beside(text: str, baseline: str) -> str:
    return f"{text} (baseline {baseline})" if baseline else text


def short_count(number: float) -> str:
    """`870`, `12.3k`, `1.2M`."""
    for limit, divisor, unit in ((1e3, 1, ""), (999_950, 1e3, "k"), (999_950_000, 1e6, "M")):
        if number < limit:
            return f"{number:,.0f}" if divisor == 1 else f"{number / divisor:.1f}{unit}"
    return f"{number / 1e9:,.1f}G"


def money(dollars: float) -> str:
    """US dollars with as many digits as say something: `$0.42`, `$0.0042`."""
    if 0 < dollars < 0.00005:
        return "under $0.0001"
    return f"${dollars:,.2f}" if dollars >= 0.00995 or not dollars else f"${dollars:.4f}"
