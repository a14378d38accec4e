"""The one record of a cell under way: what a stage of its life writes, later stages, checks and the result read."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from keystone_action.agents.environment import agent_environment
from keystone_action.runner.cell.layout import hidden_places
from keystone_action.runner.options import gateway_of
from keystone_action.spec.expressions import interpolate
from keystone_action.system.command import Limits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from pathlib import Path

    from keystone_action.agents.base import Inputs
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.model import AgentRun, Evidence
    from keystone_action.evidence.trace import Trace
    from keystone_action.files.snapshot import Change, Snapshot
    from keystone_action.gateway.cell import CellGateway
    from keystone_action.gateway.recordings.replay import Replay
    from keystone_action.network.proxy import EgressCell
    from keystone_action.plan import Cell
    from keystone_action.runner.cell.forbidden.leaked_secrets import SentToModels
    from keystone_action.runner.cell.recordings import CellRecording
    from keystone_action.runner.roots import CellRoots
    from keystone_action.runner.sharing.first_copies import FirstCopy
    from keystone_action.runner.under_way import RunUnderWay, SpecSecrets
    from keystone_action.sandbox.protocol import Sandbox, SandboxProvider
    from keystone_action.scoring.results import ForbiddenResult, InvariantResult
    from keystone_action.services.service import Place
    from keystone_action.spec.loading.loader import LoadedSpec
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Invariant, Spec
    from keystone_action.spec.models.task import Setup

Value = TypeVar("Value")
Rerun = Literal["as_asked", "once", "never"]
"""Whether a cell in error may be run again (contract, 5.1 "The agent is run once"): `as_asked`, as often as
`retry_errors` says, since its agent did nothing yet; `once` at most, since it had started and may have had a hand in
what broke; `never`, since its run was complete."""


@dataclass(frozen=True, slots=True)
class GradedCheck:
    """A check's result, its log, and what its judge spent."""

    result: InvariantResult
    log: str
    judge_usage: Mapping[str, float | None]
    unpriced: tuple[str, ...] = ()


