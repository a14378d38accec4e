"""`summary.md`: what a reviewer looks at first, in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.report import view
from keystone_action.report.addresses import safe_links
from keystone_action.report.again import command_again
from keystone_action.report.comment.ladder import SUMMARY_LIMIT, Level, fit
from keystone_action.report.compared import baseline_view, gate_view
from keystone_action.report.headline import headline
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.results import RunResult

TEMPLATE = "summary.md.j2"


def render_summary(run: RunResult, limit: int = SUMMARY_LIMIT, *, links: Mapping[str, str] | None = None) -> str:
    """The summary in at most `limit` bytes: passes and then the ends of failures give way; the verdict never does.
    links: addresses of the specs' files, by id."""
    template = markdown_environment().get_template(TEMPLATE)
    return fit(lambda level: template.generate(summary_variables(run, level, links)), limit)


def summary_variables(run: RunResult, level: Level, links: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the template is given."""
    why, more_why = view.reasons(run)
    notes, more_notes = view.notes(run)
    return {
        "result": run,
        "gate": gate_view(run.spec_changes),
        "baseline": baseline_view(run.baseline, run),
        "icon": view.icon(run),
        "headline": headline(run),
        "facts": view.facts(run),
        "misleading": view.misleading_composite(run),
        "reasons": why,
        "reasons_left_out": more_why,
        "notes": notes,
        "notes_left_out": more_notes,
        # Not an iterator: a template of others may go over them more than once.
        "specs": tuple(view.spec_views(run, safe_links(links))),
        "again": command_again(run),
        "everything": level == "everything",
        "max_passed": view.MAX_PASSED,
        "max_open": view.MAX_OPEN,
    }
