"""The four report files of a run's directory, each whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from keystone_action.errors import OutputError
from keystone_action.report.junit import junit_pieces
from keystone_action.report.page.render import html_pieces
from keystone_action.report.results import results_pieces
from keystone_action.report.summary import render_summary
from keystone_action.scoring.results import RunResult

RESULTS = "results.json"
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
    write_file(directory / RESULTS, results_pieces(run), durable=True)
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
