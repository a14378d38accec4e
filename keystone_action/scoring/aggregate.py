"""From cells to groups, specs and the run: the one place for a run, a shard and joined shards. Pure.

Replicas of one scenario with one parameter set are a group; `replica_aggregation` decides each group, and only groups
can be flaky. A spec's verdict is its worst group's, unless `scoring.scenarios` asks for a share of its scenarios; the
run's is its worst spec's (contract, sections 3, 5.1 and 5.8).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from keystone_action.errors import EXIT_CANCELLED, EXIT_ERROR, EXIT_FAIL, EXIT_PASS
from keystone_action.scoring.composite import SCORE_TOLERANCE, below, opening_line, weighted_mean
from keystone_action.scoring.fields import USAGE_NAMES, Verdict
from keystone_action.scoring.results import (
    CellResult,
    GroupResult,
    PassRate,
    RunResult,
    SandboxInfo,
    SpecResult,
    StoppingRule,
)
from keystone_action.scoring.sequential import Aggregation, is_decided, meets, stopped_pass_rate

_SEVERITY: dict[Verdict, int] = {"pass": 0, "flaky": 1, "fail": 2, "error": 3}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """error > fail > flaky > pass; pass of nothing (the caller refuses empty runs)."""
    return max(verdicts, key=_SEVERITY.__getitem__, default="pass")


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is there; None when nothing is."""
    present = [value for value in values if value is not None]
    return min(math.fsum(present) / len(present), max(present)) if present else None


def group_key(cell: CellResult) -> tuple[str, str]:
    """What makes cells replicas of each other: the scenario and the parameters."""
    return cell.scenario, json.dumps(cell.params, sort_keys=True, default=str)


def aggregate_groups(
    cells: Sequence[CellResult],
    aggregation: Aggregation,
    threshold: float,
    stopping: StoppingRule | None = None,
    not_run: Collection[str] = (),
) -> tuple[GroupResult, ...]:
    """One result for each scenario × parameter set, in the order in which they first come. not_run: the ids of the
    cells that were planned and did not have to run."""
    spared = Counter(map(group_name, not_run))
    return tuple(
        _group(members, aggregation, threshold, stopping, spared[group_name(members[0].id)])
        for members in by_group(cells)
    )


def group_name(cell_id: str) -> str:
    """What the ids of all replicas of a group begin with."""
    return cell_id.rpartition(".r")[0]


def by_group(cells: Iterable[CellResult]) -> list[list[CellResult]]:
    """The replicas of each group, in the order in which the groups first come."""
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(group_key(cell), []).append(cell)
    return list(groups.values())


def outcome_of(cell: CellResult) -> bool | None:
    """Whether it passed; None where it could not be graded."""
    return None if cell.verdict == "error" else cell.verdict == "pass"


def stopped_early(cells: Sequence[CellResult], aggregation: Aggregation, stopping: StoppingRule | None) -> bool:
    """Whether these replicas decide their group, so that others did not have to run."""
    if stopping is None:
        return False
    ordered = sorted(cells, key=lambda cell: cell.replica)
    return is_decided(stopping, aggregation, map(outcome_of, ordered))


def _group(
    cells: Sequence[CellResult],
    aggregation: Aggregation,
    threshold: float,
    stopping: StoppingRule | None,
    spared: int,
) -> GroupResult:
    """spared: how many more replicas were planned."""
    if stopping is None or not spared or not stopped_early(cells, aggregation, stopping):
        return _decide_group(cells, aggregation, threshold, len(cells))
    found = _decide_group(cells, aggregation, threshold, stopping.max)
    decided = f"decided after {len(cells)} of {len(cells) + spared}"
    return replace(found, reason=f"{found.reason}; {decided}" if found.reason else decided, not_run=spared)


