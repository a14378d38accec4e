"""What a comment that is there becomes: a verdict of the commit that people look at is never hidden behind one of
another job that is better, nor behind a run that came to none."""

from __future__ import annotations

import re
from dataclasses import replace

from keystone_action.report import words
from keystone_action.report.addresses import safe_link
from keystone_action.report.comment.history import Previous
from keystone_action.report.comment.jobs import Job, is_worse, worst
from keystone_action.report.comment.ladder import COMMENT_LIMIT
from keystone_action.report.comment.marker import Marker
from keystone_action.report.comment.render import (
    SHARED,
    CommentFacts,
    CommentProgress,
    is_judged,
    render_comment,
    render_running,
)
from keystone_action.report.escape import first_line, prose
from keystone_action.scoring.results import RunResult

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
    if shown is not None and (run.cancelled or (not is_judged(run) and not others and is_worse(shown, "flaky"))):
        return _with_note(previous, marker, _ending(run), limit, run_url=facts.run_url)
    worst_other = worst(verdict for _, verdict in others.values())
    jobs = previous.jobs.with_result(job, run.verdict)
    kept = previous.jobs.shown
    if is_worse(worst_other, run.verdict) and kept in others and others[kept][1] == worst_other:
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
