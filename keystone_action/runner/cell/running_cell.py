"""One attempt at a cell: what it is, how far it is, and the files that it leaves in the results.

`RunningCell` says what was known before the first stage. `CellProgress` owns all that changes while the stages go by;
what the stages found is in the records that they hand on.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from keystone_action.files.removal import remove_tree
from keystone_action.runner.journal.journal import output_error
from keystone_action.runner.model_access import gateway_of
from keystone_action.runner.started_run import hidden_places
from keystone_action.sandbox.protocol import RunningCommand, Sandbox, SandboxProvider
from keystone_action.spec.agent_service import agent_service
from keystone_action.spec.expressions import interpolate
from keystone_action.system.command import Command, CommandLimits, Completed, shown_command

if TYPE_CHECKING:
    from keystone_action.evidence.agent_run import AgentRun
    from keystone_action.evidence.masking import Masker
    from keystone_action.evidence.model import Evidence, ModelEvidence
    from keystone_action.evidence.trace import Trace
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.runner.roots import CellRoots
    from keystone_action.runner.secrets import SpecSecrets
    from keystone_action.runner.started_run import StartedRun
    from keystone_action.scoring.results import ForbiddenResult, InvariantResult
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.gateway import Gateway
    from keystone_action.spec.models.spec import Invariant, Spec
    from keystone_action.spec.plan import Cell

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


def _no_models() -> ModelEvidence | None:
    return None


@dataclass(frozen=True, slots=True)
class CellFindings:
    """What is known of an attempt so far, which its result tells wherever the attempt breaks off."""

    models: Callable[[], ModelEvidence | None] = _no_models
    """What passed the gateway until now; None for a cell without one."""

    prompts: tuple[str, ...] = ()
    """The prompt and the further turns; empty before they are known."""

    agent: AgentRun | None = None
    """None before the agent's end."""

    observed: Trace | None = None
    forbidden: tuple[ForbiddenResult, ...] = ()
    graded: tuple[GradedCheck, ...] = ()
    """The checks in the order in which they ended; in that of the spec once all have."""


class CellProgress:
    """How far one attempt at a cell is. progress: told of phases, and with `verbose` of commands and services."""

    def __init__(self, cell_id: str, progress: Progress, *, verbose: bool) -> None:
        self._cell_id, self._progress, self._verbose = cell_id, progress, verbose
        self._phase, self._turn = "start", 0
        self._rerun: Rerun = "as_asked"
        self._notices: list[str] = []
        self._found = CellFindings()
        self._graded: list[GradedCheck] = []

    @property
    def phase(self) -> str:
        """Where it is: workspace, services, fixtures, setup, agent, checks."""
        return self._phase

    @property
    def place(self) -> str:
        """The phase, and the turn of a conversation that is under way."""
        return f"{self._phase}, turn {self._turn}" if self._turn and self._phase == "agent" else self._phase

    @property
    def rerun(self) -> Rerun:
        """What may be done about an error that comes now."""
        return self._rerun

    @property
    def notices(self) -> tuple[str, ...]:
        """What people should know of the cell, in sentences."""
        return tuple(self._notices)

    @property
    def found(self) -> CellFindings:
        """What is known so far."""
        return replace(self._found, graded=tuple(self._graded))

    def enter(self, phase: str) -> None:
        """Go on to the next phase."""
        self._phase = phase
        self._progress.phase(self._cell_id, self.place)

    def begin_turn(self, turn: int) -> None:
        """The agent's next turn, counted from 1."""
        self._turn = turn
        self._progress.phase(self._cell_id, self.place)

    def tell(self, message: str) -> None:
        """Say what the cell does, to those who asked for all of it."""
        if self._verbose:
            self._progress.detail(self._cell_id, message)

    def note(self, *notices: str) -> None:
        """Add sentences that people should know."""
        self._notices += notices

    def allow_rerun(self, rerun: Rerun) -> None:
        """From here on an error is of this kind."""
        self._rerun = rerun

    def ask(self, prompts: Sequence[str]) -> None:
        """The prompt and the further turns are known."""
        self._found = replace(self._found, prompts=tuple(prompts))

    def open_models(self, models: Callable[[], ModelEvidence | None]) -> None:
        """The cell has a gateway; `models` says what has passed it so far."""
        self._found = replace(self._found, models=models)

    def end_agent(self, run: AgentRun) -> None:
        """The agent has ended, or more is known of how it did."""
        self._found = replace(self._found, agent=run)

    def observe(self, observed: Trace | None) -> None:
        """The trace that checks read is known."""
        self._found = replace(self._found, observed=observed)

    def judge_rules(self, forbidden: Sequence[ForbiddenResult]) -> None:
        """The rules that were judged so far, in place of those of the last call."""
        self._found = replace(self._found, forbidden=tuple(forbidden))

    def add_graded(self, graded: GradedCheck) -> None:
        """One more check has ended."""
        self._graded.append(graded)

    def grade(self, graded: Sequence[GradedCheck]) -> None:
        """The checks that ended so far, in place of those of the last call."""
        self._graded = list(graded)


