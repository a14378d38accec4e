"""Runs cut into shards, as the jobs of a matrix would have left them; and a hypothesis strategy for whole runs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from keystone_action import __version__
from keystone_action.scoring.aggregate import decide_run, decide_spec, rule_name
from keystone_action.scoring.fields import nothing_used
from keystone_action.scoring.results import (
    AgentResult,
    CellResult,
    InvariantResult,
    PlanInfo,
    RunResult,
    SandboxInfo,
    SpecResult,
    TraceInfo,
)
from keystone_action.scoring.shards import ShardRun, shard_notice
from keystone_action.scoring.statistics import with_certainty
from keystone_action.spec.plan import cells_digest, shard_of

STARTED = "2026-01-01T00:00:00Z"
SANDBOX = SandboxInfo("process", ("user", "landlock"), "watched")


def cell(
    spec_id: str,
    scenario: str,
    replica: int,
    verdict: str = "pass",
    *,
    score: float = 1.0,
    skipped: bool = False,
    broken: bool = False,
    model: str = "",
    cost: float | None = 0.25,
    source: str = "none",
) -> CellResult:
    """A cell with one check, as a run has it. broken: beside a failure, a check that broke and counts as 0."""
    status = "error" if verdict == "error" else verdict
    checks = [InvariantResult("holds", "file_exists", status, None if status == "error" else score, 1.0, False, "m")]
    if skipped:
        checks.append(InvariantResult("judged", "llm_as_judge", "skip", None, 0.5, False, "no key"))
    broken = broken and verdict == "fail"
    if broken:
        checks.append(InvariantResult("script", "custom", "error", None, 1.0, False, "it broke"))
    return CellResult(
        id=".".join(part for part in (spec_id, scenario, model, f"r{replica}") if part),
        scenario=scenario,
        params={"model": model} if model else {},
        replica=replica,
        verdict=verdict,  # type: ignore[arg-type]
        composite=None if verdict == "error" else score / 2 if broken else score,
        counted_as_zero=("script",) if broken else (),
        duration_s=0.5,
        error="the check broke" if verdict == "error" else None,
        agent=AgentResult(0, False, 0.1, "done"),
        invariants=tuple(checks),
        reason="" if verdict == "pass" else "said why",
        usage=nothing_used() | {"input_tokens": 7, "cost_usd": cost, "spent_usd": cost},
        judge_usage={"requests": 1, "cost_usd": None if cost is None else cost / 3},
        trace=TraceInfo(source),  # type: ignore[arg-type]
    )


def spec(spec_id: str, cells: list[CellResult], *, rule: str | int = "all", threshold: float = 0.5) -> SpecResult:
    """A spec decided by its cells."""
    head = SpecResult(
        id=spec_id,
        path=f"{spec_id}.keystone.yaml",
        sha256=spec_id[0] * 64,
        threshold_source="spec",
        verdict="error",
        composite=None,
        pass_threshold=threshold,
        pass_rate=None,
        cells=(),
        description=f"about {spec_id}",
        replica_aggregation=rule_name(rule),  # type: ignore[arg-type]
        positions={"holds": 7},
    )
    return with_certainty(decide_spec(head, cells))


def whole(specs: list[SpecResult], *, notices: tuple[str, ...] = ()) -> RunResult:
    """The run of these specs, never split."""
    cells = [one.id for entry in specs for one in entry.cells]
    head = RunResult(
        run_id="whole",
        keystone_version=__version__,
        git_sha="5" * 40,
        verdict="error",
        composite=None,
        started_at=STARTED,
        duration_s=2.5,
        specs=(),
        sandbox=SANDBOX,
        notices=notices,
        plan=PlanInfo(None, len(cells), cells_digest(cells), {entry.id: entry.sha256 for entry in specs}),
    )
    return decide_run(head, specs)


def shards_of(run: RunResult, count: int, *, by_hash: bool = False) -> list[RunResult]:
    """What the `count` jobs would have left, in groups of what is there. Joining does not ask which cells a shard has:
    by_hash as a plan has it, else every count-th, so that a test can say what is where."""
    assert run.plan is not None
    flat = [(entry, one) for entry in run.specs for one in entry.cells]
    shards = []
    for index in range(count):
        found = [shard_of(one.id, count) - 1 if by_hash else at % count for at, (_, one) in enumerate(flat)]
        positions = tuple(at for at, number in enumerate(found) if number == index)
        part = [flat[at] for at in positions]
        specs = [
            with_certainty(decide_spec(entry, own))
            for entry in run.specs
            if (own := [one for owner, one in part if owner is entry])
        ]
        plan = replace(run.plan, shard=f"{index + 1}/{count}", positions=positions)
        notices = (shard_notice(plan, len(part)), *run.notices)
        head = replace(run, run_id=f"shard-{index + 1}", plan=plan, notices=notices)
        shards.append(decide_run(head, specs))
    return shards


def named(runs: list[RunResult]) -> list[ShardRun]:
    """With the folders that they might have come from."""
    return [ShardRun(f"results-{number}", run) for number, run in enumerate(runs, 1)]


@st.composite
def runs(draw: st.DrawFn) -> RunResult:
    """Whole runs: some specs × scenarios × models × replicas, every verdict, every rule for replicas."""
    specs = []
    for spec_id in draw(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, max_size=3, unique=True)):
        replicas = draw(st.integers(1, 4))
        cells = [
            cell(
                spec_id,
                scenario,
                replica,
                draw(st.sampled_from(["pass", "pass", "pass", "fail", "error"])),
                score=draw(st.floats(0, 1)),
                skipped=draw(st.booleans()),
                broken=draw(st.booleans()),
                model=model,
                cost=draw(st.none() | st.floats(0, 9)),
                source=draw(st.sampled_from(["gateway", "agent", "none"])),
            )
            for scenario in draw(st.lists(st.sampled_from(["one", "two", "six"]), min_size=1, max_size=3, unique=True))
            for model in draw(st.sampled_from([[""], ["small", "large"]]))
            for replica in range(replicas)
        ]
        rule = draw(st.sampled_from(["all", "any", "majority", "mean", draw(st.integers(1, replicas))]))
        specs.append(spec(spec_id, cells, rule=rule, threshold=draw(st.floats(0, 1))))
    notices = draw(st.lists(st.sampled_from(["a warning", "another", "… and 3 more notices"]), unique=True))
    return whole(specs, notices=tuple(notices))
