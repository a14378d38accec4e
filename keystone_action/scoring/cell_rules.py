"""What no cell of a run of ours can have: the limits that results are written by are those they are read by."""

from __future__ import annotations

import math
import re

from keystone_action.scoring.composite import weighted_mean
from keystone_action.scoring.results import CellResult
from keystone_action.spec.limits import MOST_COUNTED

_CELL_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,249}")
_ROUNDING = 1e-6
_SHOWN = 100


def problem_of(spec_id: str, cell: CellResult) -> str:
    """What is wrong with a cell of a spec, in a sentence without an end; empty when nothing is."""
    if not _CELL_ID.fullmatch(cell.id) or not cell.id.startswith(f"{spec_id}."):
        return f"{shorten_text(cell.id)} is no id of a cell of {shorten_text(spec_id)}"
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


def shorten_text(text: str, limit: int = _SHOWN) -> str:
    """A text of somebody else's, cut, for a message."""
    return text if len(text) <= limit else f"{text[:limit]}…"
