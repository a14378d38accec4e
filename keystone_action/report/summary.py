"""`summary.md`: what a reviewer looks at first, in GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keystone_action.report.addresses import Terms, report_link, safe_links
from keystone_action.report.again import command_again
from keystone_action.report.ladder import SUMMARY_LIMIT, Level, fit
from keystone_action.report.sentences import view
from keystone_action.report.sentences.causes import spec_rows
from keystone_action.report.sentences.compared import baseline_view, gate_view
from keystone_action.report.sentences.headline import headline
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.results import RunResult

TEMPLATE = "summary.md.j2"
MAX_SPECS = 1_000
"""Specs in the table."""
NO_PROMPTS = "What the agents were asked has no room here: it is in report.html"


def render_summary(
    run: RunResult, limit: int = SUMMARY_LIMIT, *, links: Mapping[str, str] | None = None, report: str = ""
) -> str:
    """The summary in at most `limit` bytes: prompts, then passes and the ends of failures give way, the verdict never.
    links: addresses of the specs' files, by id. report: where report.html is, as `report_link` takes it."""
    template = markdown_environment().get_template(TEMPLATE)
    return fit(lambda level: template.generate(summary_variables(run, level, links, report)), limit, levels(run))


def levels(run: RunResult) -> tuple[Level, ...]:
    """How a summary gives way: what agents were asked goes before anything that they did."""
    return ("everything", "unprompted", "failures") if _has_prompts(run) else ("everything", "failures")


def _has_prompts(run: RunResult) -> bool:
    return any(cell.prompts for spec in run.specs for cell in spec.cells)


def summary_variables(
    run: RunResult, level: Level, links: Mapping[str, str] | None = None, report: str = ""
) -> dict[str, Any]:
    """What the template is given."""
    several = len(run.specs) > 1
    # All specs stand in one table, each with its reason.
    why, more_why = ([], 0) if several else view.reasons(run)
    notes, more_notes = view.notes(run)
    if level != "everything" and _has_prompts(run):
        notes = [*notes, NO_PROMPTS]
    addresses = safe_links(links)
    rows = [row for row in spec_rows(run, addresses) if level != "failures" or row.verdict != "pass"]
    rows = rows if several else []
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
        "specs": tuple(item for item in view.spec_views(run, addresses) if not several or item.spec.verdict != "pass"),
        "spec_rows": rows[:MAX_SPECS],
        "spec_rows_left_out": max(0, len(rows) - MAX_SPECS),
        "report": report_link(report),
        "terms": Terms(),
        "again": command_again(run),
        "everything": level != "failures",
        "prompts": level == "everything",
        "max_passed": view.MAX_PASSED,
        "max_open": view.MAX_OPEN,
    }
