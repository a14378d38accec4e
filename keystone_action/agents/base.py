"""What all types of agents share: one call of an agent, the files that it may read, and the run of its program.

A failed agent is never an exception (spec 5.1): an exit code, a timeout, a traceback are recorded and graded. Only
what is not the agent's fault raises HarnessError: a program of a list or `cli` agent that this sandbox does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.agents.environment import prompt_bytes
from keystone_action.agents.output import STDERR, STDOUT, record_run, with_output
from keystone_action.errors import HarnessError
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.programs import sentence_on_hidden, ways_to_show
from keystone_action.sandbox.protocol import Sandbox, ShortageError
from keystone_action.spec.models.agents import AgentBase, PythonAgent
from keystone_action.system.command import TRANSCRIPT_LIMIT, Command, Completed, KeptWhole

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from keystone_action.gateway.addresses import ModelAddress

PROMPT_NAME = "prompt.txt"
RUNNER_NAME = "python_runner.py"
LIBRARY_NAME = "keystone-libraries.zip"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of ours that the agent may read: `directory` goes to the provider as `readable`, outside the workspace and
    so outside the diff."""

    directory: Path
    prompt_file: Path
    runner: Path
    library: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """One call of an agent.

    environment: complete, as `agent_environment` makes it. agent_directory: the agent's own code, as the sandbox sees
    it. context: JSON values that a `python` agent gets beside the prompt, None = it gets None. timeout: seconds left
    for the cell, None = no limit but the agent's own. private: a directory of ours for what is too long to be held in
    memory; None = only its head and tail are kept, and what is longer can't be judged. transcript: whether stdout is
    the declared trace, which is kept as a file of any length. stop: ends the agent once it is set. gateways: where
    models are reached, by the names of providers. deny_provider_tools: whether tools that a provider runs are refused.
    lists_processes: whether the run says which processes there were.
    """

    prompt: str
    environment: Mapping[str, str]
    inputs: Inputs
    agent_directory: Path | None = None
    context: Mapping[str, Any] | None = field(default_factory=dict)
    timeout: float | None = None
    private: Path | None = None
    transcript: bool = False
    stop: asyncio.Event | None = None
    gateways: Mapping[str, ModelAddress] = field(default_factory=dict)
    deny_provider_tools: bool = False
    lists_processes: bool = False

    def command(self, agent: AgentBase, argv: Sequence[str], stdin: bytes | None = None) -> Command:
        """The agent's command with everything that all agents have in common."""
        if stdin is None:
            stdin = prompt_bytes(self.prompt) if agent.stdin == "prompt" else b""
        timeout = agent.timeout if self.timeout is None else min(agent.timeout, self.timeout)
        return Command(
            tuple(argv),
            env=self.environment,
            timeout=timeout,
            stdin=stdin,
            stdout_to=self._stream_file(STDOUT, transcript=self.transcript),
            stderr_to=self._stream_file(STDERR),
            lists_processes=self.lists_processes,
        )

    def _stream_file(self, name: str, *, transcript: bool = False) -> KeptWhole | None:
        if self.private is None:
            return None
        path = self.private / name
        return KeptWhole(path, above=0, limit=TRANSCRIPT_LIMIT) if transcript else KeptWhole(path)


def write_inputs(directory: Path, prompt: str, agent: AgentBase, library: Callable[[], bytes]) -> Inputs:
    """Write the prompt, and what a `python` agent needs, to `directory`, which is made; all may read them.
    library: modules that its code finds after all others, as a zip archive.

    Raises HarnessError when they can't be written.
    """
    inputs = Inputs(directory, directory / PROMPT_NAME, directory / RUNNER_NAME, directory / LIBRARY_NAME)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        files = {inputs.prompt_file: prompt_bytes(prompt)}
        if isinstance(agent, PythonAgent):
            files[inputs.runner] = Path(__file__).with_name(RUNNER_NAME).read_bytes()
            files[inputs.library] = library()
        for path, data in files.items():
            path.write_bytes(data)
            path.chmod(0o644)
    except OSError as error:
        raise HarnessError(f"the prompt can't be written to {directory}: {error.strerror or error}") from error
    return inputs


async def run_program(agent: AgentBase, sandbox: Sandbox, task: AgentCall, argv: Sequence[str]) -> AgentRun:
    """Run argv as the agent, its answer taken by `agent.output`. Raises HarnessError when argv[0] does not exist."""
    completed, shortage = await run_to_end(sandbox, task.command(agent, argv), task.stop)
    require_found(completed, argv[0], sandbox)
    run = replace(record_run(completed, task.private), shortage=shortage)
    if agent.output == "stdout":
        return with_output(run, completed, agent.output, sandbox.workspace, task.private)
    import anyio.to_thread

    return await anyio.to_thread.run_sync(with_output, run, completed, agent.output, sandbox.workspace, task.private)


async def run_to_end(sandbox: Sandbox, command: Command, stop: asyncio.Event | None) -> tuple[Completed, str]:
    """How the agent's command ended, and what the machine ran out of when it failed: its streams are to be kept. stop:
    ends it once it is set."""
    try:
        return await sandbox.run(command, stop), ""
    except ShortageError as short:
        return short.completed, short.message


def require_found(completed: Completed, program: str, sandbox: Sandbox, help: str = "") -> None:  # noqa: A002 - as in errors
    """Raise HarnessError when the program did not exist: exit 3 by spec 5.1, never the agent's failure."""
    if not completed.not_found:
        return
    place = sandbox.find_hidden(program)
    if place is not None:
        raise HarnessError(f"the agent's program {sentence_on_hidden(program, place)}", help=ways_to_show(place))
    raise HarnessError(f"the agent's program {program} is not in this sandbox", help=help or _advice(program))


def _advice(program: str) -> str:
    if "/" in program:
        return f"{program} is looked for from the workspace, and must be executable"
    return (
        f"install {program} by setup.packages (without `base`: on this machine), name it by a path relative to the "
        "workspace, or set `base:` (in a case of Touchstone `container.image`) to an image that has it"
    )
