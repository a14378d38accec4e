"""`summary.md`: what a reviewer looks at first, in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from keystone_action.report import view
from keystone_action.report.compared import baseline_view, gate_view
from keystone_action.report.ladder import SUMMARY_LIMIT, Level, fit
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.results import RunResult

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "summary.md.j2"


def render_summary(run: RunResult, limit: int = SUMMARY_LIMIT) -> str:
    """The summary in at most `limit` bytes: passes and then the ends of failures give way; the verdict never does."""
    template = markdown_environment().get_template(TEMPLATE)
    return fit(lambda level: _pieces(template, run, level), limit)


def _pieces(template: Template, run: RunResult, level: Level) -> Iterator[str]:
    why, more_why = view.reasons(run)
    notes, more_notes = view.notes(run)
    return template.generate(
        result=run,
        gate=gate_view(run.spec_changes),
        baseline=baseline_view(run.baseline, run),
        icon=view.icon(run),
        headline=view.headline(run),
        facts=view.facts(run),
        misleading=view.misleading_composite(run),
        reasons=why,
        reasons_left_out=more_why,
        notes=notes,
        notes_left_out=more_notes,
        specs=view.spec_views(run),
        everything=level == "everything",
        max_passed=view.MAX_PASSED,
        max_open=view.MAX_OPEN,
    )
