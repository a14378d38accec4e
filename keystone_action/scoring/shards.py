"""Results of shards joined into the run that they are parts of. Pure.

A shard says where in the plan each of its cells is, which gives back the plan's order. From there on the verdict is
decided as for any run (`scoring/aggregate.py`): replicas may have been spread over shards. What can't be joined is
refused, never left out (contract, 5.4): a gate that lost a shard must not be green. Results come from other machines,
and those of a fork's pull request from somebody else's code: each number that would decide something and each text
that would name a file is checked before it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from keystone_action.errors import HarnessError, UsageError
from keystone_action.scoring.aggregate import (
    by_group,
    decide_run,
    decide_spec,
    group_name,
    rule_of,
    share_of,
    stopped_early,
    weakest,
)
from keystone_action.scoring.differences import SpecChanges
from keystone_action.scoring.results import CellResult, PlanInfo, RunResult, SpecResult
from keystone_action.scoring.soundness import is_sound, problem_of, shorten_text
from keystone_action.scoring.statistics import with_certainty
from keystone_action.spec.limits import MOST_COUNTED

MOST_SHARDS = 100_000
MOST_CELLS = 10_000_000
"""Far above what any service starts and any plan has; what a shard says of itself has no other bound."""

_REPLICA = re.compile(r"\.r[0-9]{1,7}\Z")
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
        if not 1 <= index <= count <= MOST_SHARDS:
            raise malformed_shard(self, f"{shard[:40]!r} is not a shard")
        return index, count

    @property
    def places(self) -> Sequence[int]:
        """Where in the plan its cells are, as it says."""
        return self.plan.positions if self.plan.shard is not None else range(self.plan.cells)

    @property
    def cells(self) -> list[CellResult]:
        """Its cells in the plan's order."""
        return [cell for spec in self.run.specs for cell in spec.cells]

    @property
    def not_run(self) -> Sequence[str]:
        """The ids of the cells that were not run, since their groups were decided without them."""
        return self.plan.not_run


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
    if not 1 <= shard.plan.cells <= MOST_CELLS:
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
        if spec.stopping is not None and not is_sound(spec.stopping):
            raise malformed_shard(shard, f"when the replicas of {shorten_text(spec.id)} stop")
        try:
            rule_of(spec.replica_aggregation)
            share_of(spec.scenarios)
        except ValueError as error:
            raise malformed_shard(shard, str(error)) from None
        for cell in spec.cells:
            problem = problem_of(spec.id, cell)
            if problem:
                raise malformed_shard(shard, problem)


def malformed_shard(shard: ShardRun, why: str) -> HarnessError:
    """The refusal of results that can't be what a run of ours wrote."""
    return HarnessError(f"the results in {shard.name} are damaged: {why}", help="run that job again")


_NAMED = 20
_ASIDE = "join shards of one run only, as their jobs left them"


def merge(shards: Sequence[ShardRun], *, version: str, digest_of: Callable[[Iterable[str]], str]) -> RunResult:
    """The whole run; its id, and nothing else, is left empty.

    version: ours; results of others are refused. digest_of: the ids of cells as `PlanInfo.digest` has them.
    Raises UsageError (exit 2) for a call that hands over no shards, one of them twice, or results of another version;
    HarnessError (exit 3) for shards that are missing, unfinished, damaged or parts of different runs.
    """
    if not shards:
        raise UsageError("there is nothing to join", help="name folders with the results of shards")
    for shard in shards:
        check_version(shard, version)
        check_values(shard)
    _same_plan(shards)
    ordered = _in_order(shards)
    _complete(ordered)
    _same_rules(ordered)
    cells = _cells(ordered, digest_of)
    return _join_shards(ordered, cells)


def _in_order(shards: Sequence[ShardRun]) -> list[ShardRun]:
    """By index, each once and none missing."""
    count = shards[0].position[1]
    found: dict[int, ShardRun] = {}
    for shard in shards:
        index = shard.position[0]
        other = found.setdefault(index, shard)
        if other is not shard:
            raise UsageError(
                f"shard {index}/{count} is given twice: {other.name} and {shard.name}",
                help="hand over one of them: of a job that was run again the newest",
            )
    missing = [f"{index}/{count}" for index in range(1, count + 1) if index not in found]
    if missing:
        there = _join_names([f"{index}/{count}" for index in sorted(found)])
        raise HarnessError(
            f"missing: {'shard' if len(missing) == 1 else 'shards'} {_join_names(missing)} (found: {there})",
            help="run those jobs again; each must upload its results under a name of its own, also when it fails",
        )
    return [found[index] for index in range(1, count + 1)]


