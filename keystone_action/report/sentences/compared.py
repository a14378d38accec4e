"""What changed, in words: a change of the gate against its base commit, and a run beside its baseline.

Plain text and numbers, nothing escaped: each report renders them by its own rules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO

from keystone_action.report import words
from keystone_action.report.escape import first_line, log_line
from keystone_action.report.sentences.facts import cost_facts
from keystone_action.scoring.aggregate import group_key
from keystone_action.scoring.differences import BaselineComparison, ChangeKind, Difference, SpecChange, SpecChanges
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.statistics import FEWEST_FOR_TEST, SIGNIFICANT, Stratum, worse_p_value

MAX_ROWS = 30
MAX_CHANGED_SPECS = 50
MAX_NAMES = 10
MAX_SENTENCE = 1_500
MAX_CHANGE = 3_000
"""Characters about one spec."""
MAX_GATE = 30_000
"""Characters about all specs; those that stand behind get less."""
_LEAST = 300
_WORTH_SAYING = 0.05
"""False alarms to be expected that are fewer than this need no sentence."""
ICONS: dict[ChangeKind, str] = {
    "broken": "❌",
    "flaky": "⚠️",
    "ungraded": "➖",
    "fixed": "✅",
    "steadied": "✅",
    "new": "🆕",
    "gone": "🗑️",
    "same": "▪️",
}
_ORDER = tuple(ICONS)
_TITLES: dict[ChangeKind, str] = {"ungraded": "not comparable", "steadied": "no longer flaky", "same": "unchanged"}


@dataclass(frozen=True, slots=True)
class GateView:
    """The change of the gate. headline: one sentence. lines: (path, what changed) of each workflow and spec, at most
    MAX_CHANGED_SPECS. is_unknown: whether there is only to be said that nothing could be compared, and why."""

    headline: str
    lines: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    is_unknown: bool = False


def gate_view(changes: SpecChanges | None) -> GateView | None:
    """What to say before anything else; None when the gate is as it was, or nothing was to be compared."""
    if changes is None or not (changes.problem or changes.specs or changes.workflows or changes.incomplete):
        return None
    found = (*changes.workflows, *changes.specs)  # what calls the gate can weaken all of it
    shown = found[:MAX_CHANGED_SPECS]
    lines, room = [], MAX_GATE
    for one in shown:
        lines.append((one.path, change_sentence(one, max(_LEAST, min(MAX_CHANGE, room)))))
        room -= len(lines[-1][1])
    unknown = bool(changes.problem) and not found
    return GateView(_one_line(_gate_headline(changes)), tuple(lines), len(found) - len(shown), unknown)


def _gate_headline(changes: SpecChanges) -> str:
    if changes.problem:
        known = "; what is known of it:" if changes.workflows or changes.specs else ""
        return f"Whether this change weakens its own gate is not known: {changes.problem}{known}"
    name, commit = changes.base_name, (changes.base or "")[:12]
    less = f"; {changes.incomplete}" if changes.incomplete else ""
    if not changes.specs and not changes.workflows:
        less = changes.incomplete[:1].upper() + changes.incomplete[1:]
        return f"{less}. Compared with commit {commit} ({name}), no change of the gate was found."
    if changes.spec_from == "head":
        return f"This change alters its own gate, compared with commit {commit} ({name}{less}):"
    as_there = f", as commit {commit} has them" if commit else ""
    if changes.workflows:
        without = "; its own specs had none" if changes.specs else ""
        how = f"this change alters how they are run, which had effect{without}"
        return f"The specs of {name} decided{as_there}, but {how}{less}:"
    return f"The specs of {name} decided{as_there}; those of this change differ and had no effect{less}:"


def change_sentence(change: SpecChange, longest: int = MAX_CHANGE) -> str:
    """What became of one spec, in one line: `threshold 0.85 → 0.5; removed: tests_pass`. What there is no room for is
    counted; the gravest stand first."""
    first = {"added": "spec added", "deleted": "spec deleted", "changed": ""}[change.change]
    sentences = [" ".join(one.splitlines()) for one in (first, *change.differences) if one]
    text = ""
    for number, one in enumerate(sentences):
        longer = f"{text}; {one}" if text else _one_line(one, longest)
        if len(longer) > longest:
            return f"{text}; … {len(sentences) - number} more in results.json"
        text = longer
    return text


def _one_line(text: str, longest: int = MAX_SENTENCE) -> str:
    """A line break in a name or a value must not end a sentence, and with it what it says of the rest."""
    return first_line(" ".join(text.splitlines()), longest)


def gate_lines(changes: SpecChanges | None) -> Iterator[str]:
    """The same for terminals and logs, a line each, not yet escaped."""
    view = gate_view(changes)
    if view is None:
        return
    yield view.headline
    yield from (f"  {path}: {what}" for path, what in view.lines)
    if view.left_out:
        yield f"  … and {words.count(view.left_out, 'file')} more"


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One line of a comparison. where: ids, outermost first. before, after: outcome with its count where there are
    replicas; scores: `0.90 → 0.77 (−0.13)`, empty without any; noise: what the test says, empty where it can't."""

    change: ChangeKind
    title: str
    where: tuple[str, ...]
    before: str
    after: str
    scores: str
    noise: str


