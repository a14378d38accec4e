"""What differs between a run and an earlier one, and between a change and its base commit: as `results.json` has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from keystone_action.scoring.fields import (
    ExpectedCount,
    JudgeUsageAmounts,
    ResultCount,
    ResultText,
    ResultTexts,
    ResultValues,
    Score,
    UsageAmounts,
    Verdict,
    nothing_judged,
    nothing_used,
)


@dataclass(frozen=True, slots=True)
class SpecChange:
    """A spec, or a workflow, that differs from the base commit."""

    path: ResultText
    """The file, relative to where the program was called."""
    change: Literal["changed", "added", "deleted"]
    differences: ResultTexts = ()
    """A sentence each (`threshold 0.85 → 0.5`, `changed files: hidden/test_x.py (+3 −10)`), first what can let more
    pass; none for a spec that was added or deleted."""


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a change does to its own gate (contract, 5.4): specs, and the files that they name, against the base
    commit."""

    base: ResultText | None
    """The sha of the base commit; None when there is none."""
    base_name: ResultText
    """What the base commit is, in words."""
    spec_from: Literal["head", "base"] = "head"
    """Where the specs of this run come from."""
    specs: tuple[SpecChange, ...] = ()
    problem: ResultText = ""
    """Why the comparison could not be made, and what to do; empty when it was made."""
    workflows: tuple[SpecChange, ...] = ()
    """Workflows that call us, and a baseline in the repository; all of them are `changed`."""
    incomplete: ResultText = ""
    """What was not compared, and why; empty when nothing was left out."""


ComparedOutcome = Literal["pass", "flaky", "fail", "error", "skip"]
ChangeKind = Literal["same", "fixed", "broken", "flaky", "steadied", "ungraded", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A spec, a group of replicas, or one invariant of a group, in the baseline (before) and in this run (after)."""

    change: ChangeKind
    spec: ResultText
    scenario: ResultText | None
    """None for a spec."""
    params: ResultValues
    invariant: ResultText | None
    """None for a spec and for a group."""
    before: ComparedOutcome | None
    """None where the baseline does not have it."""
    after: ComparedOutcome | None
    """None where this run does not have it."""
    score_before: Score | None = None
    """The mean over what was graded."""
    score_after: Score | None = None
    passed_before: ResultCount = 0
    """How many of `total_before` passed: graded cells, or an invariant's graded results."""
    total_before: ResultCount = 0
    passed_after: ResultCount = 0
    total_after: ResultCount = 0
    p_value: Score | None = None
    """How probable so large a difference is by chance alone, in either direction; None where nothing was repeated."""
    p_worse: Score | None = None
    """How probable so few passes are by chance alone (one-sided exact test); None with fewer than 5 replicas on a side,
    and for a spec."""
    regression: Literal["flip", "test"] | None = None
    """Why this counts for `fail-on: regression`: `test` where p_worse is below 0.05, `flip` for what passed there and
    fails here with fewer replicas; None where it doesn't count."""
    replicas_before: ResultCount = 0
    """The replicas of the group, graded or not; of a spec its cells. 0 of a group that stopped when it was decided."""
    replicas_after: ResultCount = 0


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """This run beside an earlier one."""

    source: ResultText
    """Where the earlier results were found, in words."""
    verdict: Verdict
    """The earlier run's, as the next three are."""
    composite: Score | None
    git_sha: ResultText | None
    started_at: ResultText
    specs: tuple[Difference, ...]
    """All specs of both runs."""
    groups: tuple[Difference, ...]
    """The groups that differ."""
    invariants: tuple[Difference, ...]
    """The invariants that differ."""
    changed_specs: ResultTexts = ()
    """The ids of specs whose files were different ones."""
    partial: bool = False
    """This run has only a part of the cells, so nothing is said to be gone."""
    partial_baseline: bool = False
    """The earlier run has only a part of the cells, so what is new may only not have run there."""
    regressions: ResultCount = 0
    """How many groups and invariants count as worse, also under another name."""
    usage: UsageAmounts = field(default_factory=nothing_used)
    """What the earlier run used, as `judge_usage` is."""
    judge_usage: JudgeUsageAmounts = field(default_factory=nothing_judged)
    tests: ResultCount = 0
    """How many of the groups and invariants have 5 or more replicas on both sides."""
    false_alarms: ExpectedCount = 0.0
    """How many of these the exact test would call worse on average if nothing had changed."""
    changed_rules: ResultTexts = ()
    """Thresholds and rules for replicas that were different there (`small: threshold 0.85 → 0.95`)."""