def _same_plan(shards: Sequence[ShardRun]) -> None:
    first = shards[0]
    for shard in shards[1:]:
        ours, theirs = first.plan.specs, shard.plan.specs
        for spec_id in dict.fromkeys((*ours, *theirs)):
            if ours.get(spec_id) != theirs.get(spec_id):
                how = "differs between them" if spec_id in ours and spec_id in theirs else "is in one of them only"
                raise _different(first, shard, f"the spec {shorten_text(spec_id)} {how} (by sha256)")
        counts = first.position[1], shard.position[1]
        if counts[0] != counts[1]:
            raise _different(first, shard, f"one is a shard of {counts[0]}, the other of {counts[1]}")
        if _cells_planned(first) != _cells_planned(shard):
            raise _different(first, shard, "they planned different cells")
    of_a_commit = [shard for shard in shards if shard.run.git_sha]  # not every checkout can say which it is
    for shard in of_a_commit:
        if shard.run.git_sha != of_a_commit[0].run.git_sha:
            raise _different(of_a_commit[0], shard, "they tested different commits")


def _cells_planned(shard: ShardRun) -> tuple[str, int, tuple[str, ...]]:
    return shard.plan.digest, shard.plan.cells, shard.plan.chosen


def _complete(shards: Sequence[ShardRun]) -> None:
    """Each shard finished, and has as many cells as are its part."""
    total, count = shards[0].plan.cells, len(shards)
    for index, shard in enumerate(shards):
        expected, found = len(shard.places) - len(shard.not_run), len(shard.cells)
        label = f"shard {index + 1}/{count} ({shard.name})"
        if shard.run.error is not None:
            raise HarnessError(f"{label} broke: {shorten_text(shard.run.error, 300)}", help="run that job again")
        if shard.run.cancelled or found < expected:
            ended = "was cancelled" if shard.run.cancelled else "is not complete"
            raise HarnessError(f"{label} {ended}: it has {found} of its {expected} cells", help="run that job again")
        if found > expected:
            raise malformed_shard(shard, f"it has {found} cells, where its part of {total} is {expected}")


def _same_rules(shards: Sequence[ShardRun]) -> None:
    """Specs of one sha256 can still have been judged by different options."""
    heads: dict[str, tuple[ShardRun, SpecResult]] = {}
    for shard in shards:
        for spec in shard.run.specs:
            first, head = heads.setdefault(spec.id, (shard, spec))
            for name in ("pass_threshold", "replica_aggregation", "stopping", "scenarios", "threshold_source"):
                ours, theirs = getattr(head, name), getattr(spec, name)
                if ours != theirs:
                    raise _different(
                        first, shard, f"{name} of {shorten_text(spec.id)} is {ours} in one and {theirs} in the other"
                    )


def _cells(shards: Sequence[ShardRun], digest_of: Callable[[Iterable[str]], str]) -> list[tuple[str, CellResult]]:
    """All cells with the ids of their specs, in the plan's order, each there once."""
    parts = [[(spec.id, cell) for spec in shard.run.specs for cell in spec.cells] for shard in shards]
    where: dict[str, ShardRun] = {}
    for shard, part in zip(shards, parts, strict=True):
        for _, cell in part:
            other = where.setdefault(cell.id, shard)
            if other is not shard:
                raise HarnessError(f"the cell {cell.id} is in two shards: {other.name} and {shard.name}", help=_ASIDE)
        if len({cell.id for _, cell in part}) != len(part):
            raise malformed_shard(shard, "it has a cell twice")
    placed = sorted(pair for shard in shards for pair in zip(shard.places, _planned_ids(shard), strict=True))
    if len(dict(placed)) != len(placed) or digest_of(name for _, name in placed) != shards[0].plan.digest:
        raise HarnessError("the cells of these shards are not those of their plan", help=_ASIDE)
    found = {cell.id: (spec_id, cell) for part in parts for spec_id, cell in part}
    return [found[name] for _, name in placed if name in found]


