"""Reading the results that a run is compared with (contract, 5.4): a results file, or the folder that holds one."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.files.descent import read_plain
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.document import run_from_document
from keystone_action.scoring.results import RunResult
from keystone_action.scoring.soundness import Baseline, baseline_of
from keystone_action.spec.loading.author_files import POINTER, POINTER_ADVICE, is_pointer

FILE = "results.json"
READ_LIMIT = 256 << 20
"""Bytes of one results file."""
_HELP = "name results.json of an earlier run, or the folder that holds it"


def read_baseline(path: Path, source: str = "") -> Baseline:
    """The results in a file or a folder. source: where they are from, in words; the path when empty. Raises as
    `read_results`, and UsageError for results that nothing can be compared with."""
    return baseline_of(read_results(path, "baseline"), source or str(_file_at(path)))


def read_results(path: Path, what: str) -> RunResult:
    """The results in a file or a folder. what: how messages call them.

    The file is never followed through a link, and no special file is waited for. Raises UsageError for a file that
    is missing, is not results, has another version of the format, or is too large.
    """
    path = _file_at(path)
    document = _document(path, what)
    try:
        return run_from_document(document)
    except UsageError as error:
        raise UsageError(f"the {what} {path}: {error.message}", help=error.help) from None


def _file_at(path: Path) -> Path:
    try:
        return path / FILE if path.is_dir() and not path.is_symlink() else path
    except OSError:  # a folder that is closed to us, or a name that is too long: reading it says so
        return path


def _document(path: Path, what: str) -> dict[str, object]:
    try:
        content = read_plain(path, READ_LIMIT)
    except UsageError as error:
        raise UsageError(f"the {what} {error.message}", help=_HELP) from None
    except FileNotFoundError:
        raise UsageError(f"there is no {what} {path}", help=_HELP) from None
    except OSError as error:
        why = "it is a link, which is not followed" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the {what} {path} can't be read: {why}", help=_HELP) from None
    if is_pointer(content):
        raise UsageError(f"the {what} {path} is {POINTER}", help=POINTER_ADVICE)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the {what} {path} is no JSON document: {error}", help=_HELP) from None
    if not isinstance(document, dict):
        raise UsageError(f"the {what} {path} holds no results; expected a JSON object", help=_HELP)
    return document


def beside_baseline(run: RunResult, baseline: Baseline | None) -> RunResult:
    """The run with what changed since the baseline."""
    if baseline is None:
        return run
    compared = replace(run, baseline=compare_runs(baseline.run, run, source=baseline.source))
    if baseline.changed is None:
        return compared
    known = baseline.changed if run.spec_changes is None else run.spec_changes
    workflows = dict.fromkeys((*baseline.changed.workflows, *known.workflows))
    return replace(compared, spec_changes=replace(known, workflows=tuple(workflows)))
