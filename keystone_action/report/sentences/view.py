"""A run as its readers look at it: what decided, what to know about it, what failed, what passed.

Plain text and numbers, nothing escaped: summary and HTML both render this, each by its own rules.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keystone_action.report import words
from keystone_action.report.escape import excerpt, first_line, is_long
from keystone_action.report.sentences.causes import VERDICT_RANK, Failure, check_rank, failures, scenario_share
from keystone_action.report.sentences.facts import certainty, cost_facts, coverage, replay_note
from keystone_action.scoring.composite import SCORE_TOLERANCE, show_threshold
from keystone_action.scoring.results import (
    AgentResult,
    CellResult,
    ForbiddenResult,
    GroupResult,
    InvariantResult,
    RunResult,
    SpecResult,
)

MAX_REASONS = 5
MAX_NOTES = 20
MAX_GROUPS = 50
MAX_PASSED = 200
MAX_OPEN = 3
MAX_TURNS = 10
_WORST_FIRST = VERDICT_RANK


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that decided the verdict. where: ids, outermost first, as far as they are needed."""

    verdict: str
    where: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class InvariantRow:
    """One invariant over all cells of a spec. score: the mean where it was graded; message: of the worst cell; url: of
    its line of the spec, empty where that is not known; coverage: how much of it all a check saw, empty for
    everything."""

    name: str
    description: str
    type: str
    gate: str
    weight: float
    status: str
    score: float | None
    passed: int
    total: int
    message: str
    url: str = ""
    coverage: str = ""

    @property
    def why(self) -> str:
        """The message in one line, or what the status says by itself."""
        return first_line(self.message) or {"pass": "holds", "skip": "could not apply"}.get(self.status, "no reason")


@dataclass(frozen=True, slots=True)
class SpecView:
    """One spec. several: whether it has more than one cell; rows: failing gates first, then by the weight that was
    lost, else as declared; failures: the failed cells, equal ones once; groups: worst first, at most MAX_GROUPS, and
    none when there is only one. address: of the spec's file, empty where that is not known."""

    spec: SpecResult
    several: bool
    rows: tuple[InvariantRow, ...]
    failures: tuple[Failure, ...]
    failed: tuple[CellResult, ...]
    passed: tuple[CellResult, ...]
    groups: tuple[GroupResult, ...]
    groups_left_out: int
    address: str = ""

    @property
    def scenarios_differ(self) -> bool:
        """Whether the scenario tells groups apart; with one scenario only the parameters do."""
        return len({group.scenario for group in self.spec.groups}) > 1

    @property
    def weights_differ(self) -> bool:
        """Whether weights say anything: where all are equal, they don't."""
        return len({row.weight for row in self.rows}) > 1

    def url_of(self, named: InvariantResult | ForbiddenResult) -> str:
        """Of the line of a check or a forbidden rule; empty where that is not known."""
        line = self.spec.positions.get(named.name)
        # Added to, an address that was checked stays one that a link may have.
        return self.address + f"#L{line}" if self.address and line else ""

    @property
    def statistics(self) -> list[str]:
        """Pass rate, how sure it is, and the rule for replicas in words; empty for one cell."""
        spec, parts = self.spec, []
        if self.several and spec.pass_rate is not None:
            rate = spec.pass_rate
            value, low, high = (words.percent(part) for part in (rate.value, rate.low, rate.high))
            of = f" of {words.count(rate.n, 'cell')}" if rate.n else ""
            parts.append(f"pass rate {value}{of} (95% interval {low} to {high})")
        if spec.scenario_rate is not None:
            low, high = words.percent(spec.scenario_rate.low), words.percent(spec.scenario_rate.high)
            of = words.count(spec.scenario_rate.n, "graded scenario")
            parts.append(f"{scenario_share(spec)} (95% interval {low} to {high} of {of})")
        parts += certainty(spec)
        if any(group.total > 1 for group in spec.groups):
            parts.append(f"replicas needed: {spec.replica_aggregation}")
        return parts

    @property
    def facts(self) -> list[str]:
        """Composite, threshold and pass rate in words."""
        composite = words.score(self.spec.composite, beside=self.spec.pass_threshold)
        needed = f", {needs([self.spec])}" if self.spec.scenarios == "all" else ""
        composite = f"composite {composite}{counted_as_zero(self.spec.cells)}{needed}"
        passed = [f"{len(self.passed):,} of {words.count(len(self.spec.cells), 'cell')} passed"] if self.several else []
        return [composite, *passed, *self.statistics]


