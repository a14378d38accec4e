"""The outcome of a run, as `results.json` has it (shared contract, section 3). Frozen data and no rules.

`scoring/document.py` turns them into JSON documents and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "flaky", "error"]
Status = Literal["pass", "fail", "skip", "error"]
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """One check of one cell. score is None for skip and error. `gate` is true, false or "passed" as in the spec;
    `disqualified`: this gate, or a check that says so itself, forced the composite to 0."""

    name: str
    type: str
    status: Status
    score: float | None
    weight: float
    gate: bool | Literal["passed"]
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0
    description: str = ""
    on_skip: Literal["error", "ignore"] | None = None
    disqualified: bool = False


@dataclass(frozen=True, slots=True)
class ForbiddenResult:
    """One forbidden rule of one cell."""

    rule: str
    violated: bool
    details: str = ""


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How the agent of a cell ended; `output` and `stderr` are bounded and masked. note: why it ended ("stopped at
    2 GiB of memory"), or what was wrong with its output; empty when nothing is to say."""

    exit_code: int | None
    timed_out: bool
    duration_s: float
    output: str
    signal: int | None = None
    note: str = ""
    stderr: str = ""

    @property
    def ended_well(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class CellResult:
    """One finished cell. composite is None exactly when the verdict is `error`; reason says in a sentence why it is
    not a pass ("gate tests_pass scored 0.00", "composite 0.77 is below 0.85")."""

    id: str
    scenario: str
    params: dict[str, Any]
    replica: int
    verdict: Literal["pass", "fail", "error"]
    composite: float | None
    duration_s: float
    error: str | None
    agent: AgentResult | None
    invariants: tuple[InvariantResult, ...]
    forbidden: tuple[ForbiddenResult, ...] = ()
    reason: str = ""
    usage: dict[str, float] = field(default_factory=dict)
    judge_usage: dict[str, float] = field(default_factory=dict)
    attempts: int = 1
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupResult:
    """All replicas of one scenario with one parameter set: what `replica_aggregation` decides on."""

    scenario: str
    params: dict[str, Any]
    verdict: Verdict
    composite: float | None
    passed: int
    total: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SpecResult:
    """One spec of a run. pass_rate is (value, low, high), a Wilson interval over the cells that were graded, or None
    when none was."""

    id: str
    path: str
    sha256: str
    threshold_source: Literal["spec", "input"]
    verdict: Verdict
    composite: float | None
    pass_threshold: float
    pass_rate: tuple[float, float, float] | None
    cells: tuple[CellResult, ...]
    groups: tuple[GroupResult, ...] = ()
    description: str = ""
    replica_aggregation: str = "all"
    positions: dict[str, int] = field(default_factory=dict)
    """Invariant name → line in the spec file, for annotations."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What isolated the agents. not_enforced: sentences for the report's head."""

    kind: Literal["process", "docker"] = "process"
    isolation: tuple[str, ...] = ("none",)
    limits: Literal["enforced", "watched"] = "watched"
    not_enforced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """What a run is a part of, so that shards can be joined and none of them forgotten. shard: `i/N`, of which this
    run has every N-th cell from the i-th; None for a run that is all of it. cells: of all shards together. digest:
    SHA-256 of the ids of all of them, in order (`plan.digest_of`). specs: id → sha256 of each spec that has cells.
    chosen: the tags, filter and parameters that cells were chosen by (`plan.Selection.chosen`)."""

    shard: str | None
    cells: int
    digest: str
    specs: dict[str, str]
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One spec, or workflow, that is not what it is at the base commit. path: of the file, relative to where it was
    called. differences: a sentence each (`threshold 0.85 → 0.5`, `changed files: hidden/test_x.py (+3 −10)`), what can
    let more pass first; none for a spec that was added or deleted."""

    path: str
    change: Literal["changed", "added", "deleted"]
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a change does to its own gate (contract, 5.4): the specs, and the files that they name, against the base
    commit. base: its sha, None when there is none. base_name: what it is, in words. spec_from: where the specs of this
    run come from. problem: why the comparison could not be made, and what to do; empty when it was. workflows: the same
    of workflows that call us and of a baseline in the repository; all of them are `changed`. incomplete: what was not
    compared, and why; empty when nothing was left out."""

    base: str | None
    base_name: str
    spec_from: Literal["head", "base"] = "head"
    specs: tuple[SpecChange, ...] = ()
    problem: str = ""
    workflows: tuple[SpecChange, ...] = ()
    incomplete: str = ""


Outcome = Literal["pass", "flaky", "fail", "error", "skip"]
Change = Literal["same", "fixed", "broken", "flaky", "steadied", "ungraded", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A spec, a group of replicas or one invariant of a group, in the baseline (before) and in this run (after).

    scenario: None for a spec. invariant: None for a spec and for a group. before, after: None where there is none.
    Scores are means in [0, 1] over what was graded; passed of total counts graded cells, of an invariant its graded
    results. p_value: how probable so large a difference is by chance alone; None where there are no repetitions.
    """

    change: Change
    spec: str
    scenario: str | None
    params: dict[str, Any]
    invariant: str | None
    before: Outcome | None
    after: Outcome | None
    score_before: float | None = None
    score_after: float | None = None
    passed_before: int = 0
    total_before: int = 0
    passed_after: int = 0
    total_after: int = 0
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """This run beside an earlier one. source: where its results were found, in words. verdict, composite, git_sha,
    started_at: the earlier run's. specs: all of both runs; groups and invariants: those that are not the same.
    changed_specs: ids of specs whose files were other ones. partial: this run has only a part of the cells, so that
    nothing is said to be gone; partial_baseline: the earlier one has, so that what is new may only not have run there.
    regressions: how many groups and invariants passed there and fail here, under another name too."""

    source: str
    verdict: Verdict
    composite: float | None
    git_sha: str | None
    started_at: str
    specs: tuple[Difference, ...]
    groups: tuple[Difference, ...]
    invariants: tuple[Difference, ...]
    changed_specs: tuple[str, ...] = ()
    partial: bool = False
    partial_baseline: bool = False
    regressions: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """A whole run. error: the message of exit 2 or of a failure before the first cell, else None. notices: what
    belongs into every report's head (substituted services, skipped judges, shard, fork). spec_changes: None where
    nothing was to be compared. baseline: None without one."""

    run_id: str
    keystone_version: str
    git_sha: str | None
    verdict: Verdict
    composite: float | None
    started_at: str
    duration_s: float
    specs: tuple[SpecResult, ...]
    sandbox: SandboxInfo = field(default_factory=SandboxInfo)
    counts: dict[str, int] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    judge_usage: dict[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    substituted: tuple[str, ...] = ()
    cancelled: bool = False
    error: str | None = None
    plan: PlanInfo | None = None
    spec_changes: SpecChanges | None = None
    baseline: BaselineComparison | None = None