@dataclass(frozen=True, slots=True)
class BaselineView:
    """A run beside its baseline. facts: the numbers in words; specs: one row for each spec, when there are several;
    rows: what changed, worst first, at most MAX_ROWS; notes: what to know before believing it."""

    headline: str
    facts: tuple[str, ...]
    specs: tuple[ChangeRow, ...]
    rows: tuple[ChangeRow, ...]
    left_out: int
    notes: tuple[str, ...]


def baseline_view(baseline: BaselineComparison | None, run: RunResult) -> BaselineView | None:
    """None without a baseline."""
    if baseline is None:
        return None
    several = len(baseline.specs) > 1
    whole = [one for one in baseline.specs if one.change in ("new", "gone")]
    groups = [one for one in baseline.groups if not (several and _is_whole_spec(one, run))]
    found = [*whole, *groups, *baseline.invariants]
    found.sort(key=lambda one: _ORDER.index(one.change))
    rows = tuple(_row(one, several=several) for one in found[:MAX_ROWS])
    return BaselineView(
        headline=_headline(found),
        facts=tuple(_facts(baseline, run)),
        specs=tuple(_row(one, several=True) for one in baseline.specs) if several else (),
        rows=rows,
        left_out=len(found) - len(rows),
        notes=tuple(_notes(baseline, run)),
    )


def _is_whole_spec(group: Difference, run: RunResult) -> bool:
    """Whether a group is all that its spec has: what is said of the one is said of the other."""
    return any(spec.id == group.spec and len(spec.groups) == 1 for spec in run.specs)


def _headline(found: list[Difference]) -> str:
    counts = Counter(one.change for one in found)
    said = {change: f"{counts[change]:,} {_TITLES.get(change, change)}" for change in _ORDER if counts[change]}
    if noisy := _could_be_noise(found):
        said["broken"] += f" ({noisy:,} could be noise)"
    return ", ".join(said.values()) or "no check or cell changed its outcome"


def _could_be_noise(found: Iterable[Difference]) -> int:
    """How many were tested, and are broken by their verdicts only."""
    return sum(one.change == "broken" and one.p_worse is not None and one.regression is None for one in found)


def _facts(baseline: BaselineComparison, run: RunResult) -> Iterator[str]:
    yield baseline.source
    if baseline.git_sha:
        yield f"commit {baseline.git_sha[:12]}"
    yield f"{baseline.verdict} → {run.verdict}"
    if scores := _scores(baseline.composite, run.composite):
        before = sum(one.total_before for one in baseline.specs)
        after = sum(one.total_after for one in baseline.specs)
        yield f"composite {scores}{_over(before, after)}"
    if len(baseline.specs) == 1 and (noise := _noise(baseline.specs[0])):
        one = baseline.specs[0]
        counts = f"{one.passed_before}/{one.total_before} → {one.passed_after}/{one.total_after}"
        yield f"cells passed {counts}: {noise}"


