"""What stands beside a verdict, in plain sentences: how sure the figures are (each with its n), how much of what it
should look at a check did look at, what was replayed, and what agents and judges took beside the baseline's.

Nothing is said where there is nothing to say: of a single cell, or of replicas that all ended alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystone_action.report import words
from keystone_action.report.escape import first_line
from keystone_action.scoring.differences import BaselineComparison
from keystone_action.scoring.results import (
    CellResult,
    InvariantResult,
    Reliability,
    RunResult,
    SmallestDrop,
    SpecResult,
    TraceInfo,
)
from keystone_action.scoring.statistics import FEWEST_FOR_TEST

_SHOWN_TRIES = 3


def certainty(spec: SpecResult) -> list[str]:
    """Plain text, a sentence or clause each without its end, nothing escaped."""
    return [*_stopped(spec), *_interval(spec), *_reliability(spec.reliability), *_drop(spec.smallest_drop)]


def _stopped(spec: SpecResult) -> Iterator[str]:
    """How many replicas did not have to run."""
    early = [group for group in spec.groups if group.not_run]
    if not early:
        return
    ran, spared = sum(group.total for group in early), sum(group.not_run for group in early)
    if len(spec.groups) == 1:
        yield f"decided after {ran:,} of {words.count(ran + spared, 'replica')}"
    else:
        of = f"{len(early):,} of {len(spec.groups):,} groups"
        yield f"{of} decided early: {words.count(spared, 'replica')} of {ran + spared:,} did not have to run"


def _interval(spec: SpecResult) -> Iterator[str]:
    interval = spec.composite_interval
    if interval is not None and spec.composite is not None:
        low, high = words.score(interval.low), words.score(interval.high)
        over = words.count(interval.n, interval.unit.removesuffix("s"))
        yield f"composite {words.score(spec.composite)}, 95% interval {low}–{high} over {over}"


def _reliability(found: Reliability | None) -> Iterator[str]:
    if found is None:
        return
    k = min(_SHOWN_TRIES, len(found.pass_at_k), len(found.pass_hat_k))
    if k < 2 or found.pass_at_k[0] in (0, 1):
        return
    replicas = words.count(found.replicas, "replica")
    of = f"{replicas} of each of {found.groups:,} groups" if found.groups > 1 else replicas
    at, hat = words.score(found.pass_at_k[k - 1]), words.score(found.pass_hat_k[k - 1])
    yield f"pass@1 {words.score(found.pass_at_k[0])}, pass@{k} {at}, pass^{k} {hat} (n = {of})"


def _drop(found: SmallestDrop | None) -> Iterator[str]:
    if found is None:
        return
    replicas = words.count(found.replicas, "replica")
    if found.replicas < FEWEST_FOR_TEST:
        yield f"{replicas} are too few to tell a drop from noise: {FEWEST_FOR_TEST} are needed"
    elif found.drop is None:
        yield f"with {replicas} and a pass rate of {words.percent(found.rate)} no drop would show"
    else:
        points = found.drop * 100
        yield f"with {replicas} only a drop of {f'{points:.0f}' if points >= 1 else f'{points:.2g}'} points would show"


_AMOUNTS = {"efficiency": ("targets", "target"), "budget": ("limits", "limit")}
"""Type → the key of its details that names what was asked for, and one of that in words."""


def coverage(check: InvariantResult) -> str:
    """`1 of 3 targets`; empty where a check saw everything, or where it does not say."""
    if check.status not in ("pass", "fail"):
        return ""
    if check.type in _AMOUNTS:
        key, noun = _AMOUNTS[check.type]
        return _of_amounts(check.details, key, noun)
    if check.type == "trace":
        return _of_assertions(check.details)
    return _of_tests(check.details) if check.type == "tests" else ""


def _of_amounts(details: Mapping[str, Any], key: str, noun: str) -> str:
    asked, unseen = details.get(key), details.get("not_observed")
    if not isinstance(asked, Mapping) or not isinstance(unseen, Sequence) or isinstance(unseen, str):
        return ""
    total, missing = len(asked), len(unseen)
    return f"{total - missing} of {total} {noun}s" if 0 < missing < total else ""


def _of_assertions(details: Mapping[str, Any]) -> str:
    found = details.get("assertions")
    if not isinstance(found, Sequence) or isinstance(found, str):
        return ""
    seen = sum(isinstance(one, Mapping) and one.get("holds") is not None for one in found)
    return f"{seen:,} of {len(found):,} assertions" if 0 < seen < len(found) else ""


def _of_tests(details: Mapping[str, Any]) -> str:
    counts = [details.get(name) for name in ("passed", "failed", "errors", "skipped")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return ""
    *ran, skipped = (int(count or 0) for count in counts)
    return f"{sum(ran):,} of {sum(ran) + skipped:,} tests ran" if skipped and sum(ran) else ""


_MAX_DIFFERENCE = 200
_MISFITS = {"changed": "from a changed recording", "stale": "stale", "unused": "with nothing asked"}


def replay_warning(run: RunResult) -> str:
    """`replayed; 2 of 3 cells stale`; empty where all that was replayed fitted exactly."""
    cells = sum(len(spec.cells) for spec in run.specs)
    found = Counter[str | None](trace.replayed for trace in _replayed(run))
    said = [
        f"{found[fit]:,} of {words.count(cells, 'cell')} {what}" if cells > 1 else what
        for fit, what in _MISFITS.items()
        if found[fit]
    ]
    return "; ".join(["replayed", *said]) if said else ""


def replay_note(run: RunResult) -> str:
    """How many cells were replayed, from when, and how well that fitted; empty where none was."""
    found = list(_replayed(run))
    if not found:
        return ""
    days = sorted({trace.recorded_at[:10] for trace in found if trace.recorded_at})
    of_days = f" of {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    fits = Counter[str | None](trace.replayed for trace in found)
    fitted = ", ".join(f"{fits[fit]:,} {fit}" for fit in (*_MISFITS, "exact") if fits[fit])
    differs = next((first_line(trace.differs, _MAX_DIFFERENCE) for trace in found if trace.differs), "")
    first = f"; the first that differs: {differs}" if differs else ""
    return f"Replayed, no model was asked: {words.count(len(found), 'cell')} from recordings{of_days} ({fitted}){first}"


def _replayed(run: RunResult) -> Iterator[TraceInfo]:
    return (cell.trace for spec in run.specs for cell in spec.cells if cell.trace.replayed is not None)


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
