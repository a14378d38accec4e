"""Whether results can be what a run of ours wrote: cells of shards and journals, and baselines. Pure.

They may be anybody's: an artifact of another run, a file of the branch that is judged. So nothing in them is believed
that follows from something else in them, and results are refused as a whole when they hold what no run of ours writes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from keystone_action.errors import UsageError
from keystone_action.scoring.aggregate import decide_run, decide_spec
from keystone_action.scoring.composite import weighted_mean
from keystone_action.scoring.differences import SpecChanges
from keystone_action.scoring.results import CellResult, RunResult, SpecResult, StoppingRule
from keystone_action.spec.limits import MOST_COUNTED

_CELL_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,249}")
_ROUNDING = 1e-6
_SHOWN = 100


def problem_of(spec_id: str, cell: CellResult) -> str:
    """What is wrong with a cell of a spec, in a sentence without an end; empty when nothing is."""
    if not _CELL_ID.fullmatch(cell.id) or not cell.id.startswith(f"{spec_id}."):
        return f"{shorten_text(cell.id)} is not the id of a cell of {shorten_text(spec_id)}"
    if (cell.composite is None) != (cell.verdict == "error"):
        return f"verdict {cell.verdict} of {cell.id} with the composite {cell.composite}"
    if cell.composite is not None and not 0 <= cell.composite <= 1:
        return f"composite {cell.composite} of {cell.id}"
    if not all(check.score is None or 0 <= check.score <= 1 for check in cell.invariants):
        return f"a score of {cell.id} is not between 0 and 1"
    return amount_problem(cell) or _contradiction(cell)


def amount_problem(cell: CellResult) -> str:
    """Which time, usage or weight of a cell is more than results hold."""
    amounts: dict[str, float | None] = {"duration_s": cell.duration_s, **cell.usage}
    amounts.update({f"{name} of the judges": amount for name, amount in cell.judge_usage.items()})
    amounts.update({f"the duration of {check.name}": check.duration_s for check in cell.invariants})
    if cell.agent is not None:
        amounts["the agent's duration"] = cell.agent.duration_s
    for name, amount in amounts.items():
        if amount is not None and not 0 <= amount <= MOST_COUNTED:
            return f"{shorten_text(name)} of {cell.id} is {amount:g}, out of the range from 0 to {MOST_COUNTED:g}"
    for check in cell.invariants:
        if not (math.isfinite(check.weight) and check.weight >= 0):
            return f"the weight of {shorten_text(check.name)} of {cell.id} is {check.weight:g}"
    return ""


def _contradiction(cell: CellResult) -> str:
    """A composite is what the checks come to, those that broke counted as 0, or 0 where something forces it. A cell
    whose check broke passes in no case, and fails only with that said of its composite."""
    broken = tuple(check.name for check in cell.invariants if check.status == "error")
    if cell.counted_as_zero and cell.counted_as_zero != broken:
        return f"counted_as_zero of {cell.id} does not name the checks that broke"
    if cell.composite is None:
        return f"verdict {cell.verdict} of {cell.id} with counted_as_zero" if cell.counted_as_zero else ""
    if broken and cell.verdict == "pass":
        return f"verdict pass of {cell.id}, whose check {shorten_text(broken[0])} broke"
    expected = weighted_mean(cell.invariants, broken_as=0.0 if cell.counted_as_zero else None)
    forced = cell.verdict == "fail" and cell.composite == 0
    if not forced and (expected is None or abs(expected - cell.composite) > _ROUNDING):
        return f"the composite {cell.composite:g} of {cell.id} is not what its checks come to"
    if broken and not (forced or cell.counted_as_zero):
        return f"verdict fail of {cell.id}, whose check {shorten_text(broken[0])} broke and is not counted"
    if cell.verdict == "pass" and any(check.disqualified for check in cell.invariants):
        return f"verdict pass of {cell.id}, which a check disqualifies"
    return ""


def is_sound(rule: StoppingRule) -> bool:
    """Whether a spec can have it."""
    return 1 <= rule.min <= rule.max <= MOST_COUNTED and 0.5 <= rule.confidence < 1


def shorten_text(text: str, limit: int = _SHOWN) -> str:
    """A text of somebody else's, cut, for a message."""
    return text if len(text) <= limit else f"{text[:limit]}…"


