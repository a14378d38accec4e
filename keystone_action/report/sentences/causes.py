"""Why a check, a cell or a spec did not pass, in a few words, and which cause stands first.

Of checks, the failing gates come first, then what lost most weight; of replicas that failed alike, the first is shown
with the number of all. The table of specs has those that did not pass first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from keystone_action.report import words
from keystone_action.report.escape import first_line, shortened
from keystone_action.scoring.aggregate import group_key, tally_scenarios
from keystone_action.scoring.composite import show_threshold
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult

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


def scenario_share(spec: SpecResult) -> str:
    """`17 of 20 scenarios pass, needs 0.9`; empty where all must pass."""
    try:
        tally = tally_scenarios(spec)
    except ValueError:  # a rule that no run of ours writes, in results that somebody else wrote
        return ""
    if tally is None:
        return ""
    ungraded = f", {tally.ungraded:,} in error" if tally.ungraded else ""
    verb = "passes" if tally.total == 1 else "pass"
    needs = spec.scenarios.removeprefix("at least ")
    return f"{tally.passed:,} of {words.count(tally.total, 'scenario')} {verb}{ungraded}, needs {needs}"


def why_of_spec(spec: SpecResult) -> Why:
    """The share of its scenarios where that decides, and why one did not pass."""
    why, share = _why_of_part(spec), scenario_share(spec)
    return replace(why, text=f"{share}: {why.text}" if why.text else share) if share else why


def _why_of_part(spec: SpecResult) -> Why:
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


@dataclass(frozen=True, slots=True)
class SpecRow:
    """One spec. url: of its file; empty where that is not known. composite: with the baseline's where that was another.
    why: of the check that decided; of a pass only the share of scenarios, where that decides. check: its name,
    check_url its line, gate what kind of one it is."""

    verdict: str
    id: str
    path: str
    url: str
    passed: int
    total: int
    composite: str
    why: str = ""
    check: str = ""
    check_url: str = ""
    gate: str = ""
    more: int = 0


def spec_rows(run: RunResult, links: Mapping[str, str]) -> list[SpecRow]:
    """Worst first, else as they ran. links: addresses of the specs' files, by id."""
    ranked = sorted(run.specs, key=lambda spec: VERDICT_RANK[spec.verdict])
    before = {one.spec: one.score_before for one in run.baseline.specs} if run.baseline is not None else {}
    return [_row(spec, links.get(spec.id, ""), before.get(spec.id)) for spec in ranked]


def _row(spec: SpecResult, url: str, before: float | None) -> SpecRow:
    composite = words.score(spec.composite, beside=spec.pass_threshold)
    changed = before is not None and words.score(before) != words.score(spec.composite)
    row = SpecRow(
        verdict=spec.verdict,
        id=spec.id,
        path=spec.path,
        url=url,
        passed=sum(cell.verdict == "pass" for cell in spec.cells),
        total=len(spec.cells),
        composite=f"{words.score(before)} → {composite}" if changed else composite,
    )
    return replace(row, why=scenario_share(spec)) if spec.verdict == "pass" else _with_reason(row, spec)


def _with_reason(row: SpecRow, spec: SpecResult) -> SpecRow:
    why = why_of_spec(spec)
    if why.check is None:
        return replace(row, why=why.text)
    line = spec.positions.get(why.check.name)
    return replace(
        row,
        why=why.text,
        check=why.check.name,
        check_url=row.url + f"#L{line}" if row.url and line else "",
        gate=words.gate(why.check),
        more=why.more,
    )
