"""What a run is asked to do, and who is told how it goes. Both front doors make one of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from keystone_action.plan import FailedCells, Selection

if TYPE_CHECKING:
    from keystone_action.scoring.results import CellResult
    from keystone_action.scoring.soundness import Baseline
    from keystone_action.spec.loading.translation import Dialects
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Spec

GatewayMode = Literal["live", "record", "replay"]
FailOn = Literal["threshold", "regression", "error", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One call of `keystone run`, or one step of a workflow.

    specs: files, directories or globs, relative to `directory`. environ: our own environment, the only place that
    keys and secrets are read from. output: where results go; None = `.keystone/runs/<time>-<id>` below `directory`.
    failed: only the cells that did not pass in an earlier run.
    shard: (index from 1, count). timeout: seconds for the whole run; after it no further cell starts. max_cost_usd: US
    dollars for agents and judges together; once they are spent no further cell starts and no model is asked.
    tolerate_missing: `specs` are defaults: a missing one is not an error while another one exists.
    dialects: the formats of other tools that specs may be in; None = none. agent: `module:Class` for those of these
    specs that are run with one, in place of what they name.
    no_secrets_reason: why this run gets no secrets (a fork), said when one is missing; empty otherwise.
    run_id: marks all that is made on a container engine; None = a new one. scratch: a directory that the engine's
    machine shares with us, for workspaces; None = the system's temporary one. registry_mirror: stands for Docker Hub;
    registry_username, registry_password: for it, or for Docker Hub. user_logins: whether `docker login` of our own user
    counts. docker_network: a network of the engine that our own container joins, to reach `external` services in it.
    baseline: earlier results that this run is compared with; baseline_problem: why there are none although some were
    asked for, empty otherwise. withheld: files that no agent may see, beside those that specs name. summary: where the
    caller puts a copy of the summary. not_enforced: sentences on what this process can't do, whatever sandbox its cells
    have. gateway: replaces `gateway.mode` of every spec, and switches the gateway on. verbose: progress is told of each
    command and service.
    """

    specs: tuple[str, ...]
    directory: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    output: Path | None = None
    threshold: float | None = None
    replicas: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    filter: str | None = None
    failed: FailedCells | None = None
    max_concurrency: int | None = None
    sandbox: Literal["auto", "process", "docker"] = "auto"
    shard: tuple[int, int] | None = None
    resume: Path | None = None
    retry_errors: int | None = None
    fail_on: FailOn = "threshold"
    fail_on_skipped: bool = False
    fail_on_stale: bool = False
    timeout: float | None = None
    max_cost_usd: float | None = None
    keep: bool = False
    judge_fast: str | None = None
    judge_strong: str | None = None
    cache_dir: Path | None = None
    tolerate_missing: bool = False
    no_secrets_reason: str = ""
    run_id: str | None = None
    scratch: Path | None = None
    registry_mirror: str | None = None
    registry_username: str | None = None
    registry_password: str | None = field(default=None, repr=False)
    user_logins: bool = False
    docker_network: str | None = None
    dialects: Dialects | None = None
    agent: str | None = None
    baseline: Baseline | None = None
    baseline_problem: str = ""
    withheld: tuple[Path, ...] = ()
    summary: Path | None = None
    not_enforced: tuple[str, ...] = ()
    gateway: GatewayMode | None = None
    verbose: bool = False

    @property
    def needs_gateway(self) -> str:
        """The option that switches the gateway on; empty when none does."""
        if self.gateway is not None:
            return "--gateway"
        return "" if self.max_cost_usd is None else "--max-cost-usd"

    @property
    def selection(self) -> Selection:
        """Which cells of the specs are wanted."""
        return Selection(
            params=self.params,
            tags=self.tags,
            filter=self.filter,
            shard=self.shard,
            replicas=self.replicas,
            failed=self.failed,
        )


def gateway_of(spec: Spec, agent: AgentBase, options: RunOptions) -> Gateway | None:
    """The gateway of cells with this agent: as the spec asks for it, else as the call does; None where none does, or
    the spec switches it off. An option of the call replaces its mode."""
    asked = spec.gateway_for(agent)
    if asked is None and (spec.gateway == "off" or not options.needs_gateway):
        return None
    from keystone_action.spec.models.gateway import Gateway

    asked = asked or Gateway()
    return asked if options.gateway is None else asked.model_copy(update={"mode": options.gateway})


class Progress(Protocol):
    """Is told how a run goes; each call returns at once and never raises."""

    def started(self, *, cells: int, finished: int, output: Path, notices: tuple[str, ...]) -> None:
        """Planning is done. cells: all of them. finished: those that an earlier run finished (`--resume`)."""

    def phase(self, cell_id: str, phase: str) -> None:
        """A cell entered a phase of its life: workspace, services, fixtures, setup, agent, checks."""

    def detail(self, cell_id: str, message: str) -> None:
        """What a cell does: a command, a service. Only told with `RunOptions.verbose`."""

    def cell(self, spec_id: str, result: CellResult) -> None:
        """A cell is finished and its journal line is on disk."""

    def note(self, message: str) -> None:
        """Something that people should know while it runs (a substituted service, a retry)."""

    def secrets(self, values: tuple[str, ...]) -> None:
        """Values to mask from here on, told before anything can print them."""
