"""The score and the verdict of one cell. Pure: results in, verdict out.

Keystone's rule (invariants page, "Scoring summary"): composite = Σ(weight·score) / Σ(weight), 0 when a gate scored
below 1.0. Touchstone's (graders page): skipped checks leave both sums; a gate of weight 0 only caps. Both hold here;
what they leave open is settled by the contract, section 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from keystone_action.scoring.results import InvariantResult, TraceInfo

SCORE_TOLERANCE = 1e-9
"""A score this close below the threshold passes: 0.1 + 0.2 must reach 0.3."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict of one cell. composite is None exactly when the verdict is `error`; reason is a sentence for
    anything but a plain pass, and `invariants` are the given ones with `disqualified` filled in. counted_as_zero: the
    names of checks in error that the composite counts as 0."""

    verdict: Literal["pass", "fail", "error"]
    composite: float | None
    reason: str
    invariants: tuple[InvariantResult, ...]
    counted_as_zero: tuple[str, ...] = ()


def disqualifies(result: InvariantResult) -> bool:
    """Whether this check forces the composite to 0: it says so itself (`swebench`), or it is a gate that does.

    `gate: true` looks at the score (below 1.0), as both sources say; `gate: passed` at the check's own verdict.
    """
    if result.disqualified and result.status == "fail":
        return True
    if not result.gate or result.status not in ("pass", "fail"):
        return False
    if result.gate == "passed":
        return result.status == "fail"
    return result.score is None or result.score < 1.0


def weighted_mean(results: Sequence[InvariantResult], *, broken_as: float | None = None) -> float | None:
    """Σ(weight·score)/Σ(weight) over graded checks, in [0, 1]; None when no graded check has weight. broken_as: the
    score that checks in error count with; None leaves them out.

    Summed exactly and scaled by the largest weight, so that the order of checks can't change the last digit and huge
    weights can't overflow.
    """
    scores = [(r.weight, broken_as if r.status == "error" else r.score) for r in results if r.status != "skip"]
    graded = [(weight, score) for weight, score in scores if score is not None]
    largest = max((weight for weight, _ in graded), default=0.0)
    if largest <= 0:
        return None
    total = math.fsum(weight / largest for weight, _ in graded)
    return math.fsum((weight / largest) * score for weight, score in graded) / total


def grade(
    results: Sequence[InvariantResult],
    *,
    threshold: float,
    fail_on_skipped: bool = False,
    forced_zero: str = "",
    every_check: bool = False,
) -> Grade:
    """Grade a cell from its checks.

    forced_zero: a sentence when something outside the checks disqualifies (a forbidden rule, `must_exit_zero`).
    every_check: the cell passes exactly when each check that was not skipped does (AgenticAssure), with any scores:
    a scorer may pass with 0.8, or fail with 1.0.
    """
    marked = tuple(replace(result, disqualified=disqualifies(result)) for result in results)
    faults = _faults(marked)
    beside = f"; besides, {faults}" if faults else ""
    gates = [result for result in marked if result.disqualified]
    if forced_zero or gates:
        reasons = ([forced_zero] if forced_zero else []) + [_gate_sentence(gate) for gate in gates]
        return Grade("fail", 0.0, "; ".join(reasons) + beside, marked)
    if faults:
        # A failure is certain where no score of what broke would make it a pass (contract, 5.1).
        failure = _certain_failure(marked, threshold, every_check=every_check)
        if not failure:
            return Grade("error", None, faults, marked)
        broken = tuple(result.name for result in marked if result.status == "error")
        return Grade("fail", weighted_mean(marked, broken_as=0.0), failure + beside, marked, broken)
    mean = weighted_mean(marked)
    if mean is None:
        return Grade("error", None, "nothing was graded: every check with weight was skipped", marked)
    skips = [r.name for r in marked if r.status == "skip" and r.on_skip != "ignore"]
    if fail_on_skipped and skips:
        return Grade("fail", mean, f"skipped, and fail_on_skipped is set: {', '.join(skips)}", marked)
    if every_check:
        missed = _missed(marked)
        return Grade("fail" if missed else "pass", mean, missed, marked)
    if mean >= threshold - SCORE_TOLERANCE:
        return Grade("pass", mean, "", marked)
    return Grade("fail", mean, below(mean, threshold), marked)


def _certain_failure(results: Sequence[InvariantResult], threshold: float, *, every_check: bool) -> str:
    """Why a cell fails whatever its checks in error would have scored; empty where one of them could decide."""
    if every_check:
        return _missed(results)
    most, least = weighted_mean(results, broken_as=1.0), weighted_mean(results, broken_as=0.0)
    if most is None or least is None or most >= threshold - SCORE_TOLERANCE:
        return ""
    if not any(result.status == "error" for result in results):
        return below(least, threshold)
    return f"{below(least, threshold)}, and {show_score(most, beside=threshold)} is the most it could be"


def _missed(results: Sequence[InvariantResult]) -> str:
    """Which checks did not pass, where each has to; empty where all did."""
    missed = [result.name for result in results if result.status == "fail"]
    return f"failed: {', '.join(missed)}" if missed else ""


def _faults(results: Sequence[InvariantResult]) -> str:
    """What keeps a cell from a pass beside its scores: checks that broke, and skipped gates; empty where nothing
    does."""
    found = [f"check {r.name} broke: {opening_line(r.message)}" for r in results if r.status == "error"]
    for result in results:
        if result.status == "skip" and (result.on_skip or ("error" if result.gate else "ignore")) == "error":
            what = "gate" if result.gate else "check"
            found.append(f"{what} {result.name} could not be applied: {opening_line(result.message)}")
    return "; ".join(found)


def _gate_sentence(gate: InvariantResult) -> str:
    if not gate.gate:
        return f"check {gate.name} disqualifies: {opening_line(gate.message)}"
    if gate.gate == "passed":
        return f"gate {gate.name} did not pass"
    return f"gate {gate.name} scored {show_score(gate.score or 0.0)}, and a gate needs 1.00"


def opening_line(text: str) -> str:
    """The first line of a message, for sentences that must stay on one."""
    return text.strip().partition("\n")[0]


def below(composite: float, threshold: float) -> str:
    """The reason why a composite is not enough."""
    return f"composite {show_score(composite, beside=threshold)} is below the threshold {show_threshold(threshold)}"


def show_threshold(value: float) -> str:
    """A threshold as its author wrote it, with two digits at least."""
    return f"{value:.2f}" if abs(round(value, 2) - value) < SCORE_TOLERANCE else f"{value:.9g}"


def show_score(score: float, *, beside: float | None = None) -> str:
    """A score for people: two digits, and as many more as tell it apart from `beside`, from 0 and from 1, which would
    say that nothing or everything was earned."""
    digits, text = 2, f"{score:.2f}"
    others = [0.0, 1.0] if beside is None else [0.0, 1.0, beside]
    while digits < 12 and any(abs(float(text) - other) < SCORE_TOLERANCE < abs(score - other) for other in others):
        digits += 2
        text = f"{score:.{digits}f}"
    return text


UNCOMPARED = "whether this change touched the recording that was replayed is not known"
_MISFITS = {
    "stale": "stale",
    "changed": "of a recording that this change touched",
    "unused": "of a recording that nothing was asked of",
}


def misfit(trace: TraceInfo) -> str:
    """Why a replay does not show what models would answer now: a sentence without its end; empty where the recording
    fitted exactly, or nothing was replayed."""
    if trace.replayed is None or trace.replayed == "exact":
        return ""
    if trace.replayed == "changed" and trace.differs.startswith(UNCOMPARED):
        return trace.differs
    return f"the replay was {_MISFITS[trace.replayed]}{f': {trace.differs}' if trace.differs else ''}"
