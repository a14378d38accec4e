"""What both front doors do with options: run cells and write every report, plan the jobs of a run, and join what they
left."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.options.model import MAX_JOBS, Options
from keystone_action.runner.preflight import GatedSpecs
from keystone_action.runner.specs import load_specs
from keystone_action.scoring.aggregate import exit_code_of
from keystone_action.scoring.results import RunResult
from keystone_action.system import environment, signals

if TYPE_CHECKING:
    from keystone_action.gate.change_base import ChangeBase
    from keystone_action.report.write import PlannedSpec
    from keystone_action.runner.progress import Progress
    from keystone_action.spec.plan import Cell, Plan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a run came to."""

    run: RunResult
    """The result."""
    directory: Path
    """The folder with all its files."""
    exit_code: int
    """By the option `fail_on`."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The cells of a run, split into jobs."""

    plan: Plan
    """All cells."""
    names: tuple[str, ...]
    """Of the jobs: `1/3`, `2/3`, `3/3`."""

    @property
    def matrix(self) -> str:
        """As `strategy.matrix` takes it from `fromJSON`, on one line."""
        return json.dumps({"shard": list(self.names)})

    def name_of(self, cell: Cell) -> str:
        """The shard that has this cell."""
        from keystone_action.spec.plan import shard_of_cell

        return self.names[shard_of_cell(cell, len(self.names)) - 1]

    def specs(self) -> Iterator[PlannedSpec]:
        """What is planned of each spec."""
        from keystone_action.report.write import PlannedSpec

        for spec_id in self.plan.specs:
            cells = [cell for cell in self.plan.cells if cell.loaded.spec.id == spec_id]
            yield PlannedSpec(
                id=spec_id,
                scenarios=len({cell.scenario.id for cell in cells}),
                replicas=len({cell.replica for cell in cells}),
                cells=len(cells),
            )


def evaluate(options: Options, base: ChangeBase, progress: Progress) -> Evaluation:
    """Run specs and write results.json, summary.md, report.html and junit.xml.

    A signal ends the run, and loses no result: what is finished is written, whenever it comes.
    Raises UsageError (exit 2) before anything runs, HarnessError (exit 3) when the sandbox can't be made or results
    can't be written, and Cancelled (exit 130) for a signal before the run had begun.
    """
    from keystone_action.runner.run import run_specs
    from keystone_action.system.run_lock import keep_lock
    from keystone_action.system.shutdown import run_to_its_end

    gc.enable()
    gc.freeze()
    options = options.having(not_enforced=tuple(environment.not_enforced))
    with signals.holding():
        ran = run_to_its_end(lambda stop: run_specs(options, lambda: specs_to_run(options, base), progress, stop))
        run_id, earlier = options.caller.run_id, options.earlier.baseline_run
        if signals.left_behind() and run_id:
            keep_lock(run_id, on_engine=False)
        from keystone_action.report.write import write_reports

        result = ran.result
        if earlier is not None:
            from keystone_action.runner.journal.earlier_runs import beside_baseline

            result = beside_baseline(result, earlier)
        write_reports(result, ran.directory)
        return Evaluation(result, ran.directory, exit_code_of(result, options.verdict.fail_on))


def plan_shards(options: Options, base: ChangeBase) -> Shards:
    """The cells that a run with these options would have, and in which jobs: at most as many as were asked for, never
    more than there are cells, at least one.

    Raises UsageError for bad specs, when there is nothing to run, and for a matrix of more than MAX_JOBS, also where
    there are fewer cells today: a suite that grows must not break its own workflow.
    """
    from keystone_action.spec.plan import plan

    shards = options.jobs.shards or 1
    if options.jobs.matrix and shards > MAX_JOBS:
        raise UsageError(
            f"{shards:,} shards are more than the {MAX_JOBS} jobs that GitHub makes of one matrix",
            help=f"ask for at most {MAX_JOBS}; each job then runs more of the cells",
        )
    planned = plan(specs_to_run(options, base).specs, options.selection)
    count = max(1, min(shards, planned.total))
    return Shards(planned, tuple(f"{index}/{count}" for index in range(1, count + 1)))


def join(options: Options) -> Evaluation:
    """Join the results of shards and write every report, as `evaluate` does for a run.

    Raises UsageError and HarnessError before anything is written, OutputError when results can't be.
    """
    from keystone_action.report.write import write_reports
    from keystone_action.runner.journal.merge import merge_shards

    with signals.holding():
        ran = merge_shards(options)
        write_reports(ran.result, ran.directory)
    return Evaluation(ran.result, ran.directory, exit_code_of(ran.result, options.verdict.fail_on))


def specs_to_run(options: Options, base: ChangeBase) -> GatedSpecs:
    """All specs of a call, beside those of the base commit where there is one. Raises UsageError and SpecError."""
    if base.commit is None and not base.problem and options.cells.spec_from == "head":
        return GatedSpecs(load_specs(options))
    from keystone_action.gate.compare import gated_specs

    return gated_specs(options, base)
