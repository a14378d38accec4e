"""What both front doors do for shards: plan the jobs, and join what they left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.evaluate import Evaluation
from keystone_action.gate.options import GatedOptions
from keystone_action.gate.specs import specs_to_run
from keystone_action.plan import Cell, Plan, plan, shard_of
from keystone_action.runner.parts.merge import MergeOptions, merge_shards
from keystone_action.scoring.aggregate import exit_code_of
from keystone_action.system import signals

if TYPE_CHECKING:
    from keystone_action.report.write import PlannedSpec

MAX_JOBS = 256
"""Jobs that GitHub makes of one matrix."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The cells of a run in jobs. names: `1/3`, `2/3`, `3/3`."""

    plan: Plan
    names: tuple[str, ...]

    @property
    def matrix(self) -> str:
        """As `strategy.matrix` takes it from `fromJSON`, on one line."""
        return json.dumps({"shard": list(self.names)})

    def name_of(self, cell: Cell) -> str:
        """The shard that has this cell."""
        return self.names[shard_of(cell.id, len(self.names)) - 1]

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


def refuse_too_many(shards: int) -> None:
    """Raises UsageError above MAX_JOBS, also where there are fewer cells today: a suite that grows must not break its
    own workflow."""
    if shards > MAX_JOBS:
        raise UsageError(
            f"{shards:,} shards are more than the {MAX_JOBS} jobs that GitHub makes of one matrix",
            help=f"ask for at most {MAX_JOBS}; each job then runs more of the cells",
        )


def plan_shards(options: GatedOptions, shards: int) -> Shards:
    """The cells that a run with these options would have, and in which jobs: at most so many, never more than there are
    cells, at least one. Raises UsageError for bad specs and when there is nothing to run."""
    planned = plan(specs_to_run(options).specs, options.selection)
    count = max(1, min(shards, planned.total))
    return Shards(planned, tuple(f"{index}/{count}" for index in range(1, count + 1)))


def join(options: MergeOptions) -> Evaluation:
    """Join shards and write every report, as `evaluate.evaluate` does for a run. Raises UsageError and HarnessError
    before anything is written, OutputError when results can't be."""
    from keystone_action.report.write import write_reports

    with signals.holding():
        ran = merge_shards(options)
        write_reports(ran.result, ran.directory)
    return Evaluation(ran.result, ran.directory, exit_code_of(ran.result, options.fail_on))
