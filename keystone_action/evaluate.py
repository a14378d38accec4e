"""What both front doors do with a call: run it, write every report, and say the exit code."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from keystone_action.runner.options import Progress, RunOptions
from keystone_action.runner.run import run
from keystone_action.scoring.aggregate import exit_code
from keystone_action.scoring.results import RunResult
from keystone_action.spec.diagnostics import Diagnostic, SpecError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result, the directory with all its files, and the exit code by `fail_on`."""

    run: RunResult
    directory: Path
    exit_code: int


def evaluate(options: RunOptions, progress: Progress) -> Evaluation:
    """Run specs and write results.json, summary.md, report.html and junit.xml.

    Raises UsageError (exit 2) before anything runs and HarnessError (exit 3) when the sandbox can't be made or results
    can't be written.
    """
    gc.enable()
    gc.freeze()
    ran = anyio.run(run, options, progress)
    from keystone_action.report.write import write_reports

    write_reports(ran.result, ran.directory)
    return Evaluation(ran.result, ran.directory, exit_code(ran.result, options.fail_on))


def with_short_paths(error: SpecError, directory: Path) -> SpecError:
    """The same errors with the paths of files below directory relative to it, as people write and editors open them."""
    return SpecError(with_short_path(one, directory) for one in error.diagnostics)


def with_short_path(diagnostic: Diagnostic, directory: Path) -> Diagnostic:
    """The same with a path that is relative to directory, where the file is below it."""
    path = Path(diagnostic.path)
    return replace(diagnostic, path=str(path.relative_to(directory))) if path.is_relative_to(directory) else diagnostic
