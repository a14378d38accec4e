"""From what was observed of a cell to its result: numbers, sentences, verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal, get_args

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.runner.cell.running_cell import STDERR_LIMIT, bound_output, bound_prompts
from keystone_action.scoring.aggregate import JUDGE_USAGE_KEYS, add_usage
from keystone_action.scoring.composite import UNCOMPARED, Grade, grade, misfit
from keystone_action.scoring.fields import USAGE_NAMES, nothing_used
from keystone_action.scoring.results import AgentResult, CellResult, Stopped, TraceInfo
from keystone_action.scoring.soundness import amount_problem

if TYPE_CHECKING:
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.model import Evidence
    from keystone_action.evidence.trace import Trace
    from keystone_action.files.paths import PathUnreadable
    from keystone_action.options.model import Options
    from keystone_action.runner.cell.running_cell import CellFindings, GradedCheck, RunningCell
    from keystone_action.scoring.results import ForbiddenResult, InvariantResult
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.agents import AgentBase


def forced_zero(agent: AgentBase, run: AgentRun | None, *, by_author: bool) -> str:
    """The sentence that disqualifies a cell whose agent had to exit with 0 and did not (contract, 5.1). by_author: the
    spec says so itself, in the words of a Keystone spec."""
    if not agent.must_exit_zero or run is None or agent.type == "none":  # type: ignore[attr-defined]
        return ""
    if _ended_well(run):
        return ""
    by_itself = _ended_by_itself(run)
    failed = _failure(run) if by_itself else f"the agent {ending(run)}"
    said = f" ({run.problem})" if run.problem and (run.unheard if by_itself else run.exit_code) else ""
    return failed + said + (", and must_exit_zero is set" if by_author else "")


def _failure(run: AgentRun) -> str:
    """Why a run failed though the agent may have ended by itself, as a sentence; empty where it did not."""
    own = f"the agent's own transcript says that it failed: {run.failure}" if run.failure else ""
    return "; ".join(filter(None, (own, run.unheard)))


def only_gates(loaded: LoadedSpec) -> str:
    """The sentence that disqualifies every cell of a spec in which nothing gives credit (contract, 5.5)."""
    return "nothing but gates: no grader gives credit" if loaded.only_gates else ""


def unreadable(before: Sequence[str], after: Sequence[str]) -> str:
    """The sentence that disqualifies a cell whose agent closed directories to us: what can't be looked into can't be
    said to hold nothing (contract, 5.1: a workspace the agent made unreadable is its failure)."""
    closed = [name or "the workspace itself" for name in after if name not in before]
    return f"the agent left what can't be read: {', '.join(closed[:5])}" if closed else ""


def violation(results: Sequence[ForbiddenResult]) -> str:
    """The sentence that disqualifies a cell; empty when no rule was violated."""
    broken = [one for one in results if one.violated]
    return "; ".join(f"forbidden.{one.rule} was violated: {one.details.partition(chr(10))[0]}" for one in broken)


def verdict_of(
    results: Sequence[InvariantResult],
    loaded: LoadedSpec,
    options: Options,
    trace: TraceInfo,
    forced_zero: str = "",
) -> Grade:
    """What the checks of a cell come to, by its spec and the options of the call. trace: with what is known of the
    recording that was replayed."""
    scoring = loaded.spec.scoring
    graded = grade(
        results,
        threshold=scoring.pass_threshold if options.verdict.threshold is None else options.verdict.threshold,
        fail_on_skipped=scoring.fail_on_skipped or options.verdict.fail_on_skipped,
        forced_zero=forced_zero or only_gates(loaded),
        every_check=loaded.every_check_decides and options.verdict.threshold is None,
    )
    if options.verdict.fail_on_stale and graded.verdict == "pass" and (why := misfit(trace)):
        return replace(graded, verdict="fail", reason=why)
    return graded


def certain_failure(results: Sequence[InvariantResult], forbidden: Sequence[ForbiddenResult]) -> Grade | None:
    """What a cell that broke comes to all the same: a rule was violated, or a gate failed, whatever else would have
    been seen (contract, 5.1). None where nothing is certain."""
    found = grade(results, threshold=0.0, forced_zero=violation(forbidden))
    is_certain = violation(forbidden) or any(result.disqualified for result in found.invariants)
    return found if is_certain else None


def is_earned(cell: CellResult, loaded: LoadedSpec, options: Options) -> bool:
    """Whether a cell that is said to have passed does so by its checks."""
    if cell.verdict != "pass":
        return True
    judged = {rule.rule for rule in cell.forbidden if not rule.violated}
    return (
        loaded.spec.forbidden.rules <= judged
        and verdict_of(cell.invariants, loaded, options, cell.trace).verdict == "pass"
    )


def ending(run: AgentRun) -> str:
    """How an agent ended, in words: "exited with 3", "timed out", "was killed by signal 9"."""
    if run.limit is not None:
        return f"was stopped at a limit ({run.limit})"
    if run.stopped is not None:
        return f"was {run.stopped}"
    if run.timed_out:
        return "timed out"
    if run.signal is not None:
        return f"was killed by signal {run.signal}"
    return f"exited with {run.exit_code}"


def stopped_by(run: AgentRun) -> Stopped | None:
    """Which limit ended an agent; None where it came to an end by itself, or by its time limit."""
    if run.limit is None:
        return None if run.stopped is None else "budget"
    kind = run.limit.partition(":")[0]
    return next((known for known in get_args(Stopped) if known == kind), None)


def _ended_well(run: AgentRun) -> bool:
    return _ended_by_itself(run) and not _failure(run)


def _ended_by_itself(run: AgentRun) -> bool:
    return run.exit_code == 0 and not run.timed_out and run.limit is None and run.stopped is None


def agent_note(run: AgentRun, kind: str) -> str:
    """What people should know of an agent's end; empty when there is nothing to say."""
    if kind == "none":
        return ""
    notes = [] if _ended_by_itself(run) else [ending(run)]
    notes += [sentence for sentence in (run.problem, run.calls_problem, run.advice) if sentence]
    if run.leftovers:
        notes.append(f"{run.leftovers} of its processes outlived it and were killed")
    return "; ".join(notes)


