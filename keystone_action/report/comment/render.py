"""The comment on a pull request: verdict and composite first, then what changed, what failed and why, in few lines.

Everything that others wrote is escaped as in the summary. A verdict of the commit that people look at is never hidden
behind a better one of another job, nor behind a run that came to none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keystone_action.report import words
from keystone_action.report.addresses import Terms, report_link, safe_link, safe_links
from keystone_action.report.again import command_again
from keystone_action.report.comment.history import (
    CheckChanges,
    Job,
    Jobs,
    LastResult,
    Marker,
    Previous,
    changes_since,
    encode_commit,
    is_worse_verdict,
    without_hidden,
    worst_verdict,
)
from keystone_action.report.escape import first_line, prose
from keystone_action.report.ladder import COMMENT_LIMIT, Level, fit
from keystone_action.report.sentences import view
from keystone_action.report.sentences.causes import SpecRow, spec_rows
from keystone_action.report.sentences.compared import baseline_view, gate_view
from keystone_action.report.sentences.headline import headline
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import RunResult

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "comment.md.j2"
RUNNING = "running.md.j2"
MAX_ROWS = 40
"""Failing checks, or specs that did not pass, in the table."""
MAX_SHOWN = 10
"""Failing checks that are seen at once, the others are folded; and specs above which those that passed are folded."""
MAX_FOLDED = 100
"""Specs that passed in their table."""
MAX_NAMES = 8
"""Names in a list of what changed."""
MAX_CELLS = 10
"""Failed cells with what they printed."""
SHARED = (
    "More than one job of this run writes this comment, which shows the worst of them: "
    "give each a `comment-key` of its own"
)
_OTHERS: Mapping[str, str] = {
    "error": "Keystone: another job of this run ended with an error",
    "fail": "Keystone: another job of this run failed",
    "flaky": "Keystone: another job of this run passed, but is flaky",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentFacts:
    """What a comment says beside the result.

    sha: the commit that people see. run_url: of the workflow's run, left out unless it is a plain address. origin:
    sentences about where results of others come from; doubted: whether they warn. reporter: whose word the verdict is,
    when it is not ours. before: what the last comment remembers. jobs: those that write the comment. shared: the worst
    verdict of the others among them. links: addresses of the specs' files, by id.
    """

    sha: str = ""
    run_url: str = ""
    origin: str = ""
    doubted: bool = False
    reporter: str = ""
    before: LastResult | None = None
    jobs: Jobs = field(default_factory=Jobs)
    shared: Verdict | None = None
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommentProgress:
    """How far a run is. cells: how many there are; passed, failed: of those that finished, errors among the failed."""

    cells: int
    passed: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def finished(self) -> int:
        """Cells that are done."""
        return self.passed + self.failed


def render_comment(run: RunResult, marker: Marker, facts: CommentFacts, *, limit: int = COMMENT_LIMIT) -> str:
    """The comment in at most `limit` characters: what cells printed gives way first, the verdict never. Its last line
    is the marker."""
    remembered = _remember(run, facts)
    template = markdown_environment().get_template(TEMPLATE)
    room = limit - marker.size(remembered)
    # Before the text is fitted, since what is made harmless grows.
    text = fit(lambda level: map(without_hidden, _pieces(template, run, facts, level)), room)
    return marker.sign(text, remembered)


def render_running(progress: CommentProgress, marker: Marker, facts: CommentFacts) -> str:
    """The comment while cells run. What the last result was stays in it, and is remembered."""
    template = markdown_environment().get_template(RUNNING)
    text = template.render(
        progress=progress,
        facts=[f"{progress.passed:,} passed, {progress.failed:,} did not", words.duration(progress.seconds)],
        before=facts.before,
        last=None if facts.before is None else _in_words(facts.before),
        icon=None if facts.before is None else words.ICONS[facts.before.verdict],
        sha=facts.sha,
        run_url=safe_link(facts.run_url),
    )
    return marker.sign(text, _without_result(facts))


def render_superseded(url: str) -> str:
    """What stands in a comment that another one of ours replaces. url: of that one."""
    link = safe_link(url.partition("#")[0])
    anchor = url.partition("#")[2]
    if link and re.fullmatch(r"[A-Za-z0-9-]+", anchor):
        return f"Superseded by [another comment]({link}#{anchor}) of this run: two jobs wrote at the same time.\n"
    return "Superseded by another comment of this run: two jobs wrote at the same time.\n"


def _remember(run: RunResult, facts: CommentFacts) -> str:
    """A run that judged nothing, or not everything, leaves what was known before, and names its own commit."""
    return LastResult.of(run, facts.sha).encode(jobs=facts.jobs) if is_judged(run) else _without_result(facts)


def _without_result(facts: CommentFacts) -> str:
    if facts.before is None:
        return encode_commit(facts.sha, facts.jobs)
    return facts.before.encode(commit=facts.sha, jobs=facts.jobs)


def is_judged(run: RunResult) -> bool:
    """Whether a run came to a verdict on what the agent did."""
    return bool(run.specs) and not run.cancelled


def _pieces(template: Template, run: RunResult, facts: CommentFacts, level: Level) -> Iterator[str]:
    several = len(run.specs) > 1
    why, more_why = ([], 0) if several else view.reasons(run)
    notes, more_notes = view.notes(run)
    links = safe_links(facts.links)
    items = list(view.spec_views(run, links))
    rows = [] if several or not items else [row for row in items[0].rows if row.status in ("fail", "error")]
    specs, passed = _in_table(spec_rows(run, links)) if several else ([], [])
    in_table = view.is_one_cell(run)
    cells = [(item, one) for item in items for one in item.failures if view.tells_more(one, in_table)]
    others_are_worse = is_worse_verdict(facts.shared, run.verdict)
    return template.generate(
        result=run,
        icon=words.ICONS[facts.shared] if others_are_worse and facts.shared else view.icon(run),
        headline=_OTHERS[facts.shared] if others_are_worse and facts.shared else headline(run),
        own=f"{view.icon(run)} {headline(run)}" if others_are_worse else "",
        shared=SHARED if facts.shared else "",
        facts=view.facts(run),
        certain=[] if several or not items else items[0].statistics,
        origin=facts.origin,
        doubted=facts.doubted,
        reporter=facts.reporter,
        gate=gate_view(run.spec_changes),
        baseline=baseline_view(run.baseline, run),
        changed=_change_lines(changes_since(facts.before, run), run) if is_judged(run) else None,
        misleading=view.misleading_composite(run),
        reasons=why,
        reasons_left_out=more_why,
        notes=notes,
        notes_left_out=more_notes,
        spec_rows=specs[:MAX_ROWS],
        spec_rows_left_out=max(0, len(specs) - MAX_ROWS),
        passed_rows=passed if level == "everything" else [],
        rows=rows[:MAX_ROWS],
        max_shown=MAX_SHOWN,
        rows_left_out=max(0, len(rows) - MAX_ROWS),
        several=any(len(spec.cells) > 1 for spec in run.specs),
        weights=len({row.weight for row in rows}) > 1,
        cells=cells[:MAX_CELLS] if level == "everything" else [],
        cells_left_out=sum(failure.number for _, failure in cells[MAX_CELLS:]) if level == "everything" else 0,
        again=command_again(run),
        report=report_link(facts.run_url),
        terms=Terms(),
        sha=facts.sha,
        run_url=safe_link(facts.run_url),
    )


def _in_table(rows: list[SpecRow]) -> tuple[list[SpecRow], list[SpecRow]]:
    """The specs that are seen at once, and those that are folded: where there are many, those that passed."""
    if len(rows) <= MAX_SHOWN:
        return rows, []
    passed = [row for row in rows if row.verdict == "pass"]
    return [row for row in rows if row.verdict != "pass"], passed[:MAX_FOLDED]


def _change_lines(found: CheckChanges | None, run: RunResult) -> dict[str, Any] | None:
    if found is None:
        return None
    after = LastResult(run.verdict, run.composite)
    same = (found.before.verdict, found.before.composite) == (after.verdict, after.composite)
    named = (
        ("fixed", found.fixed),
        ("broken", found.broken),
        ("now skipped", found.skipped),
        ("no longer skipped", found.applied),
        ("new", found.new),
    )
    return {
        "before": f"{words.ICONS[found.before.verdict]} {_in_words(found.before)}",
        "after": f"{words.ICONS[after.verdict]} {_in_words(after)}",
        "sha": found.before.sha[:7],
        "nothing": same and not found.moved,
        "named": [(word, names[:MAX_NAMES], max(0, len(names) - MAX_NAMES)) for word, names in named if names],
        "gone": found.gone,
    }


def _in_words(before: LastResult) -> str:
    # What was graded beside an error says nothing of the whole.
    unknown = before.composite is None or before.verdict == "error"
    composite = "" if unknown else f", composite {words.score(before.composite)}"
    return f"{words.TITLES[before.verdict]}{composite}"


_NOTE = re.compile(r"\A(?P<headline>[^\n]*)\n\n(?:> \[!NOTE\]\n> \*\*Since then:\*\* [^\n]*\n\n)?")
"""The first line of a comment, with the note that stands below it, if there is one."""


def comment_of_result(
    previous: Previous | None,
    run: RunResult,
    marker: Marker,
    facts: CommentFacts,
    job: Job,
    *,
    limit: int = COMMENT_LIMIT,
) -> str:
    """The comment when a job has ended. previous: the one that is there."""
    if previous is None:
        return render_comment(run, marker, replace(facts, jobs=facts.jobs.with_result(job, run.verdict)), limit=limit)
    shown = previous.verdict_on(facts.sha)
    others = previous.jobs.others(job)
    if shown is not None and (
        run.cancelled or (not is_judged(run) and not others and is_worse_verdict(shown, "flaky"))
    ):
        return _with_note(previous, marker, _ending(run), limit, run_url=facts.run_url)
    worst_other = worst_verdict(verdict for _, verdict in others.values())
    jobs = previous.jobs.with_result(job, run.verdict)
    kept = previous.jobs.shown
    if is_worse_verdict(worst_other, run.verdict) and kept in others and others[kept][1] == worst_other:
        return _with_note(replace(previous, jobs=jobs.showing(kept)), marker, SHARED, limit)
    # Of another job there is nothing to say what changed since.
    before = None if others else previous.result
    return render_comment(run, marker, replace(facts, before=before, jobs=jobs, shared=worst_other), limit=limit)


def comment_of_progress(
    previous: Previous, progress: CommentProgress, marker: Marker, facts: CommentFacts, *, limit: int = COMMENT_LIMIT
) -> str:
    """The comment while cells run."""
    if previous.verdict_on(facts.sha) is None:
        return render_running(progress, marker, replace(facts, before=previous.result, jobs=previous.jobs))
    cells = f"{progress.finished:,} of {words.count(progress.cells, 'cell')} finished"
    note = f"another run of this commit is under way, {cells}"
    return _with_note(previous, marker, note, limit, run_url=facts.run_url)


def _ending(run: RunResult) -> str:
    if run.cancelled:
        return "another run of this commit was cancelled before its end"
    reason = first_line(run.error or "", 200) or "nothing was graded"
    return f"another run of this commit came to no verdict on the agent: {reason}"


def _with_note(previous: Previous, marker: Marker, note: str, limit: int, *, run_url: str = "") -> str:
    """The comment as it is, with a note below its first line in place of an earlier one."""
    link = safe_link(run_url)
    block = f"> [!NOTE]\n> **Since then:** {prose(note)}{f' · [run]({link})' if link else ''}\n\n"
    text = _NOTE.sub(lambda match: f"{match['headline']}\n\n{block}", f"{previous.text}\n", count=1)
    memory = previous.remembering(previous.jobs)
    signed = marker.sign(text, memory)
    return signed if len(signed.encode()) <= limit else marker.sign(previous.text, memory)
