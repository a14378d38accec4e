"""The page in pieces: what decided first, as markup; then every cell, as data that its script shows."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.report.page.cell import details
from keystone_action.report.page.rows import Index, Placed, worst_first
from keystone_action.report.sentences import view
from keystone_action.report.sentences.compared import baseline_view, gate_view
from keystone_action.report.sentences.headline import headline
from keystone_action.report.templating import html_environment
from keystone_action.scoring.fields import plain_json
from keystone_action.scoring.results import InvariantResult, RunResult

if TYPE_CHECKING:
    from keystone_action.report.page.charts import Chart, ParameterSet

TEMPLATE = "report.html.j2"
STYLE = "report.css"
SCRIPTS = ("data.js", "elements.js", "grid.js", "filters.js", "cell.js", "page.js")
"""In `templates/report/`; one script in this order."""
MAX_WHOLE = 50
"""Failed cells that a browser without scripts shows whole."""
MAX_NAMED = 500
"""Further ones that it names."""
MAX_FALLBACK_CHECKS = 100
"""Checks of a cell that it shows."""
MAX_OPEN_SPECS = 3
# Glyphs of every font, coloured by the style sheet; emoji would need a font that servers and mail readers lack.
MARKS = {"pass": "✓", "fail": "✗", "flaky": "~", "error": "!", "skip": "–"}


def render_html(run: RunResult, directory: Path | None = None) -> str:
    """The whole page. directory: of the run, whose files of cells are shown too; None shows the results alone."""
    return "".join(html_pieces(run, directory))


def html_pieces(run: RunResult, directory: Path | None = None) -> Iterator[str]:
    """The page in pieces of at most one cell. It loads nothing, and its policy lets nothing run but our own script."""
    style, script = _asset(STYLE), script_text()
    environment = html_environment()
    environment.filters |= {"details": _details, "icon": MARKS.__getitem__}
    why, more_why = view.reasons(run)
    notes, more_notes = view.notes(run)
    cells = worst_first(run)
    pictures, sets = _charts(run, cells)
    yield from environment.get_template(TEMPLATE).generate(
        result=run,
        gate=gate_view(run.spec_changes),
        baseline=baseline_view(run.baseline, run),
        style=style,
        style_hash=_digest(style),
        script=script,
        script_hash=_digest(script),
        icon="■" if run.cancelled else MARKS[run.verdict],
        headline=headline(run),
        facts=view.facts(run),
        misleading=view.misleading_composite(run),
        reasons=why,
        reasons_left_out=more_why,
        notes=notes,
        notes_left_out=more_notes,
        specs=list(view.spec_views(run)),
        charts=pictures,
        parameter_sets=sets,
        index=Index(run, cells).pieces(),
        cells=details(run.specs, cells, directory),
        max_open_specs=MAX_OPEN_SPECS,
        max_whole=MAX_WHOLE,
        max_named=MAX_NAMED,
        max_checks=MAX_FALLBACK_CHECKS,
        max_open=view.MAX_OPEN,
    )


def _charts(run: RunResult, cells: Sequence[Placed]) -> tuple[list[Chart], list[ParameterSet]]:
    """None for a single cell, whose report must not wait for the library that draws."""
    if len(cells) < 2:
        return [], []
    from keystone_action.report.page.charts import charts

    return charts(run, cells)


def script_text() -> str:
    """All scripts of the page as one."""
    return "'use strict';\n(() => {\n" + "".join(_asset("report", name) for name in SCRIPTS) + "})();\n"


def _asset(*parts: str) -> str:
    return files("keystone_action.report").joinpath("templates", *parts).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _details(result: InvariantResult) -> str:
    return json.dumps(plain_json(result.details), indent=2, ensure_ascii=False)