def _planned_ids(shard: ShardRun) -> list[str]:
    """The ids of all cells of a shard in the plan's order: of each group by the numbers of its replicas, of which some
    may not have run. Raises HarnessError where cells are said not to be needed that are."""
    waiting: dict[str, list[str]] = {}
    for name in shard.not_run:
        if not _REPLICA.search(name):
            raise malformed_shard(shard, f"{shorten_text(name)} is not the id of a cell")
        waiting.setdefault(group_name(name), []).append(name)
    ids: list[str] = []
    for spec in shard.run.specs:
        for members in by_group(spec.cells):
            left_out = waiting.pop(group_name(members[0].id), [])
            if left_out and not stopped_early(members, rule_of(spec.replica_aggregation), spec.stopping):
                why = f"{shorten_text(left_out[0])} was not run, and its group is not decided without it"
                raise malformed_shard(shard, why)
            numbers = [(cell.replica, cell.id) for cell in members]
            numbers += [(int(name.rpartition(".r")[2]), name) for name in left_out]
            ids += [name for _, name in (sorted(numbers) if left_out else numbers)]
    if waiting or len(set(ids)) != len(ids):
        raise malformed_shard(shard, "cells that were not run belong to no group that was")
    return ids


def _join_shards(shards: Sequence[ShardRun], cells: Sequence[tuple[str, CellResult]]) -> RunResult:
    heads = {spec.id: spec for shard in reversed(shards) for spec in shard.run.specs}
    by_spec: dict[str, list[CellResult]] = {}
    for spec_id, cell in cells:
        by_spec.setdefault(spec_id, []).append(cell)
    runs = [shard.run for shard in shards]
    started, duration_s = _times(shards)
    head = replace(
        runs[0],
        run_id="",
        git_sha=next((run.git_sha for run in runs if run.git_sha), None),
        started_at=started,
        duration_s=duration_s,
        sandbox=weakest([run.sandbox for run in runs if any(spec.cells for spec in run.specs)]),
        notices=_notices(shards),
        substituted=tuple(dict.fromkeys(sentence for run in runs for sentence in run.substituted)),
        plan=replace(
            shards[0].plan, shard=None, positions=(), not_run=tuple(name for shard in shards for name in shard.not_run)
        ),
        spec_changes=_spec_changes(runs),
        baseline=None,  # a shard compared its own cells; the merge compares them all
    )
    not_run = [name for shard in shards for name in shard.not_run]
    decided = (decide_spec(heads[spec_id], found, not_run) for spec_id, found in by_spec.items())
    return decide_run(head, [with_certainty(spec) for spec in decided])


def _spec_changes(runs: Sequence[RunResult]) -> SpecChanges | None:
    """Every shard compared the same files with the same commit: the one that could do so, and found most."""
    found = [run.spec_changes for run in runs if run.spec_changes is not None]

    def worth(changes: SpecChanges) -> tuple[bool, bool, int]:
        return not changes.problem, not changes.incomplete, len(changes.specs) + len(changes.workflows)

    return max(found, key=worth, default=None)


def _notices(shards: Sequence[ShardRun]) -> tuple[str, ...]:
    found = (
        notice
        for shard in shards
        for notice in shard.run.notices
        if shard.plan.shard is None or notice != shard_notice(shard.plan, len(shard.places))
    )
    return tuple(dict.fromkeys(found))


def _times(shards: Sequence[ShardRun]) -> tuple[str, float]:
    """When the first one started, and how many seconds later the last one ended."""
    starts = []
    for shard in shards:
        try:
            start = datetime.fromisoformat(shard.run.started_at)
            starts.append((start if start.tzinfo else start.replace(tzinfo=UTC)).astimezone(UTC))
        except (ValueError, OverflowError):
            raise malformed_shard(shard, f"it started at {shorten_text(shard.run.started_at)}") from None
    first = min(starts)
    ends = [(start - first).total_seconds() + shard.run.duration_s for start, shard in zip(starts, shards, strict=True)]
    return first.isoformat(timespec="seconds").replace("+00:00", "Z"), max(ends)


def _different(first: ShardRun, second: ShardRun, how: str) -> HarnessError:
    return HarnessError(f"{first.name} and {second.name} are not shards of one run: {how}", help=_ASIDE)


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
