"""The outcome of a run, as `results.json` has it (shared contract, section 3): frozen data and no rules.

These classes are all that is said about the document: the order of its keys, the values that they hold, and, in
the docstrings, what its published schema says. `scoring/document.py` writes and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from keystone_action.scoring.fields import (
    Amounts,
    Count,
    Counts,
    Digests,
    Expected,
    JudgeUsage,
    Lines,
    Score,
    Seconds,
    Text,
    Texts,
    Usage,
    Values,
    Weight,
    nothing_judged,
    nothing_used,
)

Verdict = Literal["pass", "fail", "flaky", "error"]
Status = Literal["pass", "fail", "skip", "error"]
SCHEMA_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """One check of one cell. score is None for skip and error. `gate` is true, false or "passed" as in the spec;
    `disqualified`: this gate, or a check that says so itself, forced the composite to 0."""

    name: Text
    type: Text
    status: Status
    score: Score | None
    weight: Weight
    gate: bool | Literal["passed"]
    message: Text
    details: Values = field(default_factory=dict)
    duration_s: Seconds = 0.0
    description: Text = ""
    on_skip: Literal["error", "ignore"] | None = None
    disqualified: bool = False


@dataclass(frozen=True, slots=True)
class ForbiddenResult:
    """One forbidden rule of one cell. details: a line for each of the first violations."""

    rule: Text
    violated: bool
    details: Text = ""

    @property
    def name(self) -> str:
        """Of the rule, beside names of invariants, which have no dots."""
        return f"forbidden.{self.rule}"


Stopped = Literal["budget", "memory", "disk", "processes", "paths"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How the agent of a cell ended; `output` and `stderr` are bounded and masked. stopped: the limit that ended it,
    `budget` for one of `gateway.budget`, else one of the sandbox (`paths`: what it left can't be reached). note: why it
    ended ("was stopped at a limit (memory: 2.1 GiB used, 2.0 GiB allowed)"), or what was wrong with its output; empty
    when nothing is to say. failure: why its own transcript says that the run failed; empty where it does not."""

    exit_code: int | None
    timed_out: bool
    stopped: Stopped | None = field(default=None, kw_only=True)
    duration_s: Seconds
    output: Text
    stderr: Text = ""
    signal: int | None = None
    note: Text = ""
    failure: Text = ""

    @property
    def ended_well(self) -> bool:
        """Whether it ended by itself, with exit code 0, and does not say itself that it failed."""
        return self.exit_code == 0 and not self.timed_out and self.stopped is None and not self.failure


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Whose word the trace of a cell is: what the gateway saw, or what the agent says of itself. replayed: how well a
    recording fitted (`unused`: nothing was asked of it); None where nothing was replayed. recorded_at: when that
    recording was made. differs: what did not fit ("request 3 differs (turn)"), empty where nothing did."""

    source: Literal["gateway", "agent", "none"] = "none"
    replayed: Literal["exact", "stale", "changed", "unused"] | None = None
    recorded_at: Text | None = None
    differs: Text = ""


ENDS_ALIKE = "Another run would end alike."
"""The last sentence of an error that no other run changes, such as a key that is refused."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One finished cell. composite is None exactly when the verdict is `error`; reason says in a sentence why it is
    not a pass ("gate tests_pass scored 0.00", "composite 0.77 is below 0.85"). usage: what the agent took, None for
    what is unknown; `spent_usd` is what was paid for it in this run. unpriced, judge_unpriced: models without a price
    that the agent asked, and those that judged. attempts: how often it was run; 0 when it never was. counted_as_zero:
    the names of checks in error that the composite counts as 0, in a cell that fails whatever they would have
    scored."""

    id: Text
    scenario: Text
    params: Values
    replica: Count
    verdict: Literal["pass", "fail", "error"]
    composite: Score | None
    duration_s: Seconds
    error: Text | None
    agent: AgentResult | None
    trace: TraceInfo = field(default=TraceInfo(), kw_only=True)
    invariants: tuple[InvariantResult, ...]
    forbidden: tuple[ForbiddenResult, ...] = ()
    reason: Text = ""
    usage: Usage = field(default_factory=nothing_used)
    judge_usage: Amounts = field(default_factory=dict)
    unpriced: Texts = ()
    judge_unpriced: Texts = ()
    attempts: Count = 1
    notices: Texts = ()
    counted_as_zero: Texts = ()

    @property
    def broken_beside(self) -> tuple[InvariantResult, ...]:
        """The checks that broke beside a failure that is certain."""
        return tuple(one for one in self.invariants if one.status == "error") if self.verdict == "fail" else ()


@dataclass(frozen=True, slots=True)
class GroupResult:
    """All replicas of one scenario with one parameter set: what `replica_aggregation` decides on."""

    scenario: Text
    params: Values
    verdict: Verdict
    composite: Score | None
    passed: Count
    total: Count
    reason: Text = ""


@dataclass(frozen=True, slots=True)
class PassRate:
    """The share of the n graded cells that passed, with its 95 % Wilson interval. n is 0 in results of before it was
    written."""

    value: Score
    low: Score
    high: Score
    n: Count = 0


@dataclass(frozen=True, slots=True)
class CompositeInterval:
    """The 95 % interval of a spec's composite over n units: its scenarios, or the replicas where one scenario with one
    parameter set is all there is. method: `bootstrap` (BCa, seeded by the values) or, above a few hundred units, `abc`,
    its analytic form."""

    low: Score
    high: Score
    n: Count
    unit: Literal["scenarios", "replicas"]
    method: Literal["bootstrap", "abc"]


@dataclass(frozen=True, slots=True)
class Reliability:
    """What repeated tries come to. pass_at_k, pass_hat_k: the chance that of k tries at least one passes, and that all
    do; the first entry is for k = 1. Each is the mean of unbiased estimates over the groups, each of which has at least
    `replicas` graded replicas."""

    replicas: Count
    groups: Count
    pass_at_k: tuple[Score, ...]
    pass_hat_k: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class SmallestDrop:
    """What a later run with as many replicas would have to lose to be told from noise. replicas: the graded ones of the
    smallest group. rate: the pass rate that the drop is from: the only group's, else 1. drop: the smallest one for
    which the one-sided exact test at 5 % speaks; None where none would. drop_with_power: the smallest change of the
    true rate that is found four times in five; None where none is, and above 100 replicas."""

    replicas: Count
    rate: Score
    drop: Score | None
    drop_with_power: Score | None


@dataclass(frozen=True, slots=True)
class SpecResult:
    """One spec of a run. Its composite is the mean over its cells. pass_rate: None when no cell was graded.
    positions: the line of each invariant in the spec file, and of each forbidden rule as `forbidden.RULE`.
    composite_interval, reliability, smallest_drop: None where there are too few scenarios or replicas to say it."""

    id: Text
    path: Text
    sha256: Text
    threshold_source: Literal["spec", "input"]
    verdict: Verdict
    composite: Score | None
    pass_threshold: Score
    pass_rate: PassRate | None
    cells: tuple[CellResult, ...]
    groups: tuple[GroupResult, ...] = ()
    description: Text = ""
    replica_aggregation: Text = "all"
    positions: Lines = field(default_factory=dict)
    composite_interval: CompositeInterval | None = None
    reliability: Reliability | None = None
    smallest_drop: SmallestDrop | None = None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What isolated the agents. not_enforced: sentences for the report's head."""

    kind: Literal["process", "docker"] = "process"
    isolation: Texts = ("none",)
    limits: Literal["enforced", "watched"] = "watched"
    not_enforced: Texts = ()


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What a run is a part of, so that shards can be joined and none of them forgotten. shard: `i/N`; None for a run
    that is all of it. cells: of all shards together. digest: SHA-256 of the ids of all of them, in order
    (`plan.digest_of`). specs: id → sha256 of each spec that has cells. chosen: the tags, filter and parameters that
    cells were chosen by (`plan.Selection.chosen`). positions: of a shard, where each of its cells is among all of them,
    from 0."""

    shard: Text | None
    cells: Count
    digest: Text
    specs: Digests
    chosen: Texts = ()
    positions: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One spec, or workflow, that is not what it is at the base commit. path: of the file, relative to where it was
    called. differences: a sentence each (`threshold 0.85 → 0.5`, `changed files: hidden/test_x.py (+3 −10)`), what can
    let more pass first; none for a spec that was added or deleted."""

    path: Text
    change: Literal["changed", "added", "deleted"]
    differences: Texts = ()


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a change does to its own gate (contract, 5.4): the specs, and the files that they name, against the base
    commit. base: its sha, None when there is none. base_name: what it is, in words. spec_from: where the specs of this
    run come from. problem: why the comparison could not be made, and what to do; empty when it was. workflows: the same
    of workflows that call us and of a baseline in the repository; all of them are `changed`. incomplete: what was not
    compared, and why; empty when nothing was left out."""

    base: Text | None
    base_name: Text
    spec_from: Literal["head", "base"] = "head"
    specs: tuple[SpecChange, ...] = ()
    problem: Text = ""
    workflows: tuple[SpecChange, ...] = ()
    incomplete: Text = ""


Outcome = Literal["pass", "flaky", "fail", "error", "skip"]
ChangeKind = Literal["same", "fixed", "broken", "flaky", "steadied", "ungraded", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A spec, a group of replicas or one invariant of a group, in the baseline (before) and in this run (after).

    scenario: None for a spec. invariant: None for a spec and for a group. before, after: None where there is none.
    Scores are means in [0, 1] over what was graded; passed of total counts graded cells, of an invariant its graded
    results. p_value: how probable so large a difference is by chance alone, in either direction; None where there are
    no repetitions. p_worse: how probable so few passes are by chance alone (one-sided exact test); None with fewer than
    5 replicas on a side, and for a spec. replicas_before, replicas_after: of the group, graded or not; of a spec its
    cells. regression: why this counts for `fail-on: regression`: `test` where
    p_worse is below 0.05, `flip` for what passed there and fails here with fewer replicas; None where it doesn't count.
    """

    change: ChangeKind
    spec: Text
    scenario: Text | None
    params: Values
    invariant: Text | None
    before: Outcome | None
    after: Outcome | None
    score_before: Score | None = None
    score_after: Score | None = None
    passed_before: Count = 0
    total_before: Count = 0
    passed_after: Count = 0
    total_after: Count = 0
    p_value: Score | None = None
    p_worse: Score | None = None
    regression: Literal["flip", "test"] | None = None
    replicas_before: Count = 0
    replicas_after: Count = 0


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """This run beside an earlier one. source: where its results were found, in words. verdict, composite, git_sha,
    started_at: the earlier run's. specs: all of both runs; groups and invariants: those that differ.
    changed_specs: ids of specs whose files were other ones. partial: this run has only a part of the cells, so that
    nothing is said to be gone; partial_baseline: the earlier one has, so that what is new may only not have run there.
    regressions: how many groups and invariants count as worse, under another name too. usage, judge_usage: what the
    earlier run took. tests: how many of the groups and invariants have 5 or more replicas on both sides.
    false_alarms: how many of these the exact test would call worse on average if nothing had changed.
    changed_rules: thresholds and rules for replicas that were others there (`small: threshold 0.85 → 0.95`)."""

    source: Text
    verdict: Verdict
    composite: Score | None
    git_sha: Text | None
    started_at: Text
    specs: tuple[Difference, ...]
    groups: tuple[Difference, ...]
    invariants: tuple[Difference, ...]
    changed_specs: Texts = ()
    partial: bool = False
    partial_baseline: bool = False
    regressions: Count = 0
    usage: Usage = field(default_factory=nothing_used)
    judge_usage: JudgeUsage = field(default_factory=nothing_judged)
    tests: Count = 0
    false_alarms: Expected = 0.0
    changed_rules: Texts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A whole run. started_at: RFC 3339. counts: of cells, but for scenarios and skipped checks. error: the message of
    exit 2 or of a failure before the first cell, else None. notices: what belongs into every report's head (substituted
    services, skipped judges, shard, fork). spec_changes: None where nothing was to be compared. baseline: None without
    one."""

    schema_version: Literal[1] = SCHEMA_VERSION
    keystone_version: Text
    git_sha: Text | None
    run_id: Text
    verdict: Verdict
    composite: Score | None
    started_at: Text
    duration_s: Seconds
    counts: Counts = field(default_factory=dict)
    usage: Usage = field(default_factory=nothing_used)
    sandbox: SandboxInfo = field(default_factory=SandboxInfo)
    judge_usage: JudgeUsage = field(default_factory=nothing_judged)
    specs: tuple[SpecResult, ...]
    notices: Texts = ()
    substituted: Texts = ()
    cancelled: bool = False
    error: Text | None = None
    plan: PlanInfo | None = None
    spec_changes: SpecChanges | None = None
    baseline: BaselineComparison | None = None
