"""The first line of every report: the product, the spec, the verdict and its reason, in one sentence.

It holds no number that contradicts the verdict: a composite stands in it only where the composite decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keystone_action.report import words
from keystone_action.report.escape import first_line
from keystone_action.report.ranking import VERDICT_RANK, weightiest
from keystone_action.report.replays import replay_warning
from keystone_action.report.view import needs
from keystone_action.scoring.composite import show_threshold
from keystone_action.scoring.results import CellResult, RunResult, SpecResult, Verdict

PRODUCT = "Keystone"
MAX_REASON = 160
"""Characters of a reason in the line."""
MAX_NAME = 100
"""Characters of a name in it."""
_VERBS: Mapping[Verdict, str] = {
    "pass": "passed",
    "flaky": "passed, but is flaky",
    "fail": "failed",
    "error": "ended with an error",
}
_BY_CHECKS = ("gate ", "composite ", "mean composite ", "failed: ")
"""How reasons begin that name what the checks came to: the check that decided says more."""


def headline(run: RunResult) -> str:
    """One line, not yet escaped. What is to be known of a replay stands where no long name can push it out of sight."""
    warning = replay_warning(run)
    product = f"{PRODUCT} ({warning})" if warning else PRODUCT
    if run.cancelled:
        subject = f"{_names(run.specs)} was cancelled" if run.specs else "cancelled"
        return f"{product}: {subject}: {_finished_words(run)}"
    if not run.specs:
        return f"{PRODUCT}: error: {first_line(run.error or 'nothing was graded', MAX_REASON).rstrip(':')}"
    deciding = [spec for spec in run.specs if spec.verdict == run.verdict] or list(run.specs)
    line = f"{product}: {_subject(run, deciding)} {_VERBS[run.verdict]}"
    if run.verdict in ("fail", "error"):
        where = _how_many(run)
        return f"{line}{f' in {where}' if where else ''}: {_why(run, deciding[0])}"
    return f"{line}: {_passed_words(run)}"


def _names(specs: Iterable[SpecResult]) -> str:
    ids = [first_line(spec.id, MAX_NAME) for spec in specs]
    return ids[0] if len(ids) == 1 else f"{len(ids):,} specs"


def _subject(run: RunResult, deciding: list[SpecResult]) -> str:
    if run.verdict in ("pass", "flaky") or len(run.specs) == 1:
        return _names(run.specs)
    first, others = _names(deciding[:1]), len(deciding) - 1
    of_all = f"of {words.count(len(run.specs), 'spec')}"
    return f"{first} and {others:,} more {of_all}" if others else f"{first} (1 {of_all})"


def _finished_words(run: RunResult) -> str:
    return f"{words.count(sum(len(spec.cells) for spec in run.specs), 'cell')} had finished"


def _how_many(run: RunResult) -> str:
    """Cells that ended so; empty where there is one. Groups of replicas can fail without a cell that does."""
    cells = run.counts.get("cells", 0)
    bad = run.counts.get("errors" if run.verdict == "error" else "failed", 0)
    return f"{bad:,} of {words.count(cells, 'cell')}" if cells > 1 and bad else ""


def _passed_words(run: RunResult) -> str:
    cells = [cell for spec in run.specs for cell in spec.cells]
    if len(cells) != 1:
        return f"{run.counts.get('passed', 0):,} of {words.count(run.counts.get('cells', 0), 'cell')}"
    graded = [check for check in cells[0].invariants if check.status != "skip"]
    if any(check.status != "pass" for check in graded):
        composite = words.score(cells[0].composite, beside=run.specs[0].pass_threshold)
        return f"composite {composite}, {needs(run.specs)}"
    return f"{len(graded):,} of {words.count(len(graded), 'check')}"


def _why(run: RunResult, spec: SpecResult) -> str:
    """Of the cell that weighs most among the worst, else of the group that decided."""
    bad = sorted((cell for cell in spec.cells if cell.verdict == spec.verdict), key=_by_weight)
    if bad:
        return _why_of_cell(bad[0])
    group = next((group for group in spec.groups if group.verdict == spec.verdict), None)
    reason = first_line((group.reason if group else "") or run.error or "", MAX_REASON).rstrip(":")
    composite = words.score(spec.composite, beside=spec.pass_threshold)
    return reason or f"composite {composite} is below the threshold {show_threshold(spec.pass_threshold)}"


def _by_weight(cell: CellResult) -> tuple[int, bool, float]:
    """Cells with the worst composite first."""
    return VERDICT_RANK[cell.verdict], cell.composite is not None, cell.composite or 0.0


def _why_of_cell(cell: CellResult) -> str:
    reason = first_line(cell.error or cell.reason or "", MAX_REASON)
    if cell.verdict == "error":
        return reason or "nothing was graded"
    broken = next((rule for rule in cell.forbidden if rule.violated), None)
    if broken is not None:
        what = first_line(broken.details, MAX_REASON).rstrip(":")
        return f"forbidden rule {first_line(broken.rule, MAX_NAME)} was violated" + (f": {what}" if what else "")
    failed = [check for check in cell.invariants if check.status == "fail" and (check.weight > 0 or check.gate)]
    if not failed or (reason and not reason.startswith(_BY_CHECKS)):
        return reason or "a check failed"
    check = weightiest(failed)
    message = first_line(check.message, MAX_REASON).rstrip(":.")
    more = f", and {words.count(len(failed) - 1, 'more check')}" if len(failed) > 1 else ""
    name = first_line(check.name, MAX_NAME)
    return f"{message} ({name}){more}" if message else f"{name}{more}"
