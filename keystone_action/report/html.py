"""`report.html`: one file that needs nothing else, for people who want to look closer."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from keystone_action.report import view
from keystone_action.report.compared import baseline_view, gate_view
from keystone_action.report.headline import headline
from keystone_action.report.templating import html_environment
from keystone_action.scoring.fields import json_value
from keystone_action.scoring.results import InvariantResult, RunResult

TEMPLATE = "report.html.j2"
MAX_FAILED = 500
MAX_BARS = 200
# Glyphs of every font, coloured by the style sheet; emoji would need a font that servers and mail readers lack.
MARKS = {"pass": "✓", "fail": "✗", "flaky": "~", "error": "!", "skip": "–"}


def render_html(run: RunResult) -> str:
    """The page. It loads nothing and runs nothing: its own style sheet is all that its policy allows."""
    style = files("keystone_action.report").joinpath("templates", "report.css").read_text(encoding="utf-8")
    environment = html_environment()
    environment.filters |= {"details": _details, "icon": MARKS.__getitem__}
    why, more_why = view.reasons(run)
    notes, more_notes = view.notes(run)
    return environment.get_template(TEMPLATE).render(
        result=run,
        gate=gate_view(run.spec_changes),
        baseline=baseline_view(run.baseline, run),
        style=style,
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        icon="■" if run.cancelled else MARKS[run.verdict],
        headline=headline(run),
        facts=view.facts(run),
        misleading=view.misleading_composite(run),
        reasons=why,
        reasons_left_out=more_why,
        notes=notes,
        notes_left_out=more_notes,
        specs=list(view.spec_views(run)),
        max_failed=MAX_FAILED,
        max_open=view.MAX_OPEN,
        max_passed=view.MAX_PASSED,
        max_bars=MAX_BARS,
    )


def _details(result: InvariantResult) -> str:
    return json.dumps(json_value(result.details), indent=2, ensure_ascii=False)