def _decide_group(cells: Sequence[CellResult], aggregation: Aggregation, threshold: float, most: int) -> GroupResult:
    passed = sum(cell.verdict == "pass" for cell in cells)
    composite = mean(cell.composite for cell in cells)
    errors = sum(cell.verdict == "error" for cell in cells)
    verdict: Verdict
    if errors:
        verdict, reason = "error", f"{errors} of {len(cells)} replicas could not be graded"
    elif aggregation == "mean" and _broken_decide(cells, threshold):
        verdict, reason = "error", f"mean {below(composite or 0.0, threshold)}, and checks that broke could reach it"
    elif not _meets_aggregation(aggregation, passed, len(cells), most, composite, threshold):
        verdict, reason = "fail", _unmet(aggregation, passed, len(cells), most, composite, threshold)
    elif passed < len(cells):
        verdict, reason = "flaky", f"{passed} of {len(cells)} replicas passed"
    else:
        verdict, reason = "pass", ""
    first = cells[0]
    if len(cells) == 1 and first.verdict != "pass":
        reason = first.reason or first.error or reason  # nobody repeated anything, so there are no replicas to count
    return GroupResult(first.scenario, first.params, verdict, composite, passed, len(cells), reason)


def _broken_decide(cells: Sequence[CellResult], threshold: float) -> bool:
    """Whether the mean of the replicas is too low as it is and would not be, had what broke scored 1: each of them is
    certain to fail, and the mean is not."""
    best = mean(weighted_mean(c.invariants, broken_as=1.0) if c.counted_as_zero else c.composite for c in cells)
    found = mean(cell.composite for cell in cells)
    return best is not None and found is not None and found < threshold - SCORE_TOLERANCE <= best


def _meets_aggregation(
    aggregation: Aggregation, passed: int, total: int, most: int, composite: float | None, threshold: float
) -> bool:
    if aggregation == "mean":
        return composite is not None and composite >= threshold - SCORE_TOLERANCE
    if isinstance(aggregation, int) and most == total:
        return passed >= aggregation
    return meets(aggregation, passed, total, most)


def _unmet(
    aggregation: Aggregation, passed: int, total: int, most: int, composite: float | None, threshold: float
) -> str:
    if aggregation == "mean":
        return f"mean {below(composite or 0.0, threshold)}"
    needed = {"all": "all", "any": "at least 1", "majority": "more than half"}.get(
        str(aggregation), f"at least {aggregation}{f' of {most}' if most > total else ''}"
    )
    return f"{passed} of {total} replicas passed, {needed} must"


def wilson(passed: int, total: int, z: float = 1.959963984540054) -> PassRate:
    """The rate and the 95 % score interval of Wilson (1927), which stays in [0, 1] for few replicas."""
    rate = passed / total
    scale = 1 + z * z / total
    centre = (rate + z * z / (2 * total)) / scale
    spread = z * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total)) / scale
    return PassRate(rate, max(0.0, min(rate, centre - spread)), min(1.0, max(rate, centre + spread)), total)


def pass_rate(cells: Sequence[CellResult]) -> PassRate | None:
    """The share of graded cells that passed, with its interval; None when none was graded."""
    graded = [cell for cell in cells if cell.verdict != "error"]
    return wilson(sum(cell.verdict == "pass" for cell in graded), len(graded)) if graded else None


def count_graded(cells: Iterable[CellResult]) -> list[tuple[int, int]]:
    """(passed, graded) of each group of replicas, in the order in which they first come."""
    found = [[outcome_of(cell) for cell in members] for members in by_group(cells)]
    return [(outcomes.count(True), len(outcomes) - outcomes.count(None)) for outcomes in found]


def count_results(specs: Sequence[SpecResult]) -> dict[str, int]:
    """The `counts` of a run: scenarios, cells by verdict, and checks that were skipped or broke."""
    cells = [cell for spec in specs for cell in spec.cells]
    statuses = Counter(check.status for cell in cells for check in cell.invariants)
    return {
        "scenarios": len({(spec.id, cell.scenario) for spec in specs for cell in spec.cells}),
        "cells": len(cells),
        "passed": sum(cell.verdict == "pass" for cell in cells),
        "failed": sum(cell.verdict == "fail" for cell in cells),
        "errors": sum(cell.verdict == "error" for cell in cells),
        "skipped_checks": statuses["skip"],
        "broken_checks": statuses["error"],
    }


def add_usage(usages: Iterable[Mapping[str, float | None]], keys: Sequence[str]) -> dict[str, float | None]:
    """Sums over cells. A key that no cell has is 0. Money that is unknown (None) of one cell is unknown of all of them,
    since a sum that is too low would be believed; of tokens and calls what is known is counted."""
    found = list(usages)
    return {key: _sum([usage.get(key, 0) for usage in found], money=key.endswith("usd")) for key in keys}