def usage(
    observed: Trace | None, *, ran: bool, spent_usd: float | None = None, is_told: bool = True
) -> dict[str, float | None]:
    """What the agent of a cell took, as its trace tells; None for what that does not tell.

    ran: whether the agent came to an end; one that did not took nothing that we know, but the money. spent_usd: what
    was paid for it now; None where that is what the trace says it cost. is_told: whether the agent's own word on money
    counts: beside a gateway that saw nothing it does not.
    """
    if not ran and not spent_usd:
        return nothing_used()
    figures: dict[str, float | None] = dict.fromkeys(USAGE_NAMES)
    if trace_source(observed) != "none" and observed is not None:
        calls = None if observed.tool_calls is None else len(observed.tool_calls)
        figures |= {**asdict(observed.usage), "tool_calls": calls}
        if not is_told and trace_source(observed) == "agent":
            figures["cost_usd"] = None
    return figures | {"spent_usd": figures["cost_usd"] if spent_usd is None else spent_usd}


def trace_source(observed: Trace | None) -> Literal["gateway", "agent", "none"]:
    """Whose word a trace is; `none` where there is none, or none that can be used."""
    if observed is None or observed.problem:
        return "none"
    return "gateway" if observed.source == "gateway" else "agent"


def judge_unpriced(graded: Iterable[GradedCheck]) -> tuple[str, ...]:
    """Judges without a price that were asked."""
    return tuple(dict.fromkeys(model for entry in graded for model in entry.unpriced))


def judge_usage(graded: Iterable[GradedCheck]) -> dict[str, float | None]:
    """What the judges of a cell spent."""
    return add_usage([entry.judge_usage for entry in graded], JUDGE_USAGE_KEYS)


def grade_cell(running: RunningCell, agent: AgentBase, evidence: Evidence) -> CellResult:
    """What the rules and checks come to that the cell's progress knows. agent: interpolated."""
    loaded, found = running.loaded, running.progress.found
    zero = violation(found.forbidden) or evidence.files.unreadable
    zero = zero or forced_zero(agent, evidence.agent, by_author=loaded.names_keys)
    results = [entry.result for entry in found.graded]
    graded = verdict_of(results, loaded, running.options, _trace_info(found, running.run.masker), zero)
    result = _result(running, graded.verdict, graded.composite, graded.reason, graded.invariants)
    # One that can't be counted has become an error.
    return replace(result, counted_as_zero=graded.counted_as_zero) if result.verdict == "fail" else result


def unreadable_result(running: RunningCell, error: PathUnreadable) -> CellResult:
    """A workspace that the agent made unreadable is the agent's failure (contract, 5.1)."""
    return _result(running, "fail", 0.0, f"the workspace can't be graded: {error}")