@dataclass(frozen=True, eq=False)
class RunningCell:
    """One attempt at a cell, with all that is known before its first stage."""

    cell: Cell
    run: StartedRun
    roots: CellRoots
    files: CellFiles
    progress: CellProgress

    started: float
    """Monotonic seconds."""

    @property
    def loaded(self) -> LoadedSpec:
        """The spec with the rules of its run."""
        return self.cell.loaded

    @property
    def spec(self) -> Spec:
        """The spec."""
        return self.cell.loaded.spec

    @property
    def options(self) -> Options:
        """The options of the call."""
        return self.run.planned.options

    @property
    def invariants(self) -> Mapping[str, Invariant]:
        """The spec's, then those of the scenario, by name."""
        return {**self.spec.invariants, **self.cell.scenario.invariants}

    @property
    def secrets(self) -> SpecSecrets:
        """The secrets of its spec."""
        return self.run.author.secrets[self.spec.id]

    @property
    def limits(self) -> CommandLimits:
        """What one command may use."""
        resources = self.spec.resources
        return CommandLimits(resources.memory, resources.disk, resources.pids, resources.cpu)

    @property
    def image(self) -> str | None:
        """The image that it runs in, None for the process sandbox."""
        return self.run.planned.image(self.cell)

    @cached_property
    def agent_service(self) -> str | None:
        """The container among its services that is its agent; None where none is."""
        return agent_service(self.spec, self.cell.agent, self.cell.params)

    @cached_property
    def hidden(self) -> set[Path]:
        """What the agent may not see, results aside."""
        return hidden_places(self.loaded, self.options)

    @property
    def withheld(self) -> set[Path]:
        """What is copied nowhere: files that the agent may not see, and results."""
        return self.hidden | self.run.planned.results_places

    @property
    def gateway(self) -> Gateway | None:
        """As the spec or an option of the call asks for it, not interpolated; None where none does."""
        return gateway_of(self.spec, self.cell.agent, self.options)


@dataclass(frozen=True, slots=True)
class Expressions:
    """Replaces expressions of the spec."""

    names: Mapping[str, Any]
    """What they can name, as nested mappings."""

    has_expressions: bool
    """Where the spec has none, `{{ }}` are braces."""

    def knowing(self, **names: Any) -> Expressions:
        """With more names, or with others in their place."""
        return replace(self, names={**self.names, **names})

    def fill(self, value: Value, **names: str) -> Value:
        """A part of the spec with its expressions replaced. names: in place of its own."""
        return interpolate(value, {**self.names, **names}) if self.has_expressions else value


OUTPUT_LIMIT = 64 * 1024
"""Characters of an agent's output that results.json holds; the whole is in agent.stdout."""
STDERR_LIMIT = 16 * 1024
"""Characters of its stderr that results.json holds; the whole is in agent.stderr."""
PROMPT_LIMIT = 8 * 1024
"""Characters of the prompt, and of each further turn, that results.json holds."""
PROMPTS_LIMIT = 64 * 1024
"""Bytes of all of them that it holds."""
_MARKS = 4
"""Of each text: its quotes, a comma and a blank."""


