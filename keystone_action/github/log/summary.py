"""The job summary: Markdown in the file that GITHUB_STEP_SUMMARY names, up to 1,048,576 bytes a step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from keystone_action.errors import OutputError
from keystone_action.files.ownership import hand_over
from keystone_action.github.log.summary_template import SummaryTemplate, TemplateError
from keystone_action.scoring.results import RunResult

MAX_SUMMARY = 1024 * 1024
"""Bytes; above it the runner shows nothing at all of a step's summary and an error instead."""
_SMALLEST = 256
"""Bytes below which no summary is worth rendering."""


class Summaries:
    """What a run's summary is: by the workflow's own template, if it has one, else ours. warn: is told when the
    template can't be rendered; ours stands in for it then, and from there on. links: addresses of the specs' files;
    run_url: of the workflow's run, which has the other reports."""

    def __init__(self, template: SummaryTemplate | None, warn: Callable[[str], None]) -> None:
        self.template = template
        self.links: Mapping[str, str] = {}
        self.run_url = ""
        self._warn = warn

    def text(self, run: RunResult, limit: int) -> str:
        """The summary in at most so many bytes. A job that is being cancelled has no time for a template."""
        from keystone_action.report.summary import render_summary

        if self.template is not None and not run.cancelled:
            try:
                return self.template.render(run, limit)
            except TemplateError as problem:
                self._give_up(problem.message)
            except Exception as error:  # noqa: BLE001 - what breaks here changes no verdict
                self._give_up(f"rendering it broke: {type(error).__name__}: {error}")
        return render_summary(run, limit, links=self.links, report=self.run_url)

    def replace_file(self, run: RunResult, directory: Path, workspace: Path) -> None:
        """Writes summary.md by the template in place of ours. Without one, or when that fails, ours stays."""
        from keystone_action.report.write import SUMMARY, write_file

        if self.template is None:
            return
        text = self.text(run, MAX_SUMMARY)
        if self.template is not None:
            write_file(directory / SUMMARY, [text])
            hand_over([directory / SUMMARY], workspace)

    def _give_up(self, problem: str) -> None:
        self.template = None
        self._warn(f"the summary is Keystone's own, since the summary-template failed: {problem}")


def append_text(path: Path, render: Callable[[int], str]) -> bool:
    """Appends what `render` makes of so many bytes of room.

    Returns False when no room was left; nothing is written of a text that is too long even so. Raises OutputError
    when the file can't be written.
    """
    try:
        used = path.stat().st_size if path.exists() else 0
        separator = "\n" if used else ""
        room = MAX_SUMMARY - used - len(separator) - 1
        if room < _SMALLEST:
            return False
        text = separator + render(room).rstrip("\n") + "\n"
        if len(text.encode("utf-8", "backslashreplace")) > MAX_SUMMARY - used:
            return False
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OutputError(f"the summary could not be written to {path}: {error.strerror}") from error
    return True
