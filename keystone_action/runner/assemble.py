"""From the cells of a run to its `RunResult`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keystone_action import __version__
from keystone_action.files.git import commands as git
from keystone_action.runner.journal.identification import script_folders
from keystone_action.runner.preflight import Facilities
from keystone_action.scoring.aggregate import decide_run, decide_spec, rule_name, weakest
from keystone_action.scoring.differences import SpecChanges
from keystone_action.scoring.results import CellResult, PlanInfo, RunResult, SandboxInfo, SpecResult
from keystone_action.scoring.shards import shard_notice
from keystone_action.scoring.soundness import no_baseline_notice
from keystone_action.scoring.statistics import with_certainty

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.sandbox.protocol import SandboxProvider
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Cell, Plan

_SHOWN_NOTICES = 20
WATCHED_DISK = "resources.disk is watched, not enforced: a container is stopped once it is seen above its limit"


@dataclass
class Assembly:
    """What is known of a run while it goes on. results: finished cells by id. isolated: what isolated them, by id."""

    options: Options
    specs: Sequence[LoadedSpec]
    plan: Plan
    run_id: str
    started_at: str
    substituted: tuple[str, ...]
    facilities: Facilities = field(default_factory=Facilities)
    spec_changes: SpecChanges | None = None
    sandbox: SandboxProvider | None = None
    commit: str | None = None
    results: dict[str, CellResult] = field(default_factory=dict)
    isolated: dict[str, SandboxInfo] = field(default_factory=dict)

    def notices(self) -> tuple[str, ...]:
        """What belongs into every report's head before any cell has run."""
        found = [*self.shard_notices, *self.plan.notices]
        found += [warning for loaded in self.specs for warning in loaded.warning_sentences]
        if self.options.caller.no_secrets_reason:
            found.append(self.options.caller.no_secrets_reason)
        options = self.options
        found += filter(
            None,
            [baseline_notice(options)],
        )
        found += self.facilities.notices
        found += self._mixed_sandboxes()
        return tuple(dict.fromkeys(found))

    @property
    def plan_info(self) -> PlanInfo:
        """Which part of what this run is."""
        shard, plan = self.options.cells.shard, self.plan
        name = None if shard is None else f"{shard[0]}/{shard[1]}"
        positions = plan.positions if shard is not None else ()
        return PlanInfo(name, plan.total, plan.digest, dict(plan.specs), self.options.selection.chosen, positions)

    @property
    def shard_notices(self) -> tuple[str, ...]:
        """Which part of the cells this run has; nothing for a run that has them all."""
        return () if self.plan_info.shard is None else (shard_notice(self.plan_info, len(self.plan.cells)),)

    @property
    def planned(self) -> tuple[Spec, ...]:
        """The specs that have cells in this run."""
        return tuple({cell.loaded.spec.id: cell.loaded.spec for cell in self.plan.cells}.values())

    def _mixed_sandboxes(self) -> list[str]:
        """Which specs run in containers, where others don't."""
        images = self.facilities.images
        inside = [f"{spec.id} ({images[spec.id]})" for spec in self.planned if spec.id in images]
        mixed = inside and len(inside) < len(self.planned)
        return [f"in containers: {', '.join(inside)}; the others in the process sandbox"] if mixed else []


def assemble(assembly: Assembly, *, cancelled: bool, duration_s: float) -> RunResult:
    """The document of a run; of a cancelled one, of the cells that were finished."""
    planned: dict[str, list[Cell]] = {}
    for cell in assembly.plan.cells:
        planned.setdefault(cell.loaded.spec.id, []).append(cell)
    specs = tuple(
        _spec(loaded, planned[loaded.spec.id], assembly) for loaded in assembly.specs if loaded.spec.id in planned
    )
    finished = sum(len(spec.cells) for spec in specs)
    head = RunResult(
        run_id=assembly.run_id,
        keystone_version=__version__,
        git_sha=assembly.commit,
        verdict="error",
        composite=None,
        started_at=assembly.started_at,
        duration_s=duration_s,
        specs=(),
        sandbox=_sandbox(assembly),
        notices=_notices(assembly, finished, cancelled=cancelled),
        substituted=assembly.substituted,
        cancelled=cancelled,
        plan=assembly.plan_info,
        spec_changes=assembly.spec_changes,
    )
    return decide_run(head, specs)


def _notices(assembly: Assembly, finished: int, *, cancelled: bool) -> tuple[str, ...]:
    """The run's own; reports add those of the cells. A shard's own comes first and counts for none of the others, so
    that joined shards show what the whole run would have shown."""
    shard = assembly.shard_notices
    notices = [notice for notice in assembly.notices() if notice not in shard]
    if cancelled:
        notices.append(f"cancelled: {finished:,} of {len(assembly.plan.cells):,} cells were finished")
    hidden = len(notices) - _SHOWN_NOTICES
    shown = (*notices[:_SHOWN_NOTICES], f"… and {hidden} more notices") if hidden > 0 else tuple(notices)
    return (*shard, *shown)


def _spec(loaded: LoadedSpec, planned: Sequence[Cell], assembly: Assembly) -> SpecResult:
    spec, options = loaded.spec, assembly.options
    cells = tuple(assembly.results[cell.id] for cell in planned if cell.id in assembly.results)
    threshold = spec.scoring.pass_threshold if options.verdict.threshold is None else options.verdict.threshold
    rule = spec.scoring.replica_aggregation
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
        replica_aggregation=rule_name(rule if isinstance(rule, str) else rule.at_least),
        positions=dict(loaded.lines),
    )
    return with_certainty(decide_spec(head, cells))


def _sandbox(assembly: Assembly) -> SandboxInfo:
    """What isolated the agents: the weakest of the cells that are shown, those of earlier parts too; where none is,
    of those that were to run."""
    shown = [assembly.isolated[cell.id] for cell in assembly.plan.cells if cell.id in assembly.isolated]
    planned = shown or [sandbox_of(assembly, spec) for spec in assembly.planned]
    return weakest(dict.fromkeys(planned))


def sandbox_of(assembly: Assembly, spec: Spec) -> SandboxInfo:
    """What isolates the cells of a spec in this call; nothing when it ended before a sandbox was made."""
    provider = assembly.sandbox
    if provider is None:
        return SandboxInfo()
    always = assembly.options.caller.not_enforced
    if spec.id in assembly.facilities.images:
        unenforced: tuple[str, ...] = (WATCHED_DISK,) if spec.resources.disk is not None else ()
        if any(script_folders(loaded) for loaded in assembly.specs if loaded.spec.id == spec.id):
            unenforced += provider.host_not_enforced()
        return SandboxInfo(
            kind="docker", isolation=("container",), limits="enforced", not_enforced=(*unenforced, *always)
        )
    return SandboxInfo(
        kind="process", isolation=provider.isolation, limits="watched", not_enforced=(*provider.not_enforced, *always)
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