class CellFiles:
    """The folder of one cell in the results, masked: `cells/<id>/{agent.stdout, agent.stderr, audit.jsonl, …}`. Every
    method raises OutputError when the disk won't take it."""

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
        self._write("audit.jsonl", evidence.audit.log.read_text("utf-8", "replace"))
        self._write("trace.jsonl", evidence.trace.read_text("utf-8", "replace"))
        self._write("diff.patch", evidence.files.patch, errors="surrogateescape")
        for entry in graded:
            if entry.log:
                self._write(f"checks/{entry.result.name}.log", entry.log)

    def failure(self, text: str) -> None:
        """The traceback of an internal error."""
        self._write("internal-error.log", text)

    def _write(self, name: str, text: str, *, errors: str = "replace") -> None:
        path = self.directory / name
        data = self._mask.text(text).encode("utf-8", errors)
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise output_error(path, error) from error


def bound_output(text: str, limit: int = OUTPUT_LIMIT) -> str:
    """The start and the end of a text that is too long, with the cut said."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters cut …]\n{text[-half:]}"


def bound_prompts(prompts: Sequence[str]) -> tuple[str, ...]:
    """The prompt and the further turns, each cut by itself; the last that there is room for ends with the number of
    those that there is none for."""
    bounded = [bound_output(text, PROMPT_LIMIT) for text in prompts]
    ends = accumulate(len(text.encode(errors="replace")) + _MARKS for text in bounded)
    kept = sum(1 for _ in takewhile(lambda end: end <= PROMPTS_LIMIT, ends))
    if 0 < kept < len(bounded):
        bounded[kept - 1] += f"\n[… further turns cut: {len(bounded) - kept:,} …]"
    return tuple(bounded[:kept])


def verbose_sandbox(sandbox: Sandbox, tell: Callable[[str], None], mask: Callable[[str], str]) -> Sandbox:
    """The sandbox, with each of its commands told as it begins and ends. mask: takes secrets out of each word of a
    command, before it is quoted and cut: afterwards nobody would find them."""
    return cast("Sandbox", _VerboseSandbox(sandbox, tell, mask))


def verbose_provider(
    provider: SandboxProvider, tell: Callable[[str], None], mask: Callable[[str], str]
) -> SandboxProvider:
    """The provider, whose sandboxes tell their commands."""
    return cast("SandboxProvider", _VerboseProvider(provider, tell, mask))


class _Verbose:
    def __init__(self, real: Any, tell: Callable[[str], None], mask: Callable[[str], str]) -> None:
        self._real = real
        self._tell = tell
        self._mask = mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _VerboseProvider(_Verbose):
    async def open(self, *arguments: Any, **named: Any) -> Sandbox:
        return verbose_sandbox(await self._real.open(*arguments, **named), self._tell, self._mask)

    async def open_host(self, *arguments: Any, **named: Any) -> Sandbox:
        return verbose_sandbox(await self._real.open_host(*arguments, **named), self._tell, self._mask)


class _VerboseSandbox(_Verbose):
    async def run(self, command: Command, stop: asyncio.Event | None = None) -> Completed:
        shown = self._shown(command)
        self._tell(f"$ {shown}")
        completed: Completed = await self._real.run(command, stop)
        how = "time limit" if completed.timed_out else completed.limit or f"exit code {completed.shell_code}"
        self._tell(f"{how} after {_seconds(completed.duration_s)} s: {shown}")
        return completed

    def serve(self, command: Command) -> AbstractAsyncContextManager[RunningCommand]:
        self._tell(f"$ {self._shown(command)}")
        served: AbstractAsyncContextManager[RunningCommand] = self._real.serve(command)
        return served

    def _shown(self, command: Command) -> str:
        return shown_command(shlex.join(map(self._mask, command.argv)))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 0.995 else f"{seconds:.1f}"