def spec_views(run: RunResult, links: Mapping[str, str] | None = None) -> Iterator[SpecView]:
    """The specs of a run, worst first. links: the address of a spec's file, by its id."""
    for spec in sorted(run.specs, key=lambda spec: _WORST_FIRST[spec.verdict]):
        groups = sorted(spec.groups, key=lambda group: _WORST_FIRST[group.verdict]) if len(spec.groups) > 1 else []
        yield SpecView(
            spec=spec,
            several=len(spec.cells) > 1,
            rows=tuple(sorted(_linked_rows(spec, (links or {}).get(spec.id, "")), key=_rank_in(spec))),
            failures=tuple(failures(spec.cells)),
            failed=tuple(cell for cell in spec.cells if cell.verdict != "pass"),
            passed=tuple(cell for cell in spec.cells if cell.verdict == "pass"),
            groups=tuple(groups[:MAX_GROUPS]),
            groups_left_out=max(0, len(groups) - MAX_GROUPS),
            address=(links or {}).get(spec.id, ""),
        )


def _linked_rows(spec: SpecResult, address: str) -> Iterator[InvariantRow]:
    for row in invariant_rows(spec.cells):
        line = spec.positions.get(row.name)
        yield replace(row, url=address + f"#L{line}") if address and line else row


def _rank_in(spec: SpecResult) -> Callable[[InvariantRow], tuple[float, bool, float]]:
    def rank(row: InvariantRow) -> tuple[float, bool, float]:
        decides = spec.verdict == "error"
        return check_rank(row.status, is_gate=bool(row.gate), weight=row.weight, score=row.score, decides=decides)

    return rank


def invariant_rows(cells: Iterable[CellResult]) -> Iterator[InvariantRow]:
    """One row for each invariant, in the order in which they are declared."""
    by_name: dict[str, list[InvariantResult]] = {}
    for cell in cells:
        for result in cell.invariants:
            by_name.setdefault(result.name, []).append(result)
    return (_row(results) for results in by_name.values())


def _row(results: list[InvariantResult]) -> InvariantRow:
    worst = min(results, key=lambda result: _WORST_FIRST[result.status])
    scores = [result.score for result in results if result.score is not None]
    passed = sum(result.status == "pass" for result in results)
    return InvariantRow(
        name=worst.name,
        description=worst.description if worst.description != worst.name else "",
        type=worst.type,
        gate=words.gate(worst),
        weight=worst.weight,
        status=worst.status,
        score=math.fsum(scores) / len(scores) if scores else None,
        passed=passed,
        total=len(results),
        message=worst.message,
        coverage=coverage(worst),
    )


def needs(specs: Sequence[SpecResult]) -> str:
    """`needs 0.85`, with its source when that is not the spec; empty when the specs differ. Of several cells it is each
    that needs it, not the mean that it stands beside, unless the rule for replicas is about the mean. Where a cell
    passed below that, its checks decided each for itself, as the scorers of an AgenticAssure suite do."""
    if any(_passed_below(spec) for spec in specs):
        return "every scorer has to pass"
    found = {(spec.pass_threshold, spec.threshold_source) for spec in specs}
    if len(found) != 1:
        return ""
    threshold, source = found.pop()
    of_cells = sum(len(spec.cells) for spec in specs) > 1 and all(one.replica_aggregation != "mean" for one in specs)
    needed = "a cell needs" if of_cells else "needs"
    return f"{needed} {show_threshold(threshold)}{' (set by the threshold input)' if source == 'input' else ''}"


def _passed_below(spec: SpecResult) -> bool:
    return any(
        cell.verdict == "pass" and cell.composite is not None and cell.composite < spec.pass_threshold - SCORE_TOLERANCE
        for cell in spec.cells
    )


def tells_more(failure: Failure, in_table: bool) -> bool:
    """Whether there is more to tell of a failure than its reason. in_table: its checks stand in a table already."""
    cell = failure.cell
    checks = [check for check in failure.checks if not in_table or is_long(check.message)]
    error = bool(cell.error and "\n" in cell.error.strip())
    rules = any(rule.violated for rule in cell.forbidden)
    return bool(checks or error or rules or failure.others) or cell.agent is not None


def is_one_cell(run: RunResult) -> bool:
    """Whether what is said of the run is said of its only cell."""
    return sum(len(spec.cells) for spec in run.specs) == 1


def came_to_cells(run: RunResult) -> bool:
    """Whether anything ran, so that there was a sandbox to speak of."""
    return any(spec.cells for spec in run.specs)


def icon(run: RunResult) -> str:
    """The symbol of the verdict; a cancelled run has its own, since what did not run can't pass."""
    return words.CANCELLED_ICON if run.cancelled else words.ICONS[run.verdict]