def _notes(baseline: BaselineComparison, run: RunResult) -> Iterator[str]:
    if baseline.changed_specs:
        shown = ", ".join(baseline.changed_specs[:10]) + (" …" if len(baseline.changed_specs) > 10 else "")
        yield f"Other spec files than in the baseline: {shown}. What is compared may not be the same."
    if baseline.changed_rules:
        more = (
            f" and {len(baseline.changed_rules) - MAX_NAMES:,} more" if len(baseline.changed_rules) > MAX_NAMES else ""
        )
        yield (
            f"Other rules than in the baseline: {', '.join(baseline.changed_rules[:MAX_NAMES])}{more}."
            " Each side keeps the verdicts by its own."
        )
    found = (*baseline.groups, *baseline.invariants)
    yield from _rules_used(baseline, found)
    renamed = baseline.regressions - sum(one.regression is not None for one in found)
    if renamed > 0:
        names = list(dict.fromkeys(_new_and_failing(baseline, run)))
        more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
        listed = f" ({', '.join(names[:MAX_NAMES])}{more})" if names else ""
        yield (
            f"What is new and fails{listed} may be what passed there under another name, and is gone: {renamed:,}"
            f" {'counts' if renamed == 1 else 'count'} as broken."
        )
    if baseline.partial:
        yield "Only a part of the cells ran here; what the baseline has besides is not called gone."
    if baseline.partial_baseline:
        yield "The baseline has only a part of the cells; what is called new may only not have run there."


def _rules_used(baseline: BaselineComparison, found: Sequence[Difference]) -> Iterator[str]:
    """Which of what changed counts as a regression, by what, and how often that is wrong."""
    by = Counter(one.regression for one in found)
    few = f"with fewer than {FEWEST_FOR_TEST} replicas"
    counted = [f"{by['test']:,} by the one-sided exact test (p < {SIGNIFICANT})"] if by["test"] else []
    stopped = any(one.regression == "flip" and 0 in (one.replicas_before, one.replicas_after) for one in found)
    few += " on a side" + (", or stopped when it was decided" if stopped else "")
    counted += [f"{by['flip']:,} as {'a flip' if by['flip'] == 1 else 'flips'}, {few}"] if by["flip"] else []
    if counted:
        yield f"Regressions: {' and '.join(counted)}."
    if noisy := _could_be_noise(found):
        yield f"{noisy:,} broken {'does' if noisy == 1 else 'do'} not count: by the exact test that could be noise."
    yield from _spread_thin(baseline, found)
    if baseline.tests and baseline.false_alarms >= _WORTH_SAYING:
        alarms = baseline.false_alarms
        wrong = (
            f"about {alarms:.0f} of these would be false alarms"
            if alarms >= 1
            else f"the chance of a false alarm would be at most {words.percent(alarms)}"
        )
        yield f"The exact test was made {words.count(baseline.tests, 'time')}; if nothing had changed, {wrong}."


def _spread_thin(baseline: BaselineComparison, found: Sequence[Difference]) -> Iterator[str]:
    """Specs that lost a little in many groups: no group shows it by itself, all of them together do."""
    counted = {one.spec for one in found if one.regression is not None}
    lost = [one for one in baseline.specs if one.spec not in counted and _passes_significantly_less(one)]
    for one in lost[:MAX_NAMES]:
        cells = f"{one.passed_before}/{one.total_before} → {one.passed_after}/{one.total_after}"
        yield (
            f"{first_line(one.spec, 100)} as a whole passes less often than chance explains ({cells}), though no group"
            " or check of it does by itself: that does not count as a regression."
        )


def _passes_significantly_less(one: Difference) -> bool:
    fewer = one.passed_after * one.total_before < one.passed_before * one.total_after
    return fewer and one.p_value is not None and one.p_value < SIGNIFICANT


def _new_and_failing(baseline: BaselineComparison, run: RunResult) -> Iterator[str]:
    """Checks that fail in what is new, or are new themselves; a cell that fails without one."""
    checks = {(one.spec, _group_of(one), one.invariant) for one in baseline.invariants if one.change == "new"}
    groups = {(one.spec, _group_of(one)) for one in baseline.groups if one.change == "new"}
    specs = {one.spec for one in baseline.specs if one.change == "new"}
    for spec in run.specs:
        for cell in spec.cells:
            group = group_key(cell)
            is_new = spec.id in specs or (spec.id, group) in groups
            failing = [check.name for check in cell.invariants if check.status == "fail"]
            names = [name for name in failing if is_new or (spec.id, group, name) in checks]
            for name in names or ([""] if is_new and cell.verdict == "fail" else []):
                yield " › ".join(first_line(part, 100) for part in (spec.id, cell.scenario, name) if part)


def _group_of(one: Difference) -> tuple[str | None, str]:
    """As `group_key` has it."""
    return one.scenario, json.dumps(one.params, sort_keys=True, default=str)