def broken_result(running: RunningCell, message: str) -> CellResult:
    """The result of an attempt that something else than the agent brought to an end: an error, unless what was seen
    until then is a failure for certain. Raises OutputError."""
    found = running.progress.found
    certain = certain_failure([entry.result for entry in found.graded], found.forbidden)
    if certain is None:
        return error_result(running, message)
    if found.agent is not None:
        running.files.agent(found.agent)
    return _result(running, "fail", 0.0, f"{certain.reason}; besides, {message}", certain.invariants)


def error_result(running: RunningCell, message: str) -> CellResult:
    """The result of an attempt that the harness, not the agent, brought to an end. Raises OutputError."""
    found = running.progress.found
    if found.agent is not None:
        running.files.agent(found.agent)
    return _result(running, "error", None, message, tuple(entry.result for entry in found.graded))


def _result(
    running: RunningCell,
    verdict: Literal["pass", "fail", "error"],
    composite: float | None,
    reason: str,
    invariants: tuple[InvariantResult, ...] = (),
) -> CellResult:
    cell, progress, masker = running.cell, running.progress, running.run.masker
    found = progress.found
    models = found.models()
    # An error before the agent stands alone.
    told = progress.notices if progress.phase in ("agent", "checks") else ()
    result = CellResult(
        id=cell.id,
        scenario=cell.scenario.id,
        params=dict(cell.params),
        replica=cell.replica,
        verdict=verdict,
        composite=composite,
        duration_s=time.monotonic() - running.started,
        error=masker.text(reason) if verdict == "error" else None,
        agent=_agent_result(found.agent, cell.agent_type, masker),
        trace=_trace_info(found, masker),
        invariants=tuple(_masked_result(result, masker) for result in invariants),
        forbidden=tuple(replace(rule, details=masker.text(rule.details)) for rule in found.forbidden),
        reason=masker.text(reason),
        usage=usage(
            found.observed,
            ran=found.agent is not None and cell.agent_type != "none",
            spent_usd=models.cost_usd if models is not None else None,
            is_told=models is None,
        ),
        judge_usage=judge_usage(found.graded),
        unpriced=tuple(masker.text(model) for model in (found.observed.unpriced if found.observed else ())),
        judge_unpriced=tuple(masker.text(model) for model in judge_unpriced(found.graded)),
        notices=tuple(masker.text(notice) for notice in told),
        prompts=bound_prompts([masker.text(text) for text in found.prompts]),
    )
    problem = amount_problem(result)
    return _uncountable(result, problem) if problem else result


def _trace_info(found: CellFindings, masker: Masker) -> TraceInfo:
    source, models = trace_source(found.observed), found.models()
    replay = models.replay if models is not None else None
    if replay is None:
        return TraceInfo(source)
    told = [*replay.stale]
    fit: Literal["changed", "stale", "exact", "unused"] | None = "stale" if told or replay.left_over else "exact"
    if replay.answered and replay.left_over:
        told.append(f"recorded answers that were not asked for: {replay.left_over:,}")
    if not replay.answered:
        fit = "unused"
    if replay.misses or found.agent is None:
        fit = None  # it did not fit at all, or was not needed, which the cell's error says
    if replay.is_changed:
        fit = "changed"
        told[:0] = [f"{UNCOMPARED}: {replay.uncompared}"] if replay.uncompared else []
    return TraceInfo(source, fit, recorded_at=replay.recorded_at, differs=masker.text("; ".join(told)))


def _uncountable(result: CellResult, problem: str) -> CellResult:
    """A cell that says a number which no journal may hold: a judge's server can say anything."""
    usage, judge_usage = dict.fromkeys(result.usage), dict.fromkeys(result.judge_usage)
    error = replace(result, verdict="error", composite=None, error=problem, reason=problem)
    return replace(error, usage=usage, judge_usage=judge_usage)


def _agent_result(run: AgentRun | None, kind: str, masker: Masker) -> AgentResult | None:
    if run is None or kind == "none":
        return None
    return AgentResult(
        exit_code=run.exit_code,
        timed_out=run.timed_out,
        stopped=stopped_by(run),
        failure=masker.text(_failure(run)),
        duration_s=run.duration_s,
        output=bound_output(masker.text(run.output)),
        stderr=bound_output(masker.text(run.stderr), STDERR_LIMIT),
        signal=run.signal,
        note=masker.text(agent_note(run, kind)),
    )


def _masked_result(result: InvariantResult, masker: Masker) -> InvariantResult:
    return replace(result, message=masker.text(result.message), details=masker.value(result.details))