def facts(run: RunResult) -> list[str]:
    """Cells, or the checks of the only one, composite, time and usage in words."""
    return [
        *_passed_lines(run),
        *_composite(run),
        words.duration(run.duration_s),
        *cost_facts(run),
    ]


def _composite(run: RunResult) -> Iterator[str]:
    if run.composite is None:
        return
    mark = counted_as_zero(cell for spec in run.specs for cell in spec.cells)
    if run.verdict == "error" or run.cancelled:
        yield f"composite {words.score(run.composite)}{mark} of what was graded"
        return
    needed = needs(run.specs)
    if any(spec.scenarios != "all" for spec in run.specs):
        needed = ""  # a share of the scenarios decides, no composite does
    beside = run.specs[0].pass_threshold if needed and run.specs else None
    yield f"composite {words.score(run.composite, beside=beside)}{mark}" + (f", {needed}" if needed else "")


def counted_as_zero(cells: Iterable[CellResult]) -> str:
    """The mark of a composite in which checks that broke count as 0; empty where none does."""
    return " (what broke counts as 0)" if any(cell.counted_as_zero for cell in cells) else ""


def _passed_lines(run: RunResult) -> Iterator[str]:
    cells = run.counts.get("cells", 0)
    checks = Counter(check.status for spec in run.specs for cell in spec.cells for check in cell.invariants)
    if cells == 1 and checks:
        skipped = checks["skip"]
        yield f"{checks['pass']:,} of {words.count(checks.total() - skipped, 'check')} passed"
        if skipped:
            yield f"{skipped:,} skipped"
    elif cells:
        yield f"{run.counts.get('passed', 0):,} of {words.count(cells, 'cell')} passed"


def misleading_composite(run: RunResult) -> bool:
    """Whether the composite alone would pass although the run fails: then a reader must be told what decided."""
    thresholds = [spec.pass_threshold for spec in run.specs]
    return run.verdict == "fail" and run.composite is not None and run.composite >= max(thresholds)


def reasons(run: RunResult) -> tuple[list[Reason], int]:
    """Why the verdict is not just pass, worst first, and how many more there are than the few that are given. Of each
    verdict there is one among those: many failures hide nothing that is flaky."""
    found = sorted(_reasons(run), key=lambda reason: _WORST_FIRST[reason.verdict])
    of_each = list({reason.verdict: index for index, reason in reversed(list(enumerate(found)))}.values())
    others = [index for index in range(len(found)) if index not in of_each]
    shown = sorted([*of_each, *others][:MAX_REASONS])
    return [found[index] for index in shown], len(found) - len(shown)


def _reasons(run: RunResult) -> Iterator[Reason]:
    """Those of a spec that are told in equal words once."""
    for spec in run.specs:
        alike: dict[tuple[str, str], list[Reason]] = {}
        for reason in _reasons_of(spec, (spec.id,) if len(run.specs) > 1 else ()):
            alike.setdefault((reason.verdict, reason.text), []).append(reason)
        for first, *others in alike.values():
            more = f" (and {len(others):,} more, for the same reason)" if others else ""
            yield replace(first, text=f"{first.text}{more}")


def _reasons_of(spec: SpecResult, prefix: tuple[str, ...]) -> Iterator[Reason]:
    scenarios = {group.scenario for group in spec.groups}
    replicated = {_group_key(group): group for group in spec.groups if group.total > 1}
    bad: dict[tuple[str, str], list[CellResult]] = {}
    for cell in sorted(spec.cells, key=lambda cell: _WORST_FIRST[cell.verdict]):
        if cell.verdict != "pass":
            bad.setdefault(_group_key(cell), []).append(cell)
    for key, group in replicated.items():
        if group.verdict != "pass":
            where = (*prefix, group.scenario) if len(scenarios) > 1 else prefix
            where += (parameters(group.params),) if group.params else ()
            yield Reason(group.verdict, where, _group_reason(group, bad.get(key, [])))
    for cell in spec.cells:
        if cell.verdict != "pass" and _group_key(cell) not in replicated:
            yield Reason(cell.verdict, (cell.id,) if len(spec.cells) > 1 else prefix, cell_reason(cell))


def _group_key(of: GroupResult | CellResult) -> tuple[str, str]:
    return of.scenario, repr(sorted(of.params.items()))


def _group_reason(group: GroupResult, bad: Sequence[CellResult]) -> str:
    """The group's own, and what its replicas say, or the worst of them where they differ."""
    flaky = "flaky: " if group.verdict == "flaky" else ""
    said = list(dict.fromkeys(cell_reason(cell) for cell in bad))
    who = "each" if len(bad) > 1 and len(said) == 1 else f"replica {bad[0].replica}" if bad else ""
    detail = f"; {who}: {said[0]}" if said and said[0] not in group.reason else ""
    return first_line(f"{flaky}{group.reason}{detail}", 300)