def with_money_of(result: CellResult, earlier: CellResult) -> CellResult:
    """The result of a cell, with what an earlier attempt at it was paid for too: it was spent all the same."""
    spent = add_usage([earlier.usage, result.usage], ("spent_usd",))
    judged = [earlier.judge_usage, result.judge_usage]
    names = dict.fromkeys(name for usage in judged for name in usage)
    unpriced = tuple(dict.fromkeys([*earlier.unpriced, *result.unpriced]))
    judges = tuple(dict.fromkeys([*earlier.judge_unpriced, *result.judge_unpriced]))
    judge_usage = add_usage(judged, tuple(names))
    usage = result.usage | spent
    return replace(result, usage=usage, judge_usage=judge_usage, unpriced=unpriced, judge_unpriced=judges)


def with_tries_of(result: CellResult, earlier: CellResult) -> CellResult:
    """The result of a cell that `--resume` ran again, with the tries of an earlier call, and why they were not enough.
    One that was not run now has those of now: none."""
    if not (result.attempts and earlier.attempts):
        return result
    tries = "once" if earlier.attempts == 1 else f"{earlier.attempts:,} times"
    notice = f"run {tries} before it was resumed: {opening_line(earlier.reason or earlier.error or earlier.verdict)}"
    return replace(result, attempts=earlier.attempts + result.attempts, notices=(notice, *result.notices))


def paid(cell: CellResult) -> float:
    """US dollars for the agent and the judges of a cell, as far as they are known."""
    return (cell.usage.get("spent_usd") or 0) + (cell.judge_usage.get("cost_usd") or 0)


def _sum(amounts: Sequence[float | None], *, money: bool) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    if amounts and (not known or (money and len(known) < len(amounts))):
        return None
    return math.fsum(known) if money else int(sum(known))


def exit_code_of(run: RunResult, fail_on: str = "threshold") -> int:
    """0 pass or flaky, 1 fail, 3 error, 130 cancelled. `fail_on` of `error` or `never` lets a fail end with 0, `error`
    only one beside which no check broke; `regression` asks the baseline instead of the verdict, where there is one; an
    error is never hidden."""
    if run.cancelled:
        return EXIT_CANCELLED
    if run.verdict == "error":
        return EXIT_ERROR
    if fail_on == "regression" and run.baseline is not None:
        return EXIT_FAIL if run.baseline.regressions else EXIT_PASS
    if run.verdict == "fail":
        broken = any(cell.broken_beside or cell.verdict == "error" for spec in run.specs for cell in spec.cells)
        return EXIT_PASS if fail_on == "never" or (fail_on == "error" and not broken) else EXIT_FAIL
    return EXIT_PASS


_EGRESS: tuple[Literal["ports", "namespace", "container"], ...] = ("ports", "namespace", "container")
"""From the weakest way to keep `network.egress: deny` to the strongest."""


def weakest(sandboxes: Collection[SandboxInfo]) -> SandboxInfo:
    """What isolated every agent: of several machines, calls or sandboxes only what all of them had, and every sentence
    on what one of them can't do."""
    processes = [sandbox for sandbox in sandboxes if sandbox.kind == "process"]
    chosen = processes or list(sandboxes)
    if not chosen:
        return SandboxInfo()
    isolation = tuple(name for name in chosen[0].isolation if all(name in one.isolation for one in chosen))
    return SandboxInfo(
        kind=chosen[0].kind,
        isolation=isolation or ("none",),
        limits="watched" if any(sandbox.limits == "watched" for sandbox in chosen) else "enforced",
        not_enforced=tuple(dict.fromkeys(sentence for sandbox in sandboxes for sentence in sandbox.not_enforced)),
        egress=next((way for way in _EGRESS if any(one.egress == way for one in sandboxes)), None),
    )


JUDGE_USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "requests",
    "cached",
)


@dataclass(frozen=True, slots=True)
class ScenarioTally:
    """How the scenarios of a spec ended. One of which a group failed did not pass, whatever is in error beside it.
    verdict: of the spec."""

    passed: int
    ungraded: int
    total: int
    flaky: bool
    rate: Fraction

    @property
    def needed(self) -> int:
        """How many must pass."""
        return math.ceil(self.rate * self.total)

    @property
    def verdict(self) -> Verdict:
        """A scenario in error decides as long as the share could be reached with it and is not reached without."""
        if self.passed >= self.needed:
            return "flaky" if self.flaky else "pass"
        return "error" if self.passed + self.ungraded >= self.needed else "fail"


