"""The job summary: Markdown in the file that GITHUB_STEP_SUMMARY names, up to 1,048,576 bytes a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from keystone_action.errors import OutputError
from keystone_action.scoring.results import RunResult

MAX_SUMMARY = 1024 * 1024
"""Bytes; above it the runner shows nothing at all of a step's summary and an error instead."""
_SMALLEST = 256
"""Bytes below which no summary is worth rendering."""


def append_summary(path: Path, run: RunResult) -> bool:
    """Appends the run's summary, made small enough to fit beside what the file already holds.

    Returns False when no room was left. Raises OutputError when the file can't be written.
    """
    from keystone_action.report.summary import render_summary

    return append_text(path, lambda room: render_summary(run, limit=room))


def append_text(path: Path, render: Callable[[int], str]) -> bool:
    """Appends what `render` makes of so many bytes of room. Returns and raises as `append_summary`; nothing is written
    of a text that is too long all the same."""
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
