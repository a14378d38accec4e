"""What stands first in a report: of checks the failing gates, then what lost most weight; of equal failures of replicas
the first, with the number of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from keystone_action.scoring.aggregate import group_key
from keystone_action.scoring.results import CellResult, InvariantResult

VERDICT_RANK: Mapping[str, int] = {"error": 0, "fail": 1, "flaky": 2, "skip": 3, "pass": 4}
"""Of verdicts and of statuses, the worst first."""


def check_rank(
    status: str, *, is_gate: bool, weight: float, score: float | None, decides: bool = True
) -> tuple[float, bool, float]:
    """To sort checks by: what broke, then what failed, gates first among them, then by the weight that was lost.
    decides: whether what broke does; beside a failure that is certain it comes after what failed."""
    rank = VERDICT_RANK[status] if decides or status != "error" else VERDICT_RANK["fail"] + 0.5
    lost = weight * (1.0 - (score or 0.0)) if status in ("error", "fail") else 0.0
    return rank, status in ("error", "fail") and not is_gate, -lost


def weightiest(checks: Iterable[InvariantResult]) -> InvariantResult:
    """The check that a report names first. checks: at least one."""
    return min(checks, key=rank_of)


def rank_of(check: InvariantResult, *, decides: bool = True) -> tuple[float, bool, float]:
    """`check_rank` of a check."""
    is_gate = bool(check.gate)
    return check_rank(check.status, is_gate=is_gate, weight=check.weight, score=check.score, decides=decides)


@dataclass(frozen=True, slots=True)
class Failure:
    """Cells that failed for one set of reasons. cell: the first of them; others: the rest, of whatever scenario,
    parameters and replica."""

    cell: CellResult
    others: tuple[CellResult, ...] = ()

    @property
    def number(self) -> int:
        """How many there are."""
        return 1 + len(self.others)

    @property
    def are_replicas(self) -> bool:
        """Whether all of them are of one scenario with one set of parameters."""
        return all(group_key(other) == group_key(self.cell) for other in self.others)

    @property
    def checks(self) -> list[InvariantResult]:
        """The checks of the cell that did not hold, the weightiest first."""
        found = (check for check in self.cell.invariants if check.status in ("fail", "error"))
        return sorted(found, key=partial(rank_of, decides=self.cell.verdict == "error"))


def failures(cells: Iterable[CellResult]) -> list[Failure]:
    """The cells that did not pass, the worst first, those that failed alike once."""
    found: dict[object, list[CellResult]] = {}
    for cell in sorted(cells, key=lambda cell: VERDICT_RANK[cell.verdict]):
        if cell.verdict != "pass":
            found.setdefault(_likeness(cell), []).append(cell)
    return [Failure(first, tuple(others)) for first, *others in found.values()]


def _likeness(cell: CellResult) -> object:
    """Equal for cells that a report would describe in equal words, their names aside."""
    checks = tuple(
        (check.name, check.status, check.score, check.message) for check in cell.invariants if check.status != "pass"
    )
    rules = tuple((rule.rule, rule.details) for rule in cell.forbidden if rule.violated)
    return cell.verdict, cell.error, cell.reason, checks, rules
