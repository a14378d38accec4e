"""The first line of every report: the product, the spec, the verdict and its reason, in one sentence.

It holds no number that contradicts the verdict: a composite stands in it only where the composite decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keystone_action.report import words
from keystone_action.report.escape import first_line, shortened
from keystone_action.report.sentences.causes import MAX_NAME, MAX_REASON, scenario_share, why_of_spec
from keystone_action.report.sentences.facts import replay_warning
from keystone_action.report.sentences.view import needs
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import RunResult, SpecResult

PRODUCT = "Keystone"
_VERBS: Mapping[Verdict, str] = {
    "pass": "passed",
    "flaky": "passed, but is flaky",
    "fail": "failed",
    "error": "ended with an error",
}


def headline(run: RunResult, *, longest_name: int = MAX_NAME) -> str:
    """One line, not yet escaped. What is to be known of a replay stands where no long name can push it out of sight,
    what broke beside a failure and how often cells were run before its reason. longest_name: characters of a spec's
    id."""
    warning = replay_warning(run)
    product = f"{PRODUCT} ({warning})" if warning else PRODUCT
    if run.cancelled:
        subject = f"{_names(run.specs, longest_name)} was cancelled" if run.specs else "cancelled"
        return f"{product}: {subject}: {_finished_words(run)}"
    if not run.specs and run.error is None and run.plan is not None and run.plan.shard is not None:
        return f"{PRODUCT}: shard {run.plan.shard} has none of the {words.count(run.plan.cells, 'cell')} of this run"
    if not run.specs:
        return f"{PRODUCT}: error: {_error(run) or 'nothing was graded'}"
    deciding = [spec for spec in run.specs if spec.verdict == run.verdict] or list(run.specs)
    line = f"{product}: {_subject(run, deciding, longest_name)} {_VERBS[run.verdict]}"
    if run.verdict in ("fail", "error"):
        where = "" if scenario_share(deciding[0]) else _how_many(run)
        return f"{line}{f' in {where}' if where else ''}{_beside(run)}: {_why(run, deciding[0])}"
    return f"{line}{_beside(run)}: {_passed_words(run)}"


def _beside(run: RunResult) -> str:
    """` (1 check broke; 3 tries of 2 cells)`: cells in error and checks that broke where the verdict is certain without
    them (a cell in error has them for its reason), and how often cells were run where one was run again."""
    cells = [cell for spec in run.specs for cell in spec.cells]
    broken = sum(len(cell.broken_beside) for cell in cells)
    tries = [cell.attempts for cell in cells if cell.attempts]
    ungraded = 0 if run.verdict == "error" else sum(cell.verdict == "error" for cell in cells)
    told = [f"{words.count(ungraded, 'cell')} in error"] if ungraded else []
    told += [f"{words.count(broken, 'check')} broke"] if broken else []
    if sum(tries) > len(tries):
        told.append(f"{sum(tries):,} tries" + (f" of {words.count(len(tries), 'cell')}" if len(tries) > 1 else ""))
    return f" ({'; '.join(told)})" if told else ""


def _names(specs: Iterable[SpecResult], longest: int) -> str:
    ids = [first_line(spec.id, longest) for spec in specs]
    return ids[0] if len(ids) == 1 else f"{len(ids):,} specs"


def _subject(run: RunResult, deciding: list[SpecResult], longest: int) -> str:
    if run.verdict in ("pass", "flaky") or len(run.specs) == 1:
        return _names(run.specs, longest)
    first, others = _names(deciding[:1], longest), len(deciding) - 1
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
    if len(run.specs) == 1 and (share := scenario_share(run.specs[0])):
        return share
    if len(cells) != 1:
        return f"{run.counts.get('passed', 0):,} of {words.count(run.counts.get('cells', 0), 'cell')}"
    graded = [check for check in cells[0].invariants if check.status != "skip"]
    if any(check.status != "pass" for check in graded):
        composite = words.score(cells[0].composite, beside=run.specs[0].pass_threshold)
        return f"composite {composite}, {needs(run.specs)}"
    return f"{len(graded):,} of {words.count(len(graded), 'check')}"


def _why(run: RunResult, spec: SpecResult) -> str:
    """spec: the first that decided, or any where none did, but something that is not a spec's doing."""
    own = why_of_spec(spec).sentence if spec.verdict == run.verdict else ""
    return own or _error(run) or "nothing says why"


def _error(run: RunResult) -> str:
    return shortened(first_line(run.error or "", 1_000), MAX_REASON).rstrip(":")
