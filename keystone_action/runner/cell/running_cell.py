"""The one record of a cell under way: what a stage of its life writes, later stages, checks and the result read.

What a cell leaves in the results directory, masked: `cells/<id>/{agent.stdout, agent.stderr, audit.jsonl, …}`.

Which commands a cell runs, told as they begin and end, for those who asked for all of it (`-v`).

Secrets are masked in each word of a command before it is quoted and cut: afterwards nobody would find them in it.
Sandboxes and their providers are as they were, but that each command is told: whatever else is asked of them goes to
the real one.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from keystone_action.agents.program import agent_environment
from keystone_action.files.kept_output import write_all
from keystone_action.files.removal import remove_tree
from keystone_action.runner.journal.journal import output_error
from keystone_action.runner.model_access import gateway_of
from keystone_action.runner.started_run import hidden_places
from keystone_action.sandbox.protocol import RunningCommand, Sandbox, SandboxProvider
from keystone_action.spec.expressions import interpolate
from keystone_action.system.command import Command, CommandLimits, Completed, shown_command

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from pathlib import Path

    from keystone_action.agents.program import Inputs
    from keystone_action.engine.networks import ContainerNetwork
    from keystone_action.evidence.audit import AuditLog
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.model import AgentRun, Evidence
    from keystone_action.evidence.trace import Trace
    from keystone_action.files.snapshot import Change, Snapshot
    from keystone_action.gateway.cell import CellGateway
    from keystone_action.gateway.recordings.replay import Replay
    from keystone_action.network.proxy import EgressCell
    from keystone_action.runner.cell.leaked_secrets import SentToModels
    from keystone_action.runner.cell.recordings import CellRecording
    from keystone_action.runner.cell.shared_copies import FirstCopy
    from keystone_action.runner.roots import CellRoots
    from keystone_action.runner.secrets import SpecSecrets
    from keystone_action.runner.started_run import RunUnderWay
    from keystone_action.sandbox.protocol import Sandbox, SandboxProvider
    from keystone_action.scoring.results import ForbiddenResult, InvariantResult
    from keystone_action.services.service import Place
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.agents import AgentBase
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Invariant, Spec
    from keystone_action.spec.models.task import Setup
    from keystone_action.spec.plan import Cell

    # was an import of itself

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
    def limits(self) -> CommandLimits:
        """What one command may use."""
        resources = self.spec.resources
        return CommandLimits(resources.memory, resources.disk, resources.pids, resources.cpu)

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
        if self.run.options.caller.verbose:
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


OUTPUT_LIMIT = 64 * 1024
"""Characters of an agent's output that results.json holds; the whole is in agent.stdout."""
STDERR_LIMIT = 16 * 1024
"""Characters of its stderr that results.json holds; the whole is in agent.stderr."""


class CellFiles:
    """The folder of one cell. Every method raises OutputError when the disk won't take it."""

    def __init__(self, directory: Path, masker: Masker) -> None:
        self.directory = directory
        self._mask = masker

    def start(self) -> None:
        """Make the folder; what an earlier attempt at this cell left is removed."""
        try:
            remove_tree(self.directory)
            self.directory.mkdir(parents=True)
        except OSError as error:
            raise output_error(self.directory, error) from error

    def agent(self, run: AgentRun) -> None:
        """What the agent printed, as far as it was kept."""
        self._write("agent.stdout", run.stdout)
        self._write("agent.stderr", run.stderr)

    def write_graded(self, evidence: Evidence, graded: Sequence[GradedCheck]) -> None:
        """All that a graded cell leaves: what its agent printed, audit log, trace and diff, and the log of each check
        that has one."""
        self.agent(evidence.agent)
        self._write("audit.jsonl", _text(evidence.audit_log))
        self._write("trace.jsonl", _text(evidence.trace))
        self._write("diff.patch", evidence.patch, errors="surrogateescape")
        for entry in graded:
            if entry.log:
                self._write(f"checks/{entry.result.name}.log", entry.log)

    def failure(self, text: str) -> None:
        """The traceback of an internal error."""
        self._write("internal-error.log", text)

    def _write(self, name: str, text: str, *, errors: str = "replace") -> None:
        # Mostly empty, and several in each cell: a file object would take longer than what is written.
        path = f"{self.directory}/{name}"
        data = self._mask.text(text).encode("utf-8", errors) if text else b""
        try:
            if "/" in name:
                Path(path).parent.mkdir(exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_all(file, data)
            finally:
                os.close(file)
        except OSError as error:
            raise output_error(Path(path), error) from error


def _text(log: Path) -> str:
    return log.read_text("utf-8", "replace") if os.stat(log).st_size else ""  # noqa: PTH116


def bound(text: str, limit: int = OUTPUT_LIMIT) -> str:
    """The start and the end of a text that is too long, with the cut said."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters cut …]\n{text[-half:]}"


Tell = Callable[[str], None]
Mask = Callable[[str], str]


def telling_sandbox(sandbox: Sandbox, tell: Tell, mask: Mask) -> Sandbox:
    """The sandbox, whose commands are told."""
    return cast("Sandbox", _TellingSandbox(sandbox, tell, mask))


def telling_provider(provider: SandboxProvider, tell: Tell, mask: Mask) -> SandboxProvider:
    """The provider, the commands of whose sandboxes are told."""
    return cast("SandboxProvider", _TellingProvider(provider, tell, mask))


class _Telling:
    def __init__(self, told: Any, tell: Tell, mask: Mask) -> None:
        self._told = told
        self._tell = tell
        self._mask = mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._told, name)


class _TellingProvider(_Telling):
    async def open(self, *arguments: Any, **named: Any) -> Sandbox:
        return telling_sandbox(await self._told.open(*arguments, **named), self._tell, self._mask)

    async def open_host(self, *arguments: Any, **named: Any) -> Sandbox:
        return telling_sandbox(await self._told.open_host(*arguments, **named), self._tell, self._mask)


class _TellingSandbox(_Telling):
    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        shown = self._shown(command)
        self._tell(f"$ {shown}")
        completed: Completed = await self._told.run(command, stop)
        how = "time limit" if completed.timed_out else completed.limit or f"exit code {completed.shell_code}"
        self._tell(f"{how} after {_seconds(completed.duration_s)} s: {shown}")
        return completed

    def serve(self, command: Command) -> AbstractAsyncContextManager[RunningCommand]:
        self._tell(f"$ {self._shown(command)}")
        served: AbstractAsyncContextManager[RunningCommand] = self._told.serve(command)
        return served

    def _shown(self, command: Command) -> str:
        return shown_command(shlex.join(map(self._mask, command.argv)))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 0.995 else f"{seconds:.1f}"