def tally_scenarios(spec: SpecResult) -> ScenarioTally | None:
    """The scenarios of a spec that a share decides; None where all must pass, or there is none. Raises ValueError for
    an unknown rule."""
    rate = share_of(spec.scenarios)
    by_scenario: dict[str, list[Verdict]] = {}
    for group in spec.groups:
        by_scenario.setdefault(group.scenario, []).append(group.verdict)
    if rate is None or not by_scenario:
        return None
    counts = Counter("fail" if "fail" in verdicts else worst(verdicts) for verdicts in by_scenario.values())
    passed = counts["pass"] + counts["flaky"]
    return ScenarioTally(passed, counts["error"], len(by_scenario), counts["flaky"] > 0, rate)


def _with_share(spec: SpecResult) -> SpecResult:
    """The spec with the verdict that the share of its scenarios comes to, where it has such a rule."""
    tally = tally_scenarios(spec)
    if tally is None:
        return replace(spec, scenario_rate=None)
    graded = tally.total - tally.ungraded
    return replace(spec, verdict=tally.verdict, scenario_rate=wilson(tally.passed, graded) if graded else None)


def decide_spec(head: SpecResult, cells: Sequence[CellResult], not_run: Collection[str] = ()) -> SpecResult:
    """The spec with these cells, in their order, and all that follows from them. `head` gives the threshold and the
    rules for replicas and scenarios. not_run: the ids of the run's cells that did not have to run. Raises ValueError
    for an unknown rule."""
    rule = rule_of(head.replica_aggregation)
    groups = aggregate_groups(cells, rule, head.pass_threshold, head.stopping, not_run)
    rate = pass_rate(cells) if head.stopping is None else stopped_pass_rate(count_graded(cells))
    decided = replace(
        head,
        verdict=worst(group.verdict for group in groups) if groups else "error",
        composite=mean(cell.composite for cell in cells),
        pass_rate=rate,
        cells=tuple(cells),
        groups=groups,
    )
    return _with_share(decided)


def decide_run(head: RunResult, specs: Sequence[SpecResult]) -> RunResult:
    """The run with these specs, and all that follows from them. `head` says whether it was cancelled: then there is
    no verdict on the agent, and what finished is in the cells."""
    cells = [cell for spec in specs for cell in spec.cells]
    return replace(
        head,
        specs=tuple(specs),
        verdict="error" if head.cancelled else worst(spec.verdict for spec in specs),
        composite=mean(spec.composite for spec in specs),
        counts=count_results(specs),
        usage=add_usage((cell.usage for cell in cells), USAGE_NAMES),
        judge_usage=add_usage((cell.judge_usage for cell in cells), JUDGE_USAGE_KEYS),
    )


def rule_name(rule: Aggregation) -> str:
    """The rule for replicas as results have it: `all`, `at least 2`."""
    return rule if isinstance(rule, str) else f"at least {rule}"


_AT_LEAST = re.compile(r"at least ([1-9][0-9]{0,8})")


def rule_of(name: str) -> Aggregation:
    """The inverse of `rule_name`. Raises ValueError."""
    match name:
        case "all" | "any" | "majority" | "mean":
            return name
    number = _AT_LEAST.fullmatch(name)
    if number is None:
        raise ValueError(f"{name[:60]!r} is not a rule for replicas")
    return int(number[1])


_SHARE = re.compile(r"at least ([0-9][0-9.e-]{0,30})")


def share_name(rate: float) -> str:
    """A share of scenarios as results have it: `at least 0.9`. The inverse of `share_of`."""
    return f"at least {rate!r}"


def share_of(name: str) -> Fraction | None:
    """The share as its author wrote it, so that 0.9 of 10 is 9; None for `all`. Raises ValueError."""
    if name == "all":
        return None
    found = _SHARE.fullmatch(name)
    try:
        rate = float(found[1]) if found is not None else math.nan
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise ValueError(f"{name[:60]!r} is not a rule for scenarios")
    return Fraction(repr(rate))  # of the float: what somebody else wrote may have any exponent
