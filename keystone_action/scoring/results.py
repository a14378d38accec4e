"""The outcome of a run, as `results.json` has it (shared contract, section 3): frozen data and no rules.

These classes, with those of `differences.py`, are all that is said about the document: the order of its keys, the
values that they hold, and, in the docstrings, what its published schema says. `document.py` writes and reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from keystone_action.scoring.differences import BaselineComparison, SpecChanges
from keystone_action.scoring.fields import (
    Amounts,
    Counts,
    Digests,
    JudgeUsageAmounts,
    Lines,
    ResultCount,
    ResultText,
    ResultTexts,
    ResultValues,
    Score,
    Seconds,
    UsageAmounts,
    Verdict,
    Weight,
    nothing_judged,
    nothing_used,
)

CheckStatus = Literal["pass", "fail", "skip", "error"]
SCHEMA_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """One check of one cell."""

    name: ResultText
    type: ResultText
    status: CheckStatus
    score: Score | None
    """None for a check that was skipped or broke."""
    weight: Weight
    gate: bool | Literal["passed"]
    """As in the spec."""
    message: ResultText
    details: ResultValues = field(default_factory=dict)
    duration_s: Seconds = 0.0
    description: ResultText = ""
    on_skip: Literal["error", "ignore"] | None = None
    disqualified: bool = False
    """Whether this check, as a gate or because it says so itself, forced the composite to 0."""


@dataclass(frozen=True, slots=True)
class ForbiddenResult:
    """One forbidden rule of one cell."""

    rule: ResultText
    violated: bool
    details: ResultText = ""
    """A line for each of the first violations."""

    @property
    def name(self) -> str:
        """The rule's name beside the names of invariants, which have no dots."""
        return f"forbidden.{self.rule}"


