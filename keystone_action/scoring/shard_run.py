"""One shard of a run, as its results say it: which part of what it is, and nothing in it that no run of ours writes.

Results come from other machines, of a fork's pull request from somebody else's code: each number that would decide
something and each text that would name a file is looked at before it does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from keystone_action.errors import HarnessError, UsageError
from keystone_action.scoring.cell_rules import problem_of, shorten_text
from keystone_action.scoring.decide import rule_of
from keystone_action.scoring.results import CellResult, PlanInfo, RunResult
from keystone_action.spec.limits import MOST_COUNTED

MAX_SHARDS = 100_000
MAX_CELLS = 10_000_000
"""Far above what any service starts and any plan has; what a shard says of itself has no other bound."""

_SHARD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class ShardRun:
    """One shard's results. name: where they were found, for messages."""

    name: str
    run: RunResult

    @property
    def plan(self) -> PlanInfo:
        """Which part of what it is. Raises UsageError when it does not say."""
        if self.run.plan is None:
            raise UsageError(
                f"{self.name} does not say which part of which plan it is: another version of Keystone wrote it",
                help="run the shards again with this version",
            )
        return self.run.plan

    @property
    def position(self) -> tuple[int, int]:
        """(i, N); a run that is all of it is the only one. Raises HarnessError."""
        shard = self.plan.shard
        if shard is None:
            return 1, 1
        match = _SHARD.fullmatch(shard)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= index <= count <= MAX_SHARDS:
            raise malformed_shard(self, f"{shard[:40]!r} is no shard")
        return index, count

    @property
    def places(self) -> Sequence[int]:
        """Where in the plan its cells are, as it says."""
        return self.plan.positions if self.plan.shard is not None else range(self.plan.cells)

    @property
    def cells(self) -> list[CellResult]:
        """Its cells in the plan's order."""
        return [cell for spec in self.run.specs for cell in spec.cells]


def shard_notice(plan: PlanInfo, cells: int) -> str:
    """What a shard's report says in its head."""
    nothing = "" if cells else "; nothing to do here"
    return f"shard {plan.shard}: {cells:,} of {plan.cells:,} cells{nothing}; `keystone merge` decides about all"


def check_version(shard: ShardRun, version: str) -> None:
    """Raises UsageError for results of another version: it may have graded by other rules."""
    found = shard.run.keystone_version
    if found != version:
        raise UsageError(
            f"{shard.name} was written by Keystone {found[:40]}; this is {version}",
            help="let every job of a workflow use the same version",
        )


def check_values(shard: ShardRun) -> None:
    """Raises HarnessError for what no run of ours writes, and would decide something or name a file here."""
    known = shard.plan.specs
    if not 1 <= shard.plan.cells <= MAX_CELLS:
        raise malformed_shard(shard, f"a plan of {shard.plan.cells} cells")
    if len(shard.plan.positions) > shard.plan.cells or list(shard.plan.positions) != sorted(set(shard.plan.positions)):
        raise malformed_shard(shard, "the places of its cells in the plan are not in order")
    if not 0 <= shard.run.duration_s <= MOST_COUNTED:
        raise malformed_shard(shard, f"it took {shard.run.duration_s} seconds")
    ids = [spec.id for spec in shard.run.specs]
    if len(set(ids)) != len(ids):
        raise malformed_shard(shard, "it has a spec twice")
    for spec in shard.run.specs:
        if known.get(spec.id) != spec.sha256:
            raise malformed_shard(shard, f"its plan does not have the spec {shorten_text(spec.id)} as it was run")
        if not 0 <= spec.pass_threshold <= 1:
            raise malformed_shard(shard, f"pass_threshold {spec.pass_threshold} of {shorten_text(spec.id)}")
        try:
            rule_of(spec.replica_aggregation)
        except ValueError as error:
            raise malformed_shard(shard, str(error)) from None
        for cell in spec.cells:
            problem = problem_of(spec.id, cell)
            if problem:
                raise malformed_shard(shard, problem)


def malformed_shard(shard: ShardRun, why: str) -> HarnessError:
    """The refusal of results that can't be what a run of ours wrote."""
    return HarnessError(f"the results in {shard.name} are damaged: {why}", help="run that job again")
