"""From what was observed to the numbers and sentences of a cell's result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal, get_args

from keystone_action.evidence.model import AgentRun
from keystone_action.scoring.aggregate import JUDGE_USAGE_KEYS, add_usage
from keystone_action.scoring.composite import Grade, grade, misfit
from keystone_action.scoring.fields import USAGE_NAMES, nothing_used
from keystone_action.scoring.results import Stopped

if TYPE_CHECKING:
    from keystone_action.evidence.trace import Trace
    from keystone_action.options.model import Options
    from keystone_action.runner.cell.running_cell import GradedCheck
    from keystone_action.scoring.results import CellResult, ForbiddenResult, InvariantResult, TraceInfo
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.agents import AgentBase


def forced_zero(agent: AgentBase, run: AgentRun | None, *, by_author: bool) -> str:
    """The sentence that disqualifies a cell whose agent had to exit with 0 and did not (contract, 5.1). by_author: the
    spec says so itself, in the words of a Keystone spec."""
    if not agent.must_exit_zero or run is None or agent.type == "none":  # type: ignore[attr-defined]
        return ""
    if _ended_well(run):
        return ""
    if _ended_by_itself(run):
        failed = f"the agent's own transcript says that it failed: {run.failure}"
        return failed + (", and must_exit_zero is set" if by_author else "")
    said = f" ({run.problem})" if run.problem and run.exit_code else ""
    return f"the agent {ending(run)}{said}" + (", and must_exit_zero is set" if by_author else "")


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
    return _ended_by_itself(run) and not run.failure


def _ended_by_itself(run: AgentRun) -> bool:
    return run.exit_code == 0 and not run.timed_out and run.limit is None and run.stopped is None


def agent_note(run: AgentRun, kind: str) -> str:
    """What people should know of an agent's end; empty when there is nothing to say."""
    if kind == "none":
        return ""
    notes = [] if _ended_by_itself(run) else [ending(run)]
    notes += [sentence for sentence in (run.problem, run.advice) if sentence]
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