_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STARTED = re.compile(r"[0-9TZ:.+-]{10,40}")
NO_BASELINE = "no baseline: "
LONGEST_NAME = 256
"""Characters of a name; specs allow fewer."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Results that were found to be sound. source: where they are from, in words. changed: what the change that is
    compared with them did to them, when it did."""

    run: RunResult
    source: str
    changed: SpecChanges | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it went to its end, as no shard, and graded something: in what it lacks everything could get worse
        unseen."""
        shard = None if self.run.plan is None else self.run.plan.shard
        return not self.run.cancelled and shard is None and self.run.composite is not None


def baseline_of(run: RunResult, source: str) -> Baseline:
    """The results with all verdicts of groups, specs and the run made again from their cells. Raises UsageError for
    what no run of ours writes."""
    wrong = next(_wrong(run), None)
    if wrong is not None:
        raise _malformed_baseline(source, wrong)
    try:
        not_run = () if run.plan is None else run.plan.not_run
        specs = [decide_spec(spec, spec.cells, not_run) for spec in run.specs]
        return Baseline(decide_run(run, specs), source)
    except (ValueError, OverflowError) as error:
        raise _malformed_baseline(source, str(error)) from None


def _wrong(run: RunResult) -> Iterator[str]:
    if not any(spec.cells for spec in run.specs):
        yield "no cell of any spec was finished"
    if run.git_sha is not None and not _SHA.fullmatch(run.git_sha):
        yield "git_sha is not a commit"
    if not _STARTED.fullmatch(run.started_at):
        yield "started_at is not a time"
    ids = [spec.id for spec in run.specs]
    if len(set(ids)) != len(ids):
        yield "a spec is there twice"
    for spec in run.specs:
        yield from _wrong_spec(spec)


def _wrong_spec(spec: SpecResult) -> Iterator[str]:
    if not 0 < len(spec.id) <= LONGEST_NAME:
        yield "the id of a spec is empty or too long"
    if not _SHA256.fullmatch(spec.sha256):
        yield f"the sha256 of {shorten_text(spec.id)} is none"
    if not 0 <= spec.pass_threshold <= 1:
        yield f"pass_threshold {spec.pass_threshold} of {shorten_text(spec.id)}"
    if spec.stopping is not None and not is_sound(spec.stopping):
        yield f"when the replicas of {shorten_text(spec.id)} stop"
    ids = [cell.id for cell in spec.cells]
    if len(set(ids)) != len(ids):
        yield f"{shorten_text(spec.id)} has a cell twice"
    for cell in spec.cells:
        yield from (f"{wrong} in {shorten_text(cell.id)}" for wrong in _wrong_cell(cell))


def _wrong_cell(cell: CellResult) -> Iterator[str]:
    if len(cell.scenario) > LONGEST_NAME or any(len(result.name) > LONGEST_NAME for result in cell.invariants):
        yield "a name that is too long"
    if (cell.composite is None) != (cell.verdict == "error"):
        yield f"verdict {cell.verdict} with the composite {cell.composite}"
    names = [result.name for result in cell.invariants]
    if len(set(names)) != len(names):
        yield "an invariant that is there twice"
    scores = [cell.composite, *(result.score for result in cell.invariants)]
    if not all(score is None or 0 <= score <= 1 for score in scores):
        yield "a score that is not between 0 and 1"
    if amount_problem(cell):
        yield "a time, usage or weight that no run has"


def _malformed_baseline(source: str, why: str) -> UsageError:
    return UsageError(f"the baseline ({source}) can't be used: {why}", help="name the results of another run")


def no_baseline_notice(fail_on: str, baseline: Baseline | None, problem: str) -> str:
    """What to say where there is nothing to compare with although somebody asked for it; empty otherwise."""
    if baseline is not None or not (problem or fail_on == "regression"):
        return ""
    why = problem or "fail-on is regression, but no baseline is named"
    return f"{NO_BASELINE}{why}" + ("; each spec's threshold decides" if fail_on == "regression" else "")
