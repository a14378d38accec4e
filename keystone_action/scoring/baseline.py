"""Earlier results that a run is compared with. Pure.

They may be anybody's: an artifact of another run, a file of the branch that is judged. So nothing in them is believed
that follows from something else in them, and what no run of ours writes refuses the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from keystone_action.errors import UsageError
from keystone_action.scoring.cell_rules import amount_problem
from keystone_action.scoring.decide import decide_run, decide_spec
from keystone_action.scoring.results import CellResult, RunResult, SpecChanges, SpecResult

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STARTED = re.compile(r"[0-9TZ:.+-]{10,40}")
NO_BASELINE = "no baseline: "
MAX_NAME = 256
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
        specs = [decide_spec(spec, spec.cells) for spec in run.specs]
        return Baseline(decide_run(run, specs), source)
    except (ValueError, OverflowError) as error:
        raise _malformed_baseline(source, str(error)) from None


def _wrong(run: RunResult) -> Iterator[str]:
    if not any(spec.cells for spec in run.specs):
        yield "no cell of any spec was finished"
    if run.git_sha is not None and not _SHA.fullmatch(run.git_sha):
        yield "git_sha is no commit"
    if not _STARTED.fullmatch(run.started_at):
        yield "started_at is no time"
    ids = [spec.id for spec in run.specs]
    if len(set(ids)) != len(ids):
        yield "a spec is there twice"
    for spec in run.specs:
        yield from _wrong_spec(spec)


def _wrong_spec(spec: SpecResult) -> Iterator[str]:
    if not 0 < len(spec.id) <= MAX_NAME:
        yield "the id of a spec is empty or too long"
    if not _SHA256.fullmatch(spec.sha256):
        yield f"the sha256 of {_shorten(spec.id)} is none"
    if not 0 <= spec.pass_threshold <= 1:
        yield f"pass_threshold {spec.pass_threshold} of {_shorten(spec.id)}"
    ids = [cell.id for cell in spec.cells]
    if len(set(ids)) != len(ids):
        yield f"{_shorten(spec.id)} has a cell twice"
    for cell in spec.cells:
        yield from (f"{wrong} in {_shorten(cell.id)}" for wrong in _wrong_cell(cell))


def _wrong_cell(cell: CellResult) -> Iterator[str]:
    if len(cell.scenario) > MAX_NAME or any(len(result.name) > MAX_NAME for result in cell.invariants):
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


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


def no_baseline_notice(fail_on: str, baseline: Baseline | None, problem: str) -> str:
    """What to say where there is nothing to compare with although somebody asked for it; empty otherwise."""
    if baseline is not None or not (problem or fail_on == "regression"):
        return ""
    why = problem or "fail-on is regression, but no baseline is named"
    return f"{NO_BASELINE}{why}" + ("; each spec's threshold decides" if fail_on == "regression" else "")