def cell_reason(cell: CellResult) -> str:
    """Why a cell did not pass, in one line, with the checks that cost it where the reason names none of them."""
    reason = first_line(cell.reason or cell.error or "no reason was recorded", 300)
    if cell.verdict != "fail":
        return reason
    ended = first_line(words.stopped(cell.agent), 300)
    before = f"{ended}; " if ended not in reason else ""
    failed = [result.name for result in cell.invariants if result.status == "fail" and result.weight > 0]
    # What is said of the composite names no check, though a word of it may be some check's name.
    if not failed or (not reason.startswith("composite ") and any(_names(reason, name) for name in failed)):
        return f"{before}{reason}"
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"{before}{reason}; failed: {', '.join(failed[:3])}{more}"


def _names(sentence: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", sentence) is not None


def last_words(agent: AgentResult) -> list[tuple[str, str]]:
    """What an agent said, as (title, text): its output, and its stderr where it explains an end other than exit code 0
    or the absence of any output. Empty when it printed nothing."""
    found = [("Its output", agent.output)]
    if not agent.ended_well or not agent.output.strip():
        found.append(("Its stderr", agent.stderr))
    return [(title, text) for title, text in found if text.strip()]


def asked(prompts: Sequence[str], *, lines: int, characters: int) -> list[tuple[str, str]]:
    """What an agent was to be told, as (title, text): the first MAX_TURNS, of long ones mostly the head. lines: of
    each. characters: of all of them, about; what the short ones leave is the long ones'."""
    shown = prompts[:MAX_TURNS]
    room = _share([len(text) for text in shown], characters)
    found = [
        (f"Turn {number}" if number > 1 else "Prompt", excerpt(text, lines=lines, characters=room, head=0.75))
        for number, text in enumerate(shown, 1)
    ]
    if len(prompts) > MAX_TURNS:
        found.append(("More", f"{words.count(len(prompts) - MAX_TURNS, 'more turn')} in results.json"))
    return found


def _share(sizes: Sequence[int], total: int) -> int:
    """The size to cut each to, so that all of them take at most total."""
    left = total
    for place, size in enumerate(sorted(sizes)):
        each = left // (len(sizes) - place)
        if size > each:
            return each
        left -= size
    return total


def parameters(params: dict[str, Any]) -> str:
    """`model=a, size=3`; empty for none."""
    return ", ".join(f"{name}={value}" for name, value in params.items())


def notes(run: RunResult) -> tuple[list[str], int]:
    """What a reader must know before believing the verdict, and how many more there are: cancelled, not enforced,
    substituted, skipped, and what the runner and the cells noted."""
    found = [note for note in dict.fromkeys(_notes(run)) if first_line(note)]
    return found[:MAX_NOTES], max(0, len(found) - MAX_NOTES)


def _notes(run: RunResult) -> Iterator[str]:
    if run.cancelled:
        finished = sum(len(spec.cells) for spec in run.specs)
        yield f"Cancelled before the end: only what had finished is here ({words.count(finished, 'cell')})."
    if "none" in run.sandbox.isolation and not run.sandbox.not_enforced and came_to_cells(run):
        yield "Nothing isolated the agent from this machine."
    yield from (f"Not enforced: {sentence}" for sentence in run.sandbox.not_enforced)
    yield from (f"Substituted: {sentence}" for sentence in run.substituted)
    if replayed := replay_note(run):
        yield replayed
    yield from run.notices
    yield from _skipped_lines(run)
    cells = [cell for spec in run.specs for cell in spec.cells]
    # Of a cell that failed its reason says so.
    stopped = (words.stopped(cell.agent) for cell in cells if cell.verdict == "pass")
    cell_notes = Counter(sentence[:1].upper() + sentence[1:] for sentence in stopped if sentence)
    cell_notes.update(note for cell in cells for note in cell.notices)
    for note, times in cell_notes.items():
        yield f"{note} ({words.count(times, 'cell')})" if times > 1 else note


def _skipped_lines(run: RunResult) -> Iterator[str]:
    skipped = Counter(
        (result.name, first_line(result.message))
        for spec in run.specs
        for cell in spec.cells
        for result in cell.invariants
        if result.status == "skip"
    )
    for (name, message), times in skipped.items():
        often = f" in {words.count(times, 'cell')}" if times > 1 else ""
        yield f"Skipped{often}: {name}: {message}" if message else f"Skipped{often}: {name}"