@dataclass(kw_only=True)
class CellUnderWay:
    """One attempt at a cell. What a stage writes is not there before it.

    started: monotonic seconds. stack: undoes in reverse order what the stages did.
    Workspace: agent_directory, the agent's own code, None without any; first_copy, what the workspace is a copy of,
    where it is copied for all cells of the spec; names, what expressions can name.
    Services: audit, open until the cell's end; network, its own on the engine; proxy, the way out of it; gateway, its
    way to models, and budget_spent, set some seconds after that one's budget was; recording, what is recorded or
    replayed of that; sent_to_models, what a rule on secrets found there; users, whose connections are the cell's;
    places, its services by name, in the order of the spec.
    Setup: prompt, setup and agent, as interpolated; inputs, files of ours for the agent; provider, opens the sandboxes
    of checks as the agent's was; readable, directories of ours that code in these may read; check_environment, what
    commands of checks get besides their own `env`; originals and before, what the workspace held; git_before, what its
    `.git` held, None where nobody asks; audit_start, where the audit log of the agent begins; missing_programs,
    first words of checks' commands that the sandbox has not, with the place where it hides them.
    Agent: agent_run, None before its end. Evidence: observed, the trace that checks read; unreadable, the sentence that
    disqualifies it; all_changes, of files, those in `.git` too, empty where nobody asks; forbidden, what rules came to.
    rerun, what may be done about an error from here on.
    Checks: graded, in the order in which they ended; in that of the spec once all have.
    """

    cell: Cell
    run: RunUnderWay
    roots: CellRoots
    started: float = 0.0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    phase: str = "start"
    rerun: Rerun = "as_asked"
    notices: list[str] = field(default_factory=list)

    agent_directory: Path | None = None
    first_copy: FirstCopy | None = None
    names: dict[str, Any] = field(default_factory=dict)

    network: ContainerNetwork | None = None
    proxy: EgressCell | None = None
    audit: AuditLog = field(init=False)
    gateway: CellGateway | None = None
    recording: CellRecording | None = None
    budget_spent: asyncio.Event | None = None
    sent_to_models: SentToModels | None = None
    users: set[int] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)

    prompt: str = field(init=False)
    setup: Setup = field(init=False)
    agent: AgentBase = field(init=False)
    inputs: Inputs = field(init=False)
    provider: SandboxProvider = field(init=False)
    sandbox: Sandbox = field(init=False)
    readable: tuple[Path, ...] = ()
    check_environment: Mapping[str, str] = field(default_factory=dict)
    originals: Path | None = None
    before: Snapshot = field(init=False)
    git_before: Snapshot | None = None
    audit_start: int = 0
    missing_programs: Mapping[str, Path | None] = field(default_factory=dict)

    agent_run: AgentRun | None = None
    observed: Trace | None = None
    evidence: Evidence = field(init=False)
    unreadable: str = ""
    all_changes: tuple[Change, ...] = ()
    forbidden: tuple[ForbiddenResult, ...] = ()
    graded: list[GradedCheck] = field(default_factory=list)

    @property
    def loaded(self) -> LoadedSpec:
        """The spec with the rules of its run."""
        return self.cell.loaded

    @property
    def spec(self) -> Spec:
        """The spec."""
        return self.cell.loaded.spec

    @property
    def invariants(self) -> Mapping[str, Invariant]:
        """The spec's, then those of the scenario, by name."""
        return {**self.spec.invariants, **self.cell.scenario.invariants}

    @property
    def secrets(self) -> SpecSecrets:
        """The secrets of its spec."""
        return self.run.secrets[self.spec.id]

    @property
    def limits(self) -> Limits:
        """What one command may use."""
        resources = self.spec.resources
        return Limits(resources.memory, resources.disk, resources.pids, resources.cpu)

    @property
    def image(self) -> str | None:
        """What it runs in, None for the process sandbox."""
        return self.run.image(self.cell)

    @cached_property
    def hidden(self) -> set[Path]:
        """What the agent may not see, results aside."""
        return hidden_places(self.loaded, self.run.options)

    @property
    def withheld(self) -> set[Path]:
        """What is copied nowhere: files that the agent may not see, and results."""
        return self.hidden | self.run.results_places

    @property
    def gateway_wanted(self) -> Gateway | None:
        """As the spec or an option of the call asks for it, not interpolated; None where none does."""
        return gateway_of(self.spec, self.cell.agent, self.run.options)

    @property
    def replay(self) -> Replay | None:
        """What its agent's models answered from; None when they did themselves."""
        return self.recording.replay if self.recording is not None else None

    def enter(self, phase: str) -> None:
        """Go on to the next phase."""
        self.phase = phase
        self.run.progress.phase(self.cell.id, phase)

    def tell(self, message: str) -> None:
        """Say what it does, to those who asked for all of it."""
        if self.run.options.verbose:
            self.run.progress.detail(self.cell.id, message)

    def fill(self, value: Value, **names: str) -> Value:
        """A part of the spec with its expressions replaced; names: in place of these of its own. Where the spec has no
        expressions, `{{ }}` are braces."""
        return interpolate(value, {**self.names, **names}) if self.loaded.has_expressions else value

    def environment(
        self, *, agent_directory: Path | None = None, agent_env: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """What a command in the sandbox finds; with directory and `env` of the agent, what the agent does."""
        return agent_environment(
            prompt=self.prompt,
            prompt_file=self.inputs.prompt_file,
            workspace=self.sandbox.workspace_inside,
            services={name: place.for_agent for name, place in self.places.items()},
            seed=self.spec.determinism.seed,
            model_variables=self.gateway.variables if self.gateway is not None and agent_env is not None else None,
            setup_env=self.setup.env,
            agent_directory=agent_directory,
            agent_env=agent_env,
        )

    def admit(self, sandbox: Sandbox) -> None:
        """Let the user of a sandbox reach this cell's services."""
        if sandbox.uid is not None:
            self.users.add(sandbox.uid)

    def incomplete(self) -> str:
        """Why the record of what left this cell is not whole; empty when it is."""
        return (self.proxy.failure or "") if self.proxy is not None else ""
