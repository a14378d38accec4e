"""From the cells of a run to its `RunResult`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keystone_action import __version__
from keystone_action.files.git import commands as git
from keystone_action.runner.journal.entries import JournalEntry
from keystone_action.runner.journal.identification import script_folders
from keystone_action.runner.preflight import substituted_services
from keystone_action.runner.scheduler import Groups, aggregation_of, stopping_rule
from keystone_action.scoring.aggregate import decide_run, decide_spec, rule_name, share_name, weakest
from keystone_action.scoring.differences import SpecChanges
from keystone_action.scoring.results import CellResult, PlanInfo, RunResult, SandboxInfo, SpecResult
from keystone_action.scoring.shards import shard_notice
from keystone_action.scoring.soundness import no_baseline_notice
from keystone_action.scoring.statistics import with_certainty

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.runner.started_run import PlannedRun
    from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Cell

_SHOWN_NOTICES = 20
WATCHED_DISK = "resources.disk is watched, not enforced: a container is stopped once it is seen above its limit"


@dataclass(frozen=True, slots=True)
class Begun:
    """When a run began."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    monotonic: float = field(default_factory=time.monotonic)


class ResultsSoFar:
    """The results of a run while it goes on: the one maker of its `RunResult`."""

    def __init__(self, planned: PlannedRun, spec_changes: SpecChanges | None, begun: Begun) -> None:
        self._planned, self._spec_changes, self._begun = planned, spec_changes, begun
        self.commit = git_sha(planned.options)
        self.run_id = planned.run_id
        self._provider: ProcessSandboxes | None = None
        self._cells: dict[str, CellResult] = {}
        self._isolated: dict[str, SandboxInfo] = {}
        self._late_notices: list[str] = []
        self.again: Collection[str] = ()
        """The ids of cells that broke in an earlier call and are run again."""

    @property
    def cells(self) -> Mapping[str, CellResult]:
        """The cells that are finished, by id."""
        return self._cells

    def go_on_with(self, run_id: str) -> None:
        """This run resumes the one with this id."""
        self.run_id = run_id

    def take_over(self, entry: JournalEntry) -> None:
        """A cell that an earlier call finished."""
        self._cells[entry.cell.id], self._isolated[entry.cell.id] = entry.cell, entry.sandbox

    def sandboxes_are(self, provider: ProcessSandboxes) -> None:
        """The sandboxes of this call's cells are made by this provider."""
        self._provider = provider

    def add(self, cell: Cell, result: CellResult) -> JournalEntry:
        """A cell that this call finished; its line for the journal. If a later cell hangs, the results have this one
        though it was not announced."""
        entry = JournalEntry(cell.loaded.spec.id, cell.loaded.sha256, result, self._sandbox_of(cell.loaded.spec))
        self.take_over(entry)
        return entry

    def add_notices(self, notices: Iterable[str]) -> None:
        """What people should know that is only known while cells run, or after them."""
        self._late_notices += notices

    def notices(self) -> tuple[str, ...]:
        """What belongs into every report's head before any cell has run."""
        options = self._planned.options
        found = [*self._shard_notices(), *self._planned.plan.notices]
        found += [warning for loaded in self._planned.specs for warning in loaded.warning_sentences]
        found += filter(None, [options.caller.no_secrets_reason, baseline_notice(options)])
        found += self._planned.facilities.notices
        found += self._mixed_sandboxes()
        return tuple(dict.fromkeys(found))

    def assemble(self, *, cancelled: bool) -> RunResult:
        """The document of the run; of a cancelled one, of the cells that were finished."""
        by_spec: dict[str, list[Cell]] = {}
        for cell in self._planned.plan.cells:
            by_spec.setdefault(cell.loaded.spec.id, []).append(cell)
        specs = tuple(self._spec(loaded, by_spec[loaded.spec.id]) for loaded in self._planned.wanted)
        facilities = self._planned.facilities
        head = RunResult(
            run_id=self.run_id,
            keystone_version=__version__,
            git_sha=self.commit,
            verdict="error",
            composite=None,
            started_at=self._begun.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            duration_s=time.monotonic() - self._begun.monotonic,
            specs=(),
            sandbox=self._weakest_sandbox(),
            notices=(*self._head_notices(cancelled=cancelled), *self._late_notices),
            substituted=() if facilities.client is not None else substituted_services(self._planned.wanted),
            cancelled=cancelled,
            plan=self._plan_info(),
            spec_changes=self._spec_changes,
        )
        return decide_run(head, specs)

    def _head_notices(self, *, cancelled: bool) -> tuple[str, ...]:
        """The run's own; reports add those of the cells. A shard's own comes first and counts for none of the others,
        so that joined shards show what the whole run would have shown."""
        shard = self._shard_notices()
        notices = [notice for notice in self.notices() if notice not in shard]
        if cancelled:
            planned = len(self._planned.plan.cells)
            notices.append(f"cancelled: {len(self._cells):,} of {planned:,} cells were finished")
        hidden = len(notices) - _SHOWN_NOTICES
        shown = (*notices[:_SHOWN_NOTICES], f"… and {hidden} more notices") if hidden > 0 else tuple(notices)
        return (*shard, *shown)

    def _shard_notices(self) -> tuple[str, ...]:
        """Which part of the cells this run has; nothing for a run that has them all."""
        info = self._plan_info()
        return () if info.shard is None else (shard_notice(info, len(self._planned.plan.cells)),)

    def _plan_info(self) -> PlanInfo:
        options, plan = self._planned.options, self._planned.plan
        shard = options.cells.shard
        name = None if shard is None else f"{shard[0]}/{shard[1]}"
        positions = plan.positions if shard is not None else ()
        chosen, not_run = options.selection.chosen, self._not_run()
        return PlanInfo(name, plan.total, plan.digest, dict(plan.specs), chosen, positions, not_run)

    def _not_run(self) -> tuple[str, ...]:
        return Groups(self._planned.plan.cells, self._cells, self.again).not_needed()

    def _mixed_sandboxes(self) -> list[str]:
        """Which specs run in containers, where others don't."""
        images, ids = self._planned.facilities.images, [loaded.spec.id for loaded in self._planned.wanted]
        inside = [f"{spec_id} ({images[spec_id]})" for spec_id in ids if spec_id in images]
        mixed = inside and len(inside) < len(ids)
        return [f"in containers: {', '.join(inside)}; the others in the process sandbox"] if mixed else []

    def _spec(self, loaded: LoadedSpec, planned: Sequence[Cell]) -> SpecResult:
        spec, options = loaded.spec, self._planned.options
        threshold = spec.scoring.pass_threshold if options.verdict.threshold is None else options.verdict.threshold
        share = spec.scoring.scenarios
        head = SpecResult(
            id=spec.id,
            path=os.path.relpath(loaded.path, options.caller.directory),
            sha256=loaded.sha256,
            threshold_source="spec" if options.verdict.threshold is None else "input",
            verdict="error",
            composite=None,
            pass_threshold=threshold,
            pass_rate=None,
            cells=(),
            description=spec.description,
            replica_aggregation=rule_name(aggregation_of(spec)),
            stopping=stopping_rule(planned[0]),
            scenarios=share if isinstance(share, str) else share_name(share.at_least),
            positions=dict(loaded.lines),
        )
        found = [self._cells[cell.id] for cell in planned if cell.id in self._cells]
        return with_certainty(decide_spec(head, found, self._not_run() if head.stopping is not None else ()))

    def _weakest_sandbox(self) -> SandboxInfo:
        """What isolated the agents: the weakest of the cells that are shown, those of earlier parts too; where none is
        shown, of those that were to run."""
        shown = [self._isolated[cell.id] for cell in self._planned.plan.cells if cell.id in self._isolated]
        return weakest(dict.fromkeys(shown or [self._sandbox_of(loaded.spec) for loaded in self._planned.wanted]))

    def _sandbox_of(self, spec: Spec) -> SandboxInfo:
        return SandboxInfo() if self._provider is None else sandbox_of(self._planned, self._provider, spec)


