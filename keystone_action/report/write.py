"""The files of a run's directory, each whole or not there at all, and what `keystone report DIR --format …` prints.

`results.json` has one cell a line, so that people can read it and diffs stay small. A plan has a summary too: the cells
that the jobs of a matrix will run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from keystone_action.errors import OutputError
from keystone_action.report import words
from keystone_action.report.escape import code
from keystone_action.report.junit import junit_pieces
from keystone_action.report.page.render import html_pieces
from keystone_action.report.summary import render_summary
from keystone_action.scoring.document import RESULTS_FILE, cell_to_document, run_to_document
from keystone_action.scoring.results import RunResult, SpecResult


def render_results(run: RunResult) -> str:
    """The whole document, ending in a newline."""
    return "".join(results_pieces(run))


def results_pieces(run: RunResult) -> Iterator[str]:
    """The document in pieces of at most one cell, so that ten thousand of them take no memory."""
    outline = run_to_document(replace(run, specs=tuple(replace(spec, cells=()) for spec in run.specs)))
    for index, (key, value) in enumerate(outline.items()):
        yield ("{\n" if index == 0 else ",\n") + f" {_json(key)}: "
        if key == "specs":
            yield from _specs(run.specs, value)
        else:
            yield _json(value)
    yield "\n}\n"


def _specs(specs: tuple[SpecResult, ...], outlines: list[dict[str, Any]]) -> Iterator[str]:
    yield "["
    for index, (spec, outline) in enumerate(zip(specs, outlines, strict=True)):
        yield "," if index else ""
        for position, (key, value) in enumerate(outline.items()):
            yield ("\n  {" if position == 0 else ",\n   ") + f"{_json(key)}: "
            if key == "cells":
                cells = (_json(cell_to_document(cell)) for cell in spec.cells)
                yield "["
                yield from ((",\n    " if number else "\n    ") + cell for number, cell in enumerate(cells))
                yield "]"
            else:
                yield _json(value)
        yield "}"
    yield "]"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


SUMMARY = "summary.md"
HTML = "report.html"
JUNIT = "junit.xml"

_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space or choose another directory with --output.",
    errno.EDQUOT: "The disk quota is used up: free some space or choose another directory with --output.",
    errno.EROFS: "The file system is read-only: choose another directory with --output.",
    errno.EACCES: "It can't be written by this user: change its mode or choose another directory with --output.",
}


def write_reports(run: RunResult, directory: Path) -> None:
    """Write results.json (synced to disk), summary.md, report.html and junit.xml into directory, making it.

    The results come first: they are what the rest can be made from again. Raises OutputError when a file can't be
    written; what was there before is then untouched and nothing partial stays.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _output_error(directory, error) from error
    write_file(directory / RESULTS_FILE, results_pieces(run), durable=True)
    write_file(directory / SUMMARY, [render_summary(run, report=HTML)])
    write_file(directory / HTML, html_pieces(run, directory))
    write_file(directory / JUNIT, junit_pieces(run))


def write_file(path: Path, pieces: Iterable[str], *, durable: bool = False) -> None:
    """Write pieces as UTF-8 to a temporary file beside path, then rename it. durable: sync to disk before and after.

    Raises OutputError; the temporary file is always removed.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with open(handle, "w", encoding="utf-8", newline="\n") as file:  # noqa: PTH123 - an open descriptor
            file.writelines(pieces)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # temporary files are private, reports are for later steps and people
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
        if durable:
            _sync_directory(path.parent)
    except OSError as error:
        raise _output_error(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _output_error(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "Choose another directory with --output.")
    return OutputError(f"can't write {path}: {reason}", help=advice)


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

    return json_without_commands(render_results(run))


_SHOWN_SPECS = 100


@dataclass(frozen=True, slots=True)
class PlannedSpec:
    """What is planned of one spec. replicas: of each scenario and parameter set."""

    id: str
    scenarios: int
    replicas: int
    cells: int


def render_plan(specs: Sequence[PlannedSpec], jobs: int) -> str:
    """Markdown, ending in a newline: how many cells and jobs, and the cells of each spec, the most first."""
    cells = sum(spec.cells for spec in specs)
    fewest, most = cells // jobs, -(-cells // jobs)
    each = words.count(most, "cell") if fewest == most else f"{fewest:,} or {words.count(most, 'cell')}"
    lines = [
        f"## 🗓️ Planned: {words.count(cells, 'cell')} in {words.count(jobs, 'job')}",
        "",
        f"{each} a job. Nothing has run yet.",
        "",
        "| Spec | Scenarios | Replicas | Cells |",
        "|:--|--:|--:|--:|",
    ]
    shown = sorted(specs, key=lambda spec: -spec.cells)[:_SHOWN_SPECS]
    lines += [f"| {code(spec.id)} | {spec.scenarios:,} | {spec.replicas:,} | {spec.cells:,} |" for spec in shown]
    if len(specs) > _SHOWN_SPECS:
        lines += ["", f"… and {words.count(len(specs) - _SHOWN_SPECS, 'spec')} more."]
    return "\n".join(lines) + "\n"