def _row(one: Difference, *, several: bool) -> ChangeRow:
    place = [one.spec] if several or one.scenario is None else []
    if one.scenario is not None and not (place == [one.scenario] and not one.params and one.invariant):
        params = ", ".join(f"{name}={value}" for name, value in one.params.items())
        place.append(f"{one.scenario} ({params})" if params else one.scenario)
    if one.invariant is not None:
        place.append(one.invariant)
    return ChangeRow(
        change=one.change,
        title=_TITLES.get(one.change, one.change),
        where=tuple(first_line(part, 200) for part in place),
        before=_outcome(one.before, one.passed_before, one.total_before),
        after=_outcome(one.after, one.passed_after, one.total_after),
        scores=_scores(one.score_before, one.score_after),
        noise=_noise(one),
    )


def _outcome(outcome: str | None, passed: int, total: int) -> str:
    if outcome is None:
        return "–"
    return f"{outcome} ({passed}/{total})" if total > 1 else outcome


def _scores(before: float | None, after: float | None) -> str:
    if before is None and after is None:
        return ""
    if before is None or after is None:
        return f"{words.score(before)} → {words.score(after)}"
    if abs(after - before) < 1e-9:
        return words.score(after)
    delta = after - before
    shown = words.score(abs(delta))
    return f"{words.score(before)} → {words.score(after)} ({'+' if delta > 0 else '−'}{shown})"


def _over(before: int, after: int) -> str:
    """The number of graded cells that means are over."""
    if not before and not after:
        return ""
    return f" over {words.count(after, 'cell')}" + (f" (baseline {before:,})" if before != after else "")


def _noise(one: Difference) -> str:
    if one.p_value is None or (one.passed_before, one.total_before) == (one.passed_after, one.total_after):
        return ""
    p_value = one.p_value if one.scenario is None else _one_sided(one)
    sides = "two-sided" if one.scenario is None else "one-sided"
    shown = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    flip = f"; a flip with fewer than {FEWEST_FOR_TEST} replicas counts" if one.regression == "flip" else ""
    return f"{'more than noise' if p_value < SIGNIFICANT else 'could be noise'} ({shown}, {sides}){flip}"


def _one_sided(one: Difference) -> float:
    """By the test that decides, in the direction of the difference."""
    before, after = (one.passed_before, one.total_before), (one.passed_after, one.total_after)
    is_less = after[0] * before[1] < before[0] * after[1]
    return worse_p_value(Stratum(*before, *after) if is_less else Stratum(*after, *before))


def baseline_lines(baseline: BaselineComparison | None, run: RunResult) -> Iterator[str]:
    """A comparison for terminals and logs, a line each, not yet escaped."""
    view = baseline_view(baseline, run)
    if view is None:
        return
    yield f"against the baseline: {view.headline} ({', '.join(view.facts)})"
    for row in (*view.specs, *view.rows):
        extra = "; ".join(filter(None, [row.scores and f"score {row.scores}", row.noise]))
        yield f"  {row.title}: {' › '.join(row.where)}: {row.before} → {row.after}{f' ({extra})' if extra else ''}"
    if view.left_out:
        yield f"  … and {view.left_out:,} more"
    yield from view.notes


def render_comparison(compared: BaselineComparison, head: RunResult, kind: str) -> str:
    """What `keystone compare` prints: lines, or with `json` the document that results have as `baseline`."""
    if kind == "json":
        from keystone_action.scoring.document import run_to_document

        document = run_to_document(replace(head, specs=(), baseline=compared))["baseline"]
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    return "".join(f"{log_line(line)}\n" for line in _comparison_lines(compared, head))


def _comparison_lines(compared: BaselineComparison, head: RunResult) -> Iterator[str]:
    """The comparison, and what agents and judges took: a report has that beside its verdict."""
    first, *others = baseline_lines(compared, head)
    yield first
    yield from (f"  {fact}" for fact in cost_facts(replace(head, baseline=compared)))
    yield from others


def print_comparison(compared: BaselineComparison, head: RunResult, file: IO[str]) -> None:
    """The same for a terminal, coloured."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, markup=False, highlight=False, emoji=False)
    styles = {"broken": "red", "flaky": "yellow", "fixed": "green", "no longer flaky": "green"}
    for number, line in enumerate(_comparison_lines(compared, head)):
        title = line.strip().partition(":")[0]
        console.print(Text(log_line(line), style="bold" if number == 0 else styles.get(title, "")), soft_wrap=True)
