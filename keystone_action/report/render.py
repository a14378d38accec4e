"""One run, one format: what `keystone report DIR --format …` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from keystone_action.scoring.results import RunResult

Format = Literal["md", "html", "junit", "json"]


def render(run: RunResult, fmt: Format, directory: Path | None = None) -> str:
    """The report as the file of that format has it, ending in a newline. directory: of the run, for the format that
    shows the files of its cells, too."""
    if fmt == "md":
        from keystone_action.report.summary import render_summary

        return render_summary(run)
    if fmt == "html":
        from keystone_action.report.page.render import render_html

        return render_html(run, directory)
    if fmt == "junit":
        from keystone_action.report.junit import render_junit

        return render_junit(run)
    from keystone_action.report.escape import json_without_commands
    from keystone_action.report.results import render_results

    return json_without_commands(render_results(run))