Stopped = Literal["budget", "memory", "disk", "processes", "paths", "max_turns"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How the agent of a cell ended."""

    exit_code: int | None
    timed_out: bool
    stopped: Stopped | None = field(default=None, kw_only=True)
    """The limit that ended it: `budget` for one of `gateway.budget`, `max_turns` for the agent's own, else one of the
    sandbox (`paths`: what it left can't be reached)."""
    duration_s: Seconds
    output: ResultText
    """Bounded and masked, as `stderr` is."""
    stderr: ResultText = ""
    signal: int | None = None
    note: ResultText = ""
    """Why it ended ("was stopped at a limit (memory: 2.1 GiB used, 2.0 GiB allowed)"), or what was wrong with its
    output; empty when there is nothing to say."""
    failure: ResultText = ""
    """A sentence on why the run failed, whatever the exit code: by its own transcript, or since a conversation ended
    before all was said; empty otherwise."""

    @property
    def ended_well(self) -> bool:
        """Whether it ended by itself, with exit code 0, and does not say itself that it failed."""
        return self.exit_code == 0 and not self.timed_out and self.stopped is None and not self.failure


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Whose word the trace of a cell is, and how well a replayed recording fitted."""

    source: Literal["gateway", "agent", "none"] = "none"
    """`gateway`: what the gateway saw. `agent`: what the agent says of itself."""
    replayed: Literal["exact", "stale", "changed", "unused"] | None = None
    """How well the recording fitted (`unused`: nothing was asked of it); None where nothing was replayed."""
    recorded_at: ResultText | None = None
    """When the recording was made."""
    differs: ResultText = ""
    """What did not fit ("request 3 differs (turn)"); empty where everything did."""


ENDS_ALIKE = "Another run would end alike."
"""The last sentence of an error that another run would not change, such as a key that is refused."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One finished cell."""

    id: ResultText
    scenario: ResultText
    params: ResultValues
    replica: ResultCount
    verdict: Literal["pass", "fail", "error"]
    composite: Score | None
    """None exactly when the verdict is `error`."""
    duration_s: Seconds
    error: ResultText | None
    agent: AgentResult | None
    trace: TraceInfo = field(default=TraceInfo(), kw_only=True)
    invariants: tuple[InvariantResult, ...]
    forbidden: tuple[ForbiddenResult, ...] = ()
    reason: ResultText = ""
    """Why it is not a pass, in a sentence ("gate tests_pass scored 0.00", "composite 0.77 is below 0.85")."""
    usage: UsageAmounts = field(default_factory=nothing_used)
    """What the agent used; None for what is unknown. `spent_usd` is what was paid for it in this run."""
    judge_usage: Amounts = field(default_factory=dict)
    unpriced: ResultTexts = ()
    """Models without a price that the agent asked."""
    judge_unpriced: ResultTexts = ()
    """Models without a price that judged."""
    attempts: ResultCount = 1
    """How often the cell was run; 0 when it never was."""
    notices: ResultTexts = ()
    counted_as_zero: ResultTexts = ()
    """The names of checks in error that the composite counts as 0, in a cell that fails whatever they would have
    scored."""
    prompts: ResultTexts = ()
    """What was to be said to the agent: the prompt, then the text of each further turn, masked. A long one is cut,
    and of very many the last ones are, which the end of the last one kept says. Empty in a cell that ended before this
    was known."""

    @property
    def broken_beside(self) -> tuple[InvariantResult, ...]:
        """The checks that broke beside a failure that is certain."""
        return tuple(one for one in self.invariants if one.status == "error") if self.verdict == "fail" else ()


@dataclass(frozen=True, slots=True)
class GroupResult:
    """All replicas of one scenario with one parameter set: what `replica_aggregation` decides on."""

    scenario: ResultText
    params: ResultValues
    verdict: Verdict
    composite: Score | None
    passed: ResultCount
    total: ResultCount
    reason: ResultText = ""
    not_run: ResultCount = 0
    """How many replicas were not run, since the group was decided without them."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Replicas that stop when a group is decided: the mapping of `parallelism.replicas`."""

    min: ResultCount
    max: ResultCount
    confidence: Score


@dataclass(frozen=True, slots=True)
class PassRate:
    """The share of the graded cells, or scenarios, that passed, with its 95 % interval: Wilson's, or, of replicas that
    stop when it is decided, one that holds whenever they stopped."""

    value: Score
    low: Score
    high: Score
    n: ResultCount = 0
    """How many were graded; 0 in results of a version that did not write it."""


@dataclass(frozen=True, slots=True)
class CompositeInterval:
    """The 95 % interval of a spec's composite."""

    low: Score
    high: Score
    n: ResultCount
    """How many units there are."""
    unit: Literal["scenarios", "replicas"]
    """What was drawn: scenarios, or the replicas where there is only one scenario with one parameter set."""
    method: Literal["bootstrap", "abc"]
    """`bootstrap` (BCa, seeded by the values), or `abc`, its analytic form, above a few hundred units."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """What repeated tries come to. Each figure is the mean of unbiased estimates over the groups."""

    replicas: ResultCount
    """Each group has at least so many graded replicas."""
    groups: ResultCount
    pass_at_k: tuple[Score, ...]
    """The chance that at least one of k tries passes; the first entry is for k = 1."""
    pass_hat_k: tuple[Score, ...]
    """The chance that all of k tries pass; the first entry is for k = 1."""


@dataclass(frozen=True, slots=True)
class SmallestDrop:
    """What a later run with as many replicas would have to lose to be told from noise."""

    replicas: ResultCount
    """The graded ones of the smallest group."""
    rate: Score
    """The pass rate that the drop is from: the only group's, else 1."""
    drop: Score | None
    """The smallest one for which the one-sided exact test at 5 % speaks; None where none would."""
    drop_with_power: Score | None
    """The smallest change of the true rate that is found four times in five; None where no change is, and above 100
    replicas."""


@dataclass(frozen=True, slots=True)
class SpecResult:
    """One spec of a run."""

    id: ResultText
    path: ResultText
    sha256: ResultText
    threshold_source: Literal["spec", "input"]
    verdict: Verdict
    composite: Score | None
    """The mean over its cells."""
    pass_threshold: Score
    pass_rate: PassRate | None
    """None when no cell was graded."""
    cells: tuple[CellResult, ...]
    groups: tuple[GroupResult, ...] = ()
    description: ResultText = ""
    replica_aggregation: ResultText = "all"
    stopping: StoppingRule | None = None
    """When replicas stop; None where their number is fixed."""
    scenarios: ResultText = "all"
    """How many scenarios must pass: `all`, or `at least 0.9`, a share of them."""
    scenario_rate: PassRate | None = None
    """The share of the graded scenarios that passed; None where all must pass, or none was graded."""
    positions: Lines = field(default_factory=dict)
    """The line of each invariant in the spec file, and of each forbidden rule as `forbidden.RULE`."""
    composite_interval: CompositeInterval | None = None
    """None where there are too few scenarios or replicas to say it, as of the next two."""
    reliability: Reliability | None = None
    smallest_drop: SmallestDrop | None = None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What isolated the agents."""

    kind: Literal["process", "docker"] = "process"
    isolation: ResultTexts = ("none",)
    limits: Literal["enforced", "watched"] = "watched"
    not_enforced: ResultTexts = ()
    """Sentences for the report's head."""
    egress: Literal["container", "namespace", "ports"] | None = None
    """What keeps `network.egress: deny`: the network of containers, a network namespace, or rules for ports; the
    weakest for the cells that ask for it, None where none does."""


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What a run is a part of, so that shards can be joined and none of them forgotten."""

    shard: ResultText | None
    """`i/N`; None for a run that has all cells."""
    cells: ResultCount
    """The number of cells of all shards together."""
    digest: ResultText
    """SHA-256 of the ids of all these cells, in order (`plan.digest_of`)."""
    specs: Digests
    """The sha256 of each spec that has cells, by its id."""
    chosen: ResultTexts = ()
    """The tags, filter and parameters that cells were chosen by (`plan.Selection.chosen`)."""
    positions: tuple[ResultCount, ...] = ()
    """Of a shard: where each of its cells is among all of them, from 0; those that were not run are among them."""
    not_run: ResultTexts = ()
    """The ids of the cells that were planned and not run, since their group was decided without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A whole run."""

    schema_version: Literal[1] = SCHEMA_VERSION
    keystone_version: ResultText
    git_sha: ResultText | None
    run_id: ResultText
    verdict: Verdict
    composite: Score | None
    started_at: ResultText
    """RFC 3339."""
    duration_s: Seconds
    counts: Counts = field(default_factory=dict)
    """How many cells there are of each kind, and how many scenarios, skipped checks and broken checks."""
    usage: UsageAmounts = field(default_factory=nothing_used)
    sandbox: SandboxInfo = field(default_factory=SandboxInfo)
    judge_usage: JudgeUsageAmounts = field(default_factory=nothing_judged)
    specs: tuple[SpecResult, ...]
    notices: ResultTexts = ()
    """What belongs into every report's head: substituted services, skipped judges, the shard, a fork."""
    substituted: ResultTexts = ()
    cancelled: bool = False
    error: ResultText | None = None
    """The message of exit code 2, or of a failure before the first cell; else None."""
    plan: PlanInfo | None = None
    spec_changes: SpecChanges | None = None
    """None where there was nothing to compare with."""
    baseline: BaselineComparison | None = None
    """None where no baseline was asked for."""
