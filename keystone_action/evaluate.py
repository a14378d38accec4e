"""What both front doors do with a call: run it, write every report, and say the exit code."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

from keystone_action.gate.options import GatedOptions
from keystone_action.gate.specs import specs_to_run
from keystone_action.runner.options import Progress
from keystone_action.runner.run import run
from keystone_action.scoring.aggregate import exit_code_of
from keystone_action.scoring.results import RunResult
from keystone_action.system import environment, signals
from keystone_action.system.run_lock import keep_lock
from keystone_action.system.shutdown import run_to_its_end


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result, the directory with all its files, and the exit code by `fail_on`."""

    run: RunResult
    directory: Path
    exit_code: int


def evaluate(options: GatedOptions, progress: Progress) -> Evaluation:
    """Run specs and write results.json, summary.md, report.html and junit.xml.

    A signal ends the run, and loses no result: what is finished is written, whenever it comes.
    Raises UsageError (exit 2) before anything runs, HarnessError (exit 3) when the sandbox can't be made or results
    can't be written, and Cancelled (exit 130) for a signal before the run had begun.
    """
    gc.enable()
    gc.freeze()
    options = replace(options, not_enforced=tuple(environment.not_enforced))
    with signals.holding():
        ran = run_to_its_end(lambda stop: run(options, lambda: specs_to_run(options), progress, stop))
        if signals.left_behind() and options.run_id:
            keep_lock(options.run_id, on_engine=False)
        from keystone_action.report.write import write_reports

        result = ran.result
        if options.baseline is not None:
            from keystone_action.runner.baseline import beside_baseline

            result = beside_baseline(result, options.baseline)
        write_reports(result, ran.directory)
        return Evaluation(result, ran.directory, exit_code_of(result, options.fail_on))