def sandbox_of(planned: PlannedRun, provider: ProcessSandboxes, spec: Spec) -> SandboxInfo:
    """What isolates the cells of a spec in this call."""
    always, denied = planned.options.caller.not_enforced, spec.egress.default == "deny"
    if spec.id in planned.facilities.images:
        unenforced: tuple[str, ...] = (WATCHED_DISK,) if spec.resources.disk is not None else ()
        if any(script_folders(loaded) for loaded in planned.specs if loaded.spec.id == spec.id):
            unenforced += provider.host_not_enforced()
        return SandboxInfo(
            kind="docker",
            isolation=("container",),
            limits="enforced",
            not_enforced=(*unenforced, *always),
            egress="container" if denied else None,
        )
    return SandboxInfo(
        kind="process",
        isolation=provider.isolation,
        limits="watched",
        not_enforced=(*provider.not_enforced, *always),
        egress=provider.networks.way if denied else None,
    )


def baseline_notice(options: Options) -> str:
    """That there is no baseline although one was asked for; empty where there is one, or none was."""
    earlier = options.earlier
    return no_baseline_notice(options.verdict.fail_on, earlier.baseline_run, earlier.baseline_problem)


def git_sha(options: Options) -> str | None:
    """The commit that is being judged: the workflow's, else the checkout's; None outside a repository."""
    given = options.caller.environ.get("GITHUB_SHA")
    if given:
        return given
    try:
        found = git.run_git(
            "rev-parse", "--verify", "-q", "HEAD^{commit}", directory=options.caller.directory, timeout=10
        )
    except git.GitFailed:
        return None
    return found.decode("ascii").strip()
