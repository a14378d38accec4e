"""Why a cell or a spec did not pass, in a few words: what the check that decided says, with its name."""

from __future__ import annotations

from dataclasses import dataclass

from keystone_action.report import words
from keystone_action.report.escape import first_line, shortened
from keystone_action.report.sentences.ranking import VERDICT_RANK, weightiest
from keystone_action.scoring.composite import show_threshold
from keystone_action.scoring.results import CellResult, InvariantResult, SpecResult

MAX_REASON = 120
"""Characters of a reason."""
MAX_NAME = 100
"""Characters of a name in it."""
_BY_CHECKS = ("gate ", "composite ", "mean composite ", "failed: ")
"""How reasons begin that name what the checks came to: the check that decided says more."""


@dataclass(frozen=True, slots=True)
class Why:
    """text: one line, not yet escaped. check: that decided, None where none did. more: how many checks failed
    besides."""

    text: str
    check: InvariantResult | None = None
    more: int = 0

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        if self.check is None:
            return self.text
        more = f", and {words.count(self.more, 'more check')}" if self.more else ""
        name = first_line(self.check.name, MAX_NAME)
        return f"{self.text} ({name}){more}" if self.text else f"{name}{more}"


def why_of_spec(spec: SpecResult) -> Why:
    """Of the cell that weighs most among the worst, else of the group that decided; empty where the spec itself tells
    nothing."""
    bad = sorted((cell for cell in spec.cells if cell.verdict == spec.verdict != "pass"), key=_by_weight)
    if bad:
        return why_of_cell(bad[0])
    group = next((group for group in spec.groups if group.verdict == spec.verdict), None)
    reason = shortened(first_line(group.reason if group else "", 1_000), MAX_REASON).rstrip(":")
    composite = words.score(spec.composite, beside=spec.pass_threshold)
    below = f"composite {composite} is below the threshold {show_threshold(spec.pass_threshold)}"
    return Why(reason or ("" if spec.composite is None else below))


def why_of_cell(cell: CellResult) -> Why:
    """cell: one that did not pass."""
    reason = _short(cell.error or cell.reason or "")
    if cell.verdict == "error":
        return Why(reason or "nothing was graded")
    broken = next((rule for rule in cell.forbidden if rule.violated), None)
    if broken is not None:
        what = _short(broken.details).rstrip(":")
        return Why(f"forbidden rule {first_line(broken.rule, MAX_NAME)} was violated" + (f": {what}" if what else ""))
    ended = _short(words.stopped(cell.agent))
    failed = [check for check in cell.invariants if check.status == "fail" and (check.weight > 0 or check.gate)]
    if not failed or (reason and not reason.startswith(_BY_CHECKS)):
        return Why("; ".join(filter(None, ["" if ended in reason else ended, reason])) or "a check failed")
    check = weightiest(failed)
    found = _short(check.message).rstrip(":.")
    return Why(f"{ended}; {found}" if ended else found, check, len(failed) - 1)


def _short(text: str) -> str:
    return shortened(first_line(text, 1_000), MAX_REASON)


def _by_weight(cell: CellResult) -> tuple[int, bool, float]:
    """Cells with the worst composite first."""
    return VERDICT_RANK[cell.verdict], cell.composite is not None, cell.composite or 0.0
