"""From what was observed to the numbers and sentences of a cell's result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keystone_action.evidence.model import AgentRun
from keystone_action.scoring.aggregate import add_usage
from keystone_action.scoring.composite import Grade, grade
from keystone_action.scoring.decide import JUDGE_USAGE_KEYS, USAGE_KEYS
from keystone_action.spec.limits import MOST_COUNTED

if TYPE_CHECKING:
    from keystone_action.evidence.trace import Trace
    from keystone_action.runner.cell.under_way import GradedCheck
    from keystone_action.runner.options import RunOptions
    from keystone_action.scoring.results import CellResult, InvariantResult
    from keystone_action.spec.loading.loader import LoadedSpec
    from keystone_action.spec.models.agents import AgentBase

_TOKEN_NAMES = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "cost_usd": ("cost_usd",),
}


def forced_zero(agent: AgentBase, run: AgentRun | None, *, by_author: bool) -> str:
    """The sentence that disqualifies a cell whose agent had to exit with 0 and did not (contract, 5.1). by_author: the
    spec says so itself, in the words of a Keystone spec."""
    if not agent.must_exit_zero or run is None or agent.type == "none":  # type: ignore[attr-defined]
        return ""
    if run.exit_code == 0 and not run.timed_out and run.limit is None:
        return ""
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


def verdict_of(
    results: Sequence[InvariantResult], loaded: LoadedSpec, options: RunOptions, forced_zero: str = ""
) -> Grade:
    """What the checks of a cell come to, by its spec and the options of the call."""
    scoring = loaded.spec.scoring
    return grade(
        results,
        threshold=scoring.pass_threshold if options.threshold is None else options.threshold,
        fail_on_skipped=scoring.fail_on_skipped or options.fail_on_skipped,
        forced_zero=forced_zero or only_gates(loaded),
        every_check=loaded.every_check_decides and options.threshold is None,
    )


def is_earned(cell: CellResult, loaded: LoadedSpec, options: RunOptions) -> bool:
    """Whether a cell that is said to have passed does so by its checks."""
    return cell.verdict != "pass" or verdict_of(cell.invariants, loaded, options).verdict == "pass"


def ending(run: AgentRun) -> str:
    """How an agent ended, in words: "exited with 3", "timed out", "was killed by signal 9"."""
    if run.limit is not None:
        return f"was stopped at a limit ({run.limit})"
    if run.timed_out:
        return "timed out"
    if run.signal is not None:
        return f"was killed by signal {run.signal}"
    return f"exited with {run.exit_code}"


def agent_note(run: AgentRun, kind: str) -> str:
    """What people should know of an agent's end; empty when there is nothing to say."""
    if kind == "none":
        return ""
    notes = [] if run.exit_code == 0 and not run.timed_out and run.limit is None else [ending(run)]
    notes += [sentence for sentence in (run.problem, run.advice) if sentence]
    if run.leftovers:
        notes.append(f"{run.leftovers} of its processes outlived it and were killed")
    return "; ".join(notes)


def usage(run: AgentRun | None, observed: Trace | None = None) -> dict[str, float]:
    """Tokens, cost and tool calls: of each the figure of the trace, else what the agent's result reports. What neither
    tells, and senseless figures, are 0."""
    if run is None:
        return {}
    reported = run.token_usage or {}
    figures = {key: _first(reported, names) for key, names in _TOKEN_NAMES.items()}
    figures["tool_calls"] = len(run.tool_calls or ())
    if observed is not None and not observed.problem:
        spent, calls = observed.usage, observed.tool_calls
        seen = {"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens, "cost_usd": spent.cost_usd}
        seen["tool_calls"] = None if calls is None else len(calls)
        figures |= {key: value for key, value in seen.items() if value is not None}
    return add_usage([figures], USAGE_KEYS)


def _first(reported: Mapping[str, Any], names: Iterable[str]) -> float:
    for name in names:
        value = reported.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_COUNTED:
            return value
    return 0


def judge_usage(graded: Iterable[GradedCheck]) -> dict[str, float]:
    """What the judges of a cell spent."""
    return add_usage([entry.judge_usage for entry in graded], JUDGE_USAGE_KEYS)
