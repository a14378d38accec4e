"""One call of an agent: its environment, the files that it may read, the run of its program, and its answer.

A failed agent is never an exception (spec 5.1): an exit code, a time-out or a traceback is recorded and graded. Only
what is not the agent's fault raises HarnessError: a program of a list or `cli` agent that this sandbox does not have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keystone_action.agents.result import MalformedResult, parse_result
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun, AgentTurn, LongText, TooMuchPrinted
from keystone_action.evidence.model import Address
from keystone_action.files.paths import PathProblem, open_inside, read_head_inside
from keystone_action.sandbox.programs import sentence_on_hidden, ways_to_show
from keystone_action.sandbox.protocol import Sandbox, ShortageError
from keystone_action.spec.models.agents import AgentBase, AgentOutput, PythonAgent
from keystone_action.system.command import (
    CAPTURE_HEAD,
    CAPTURE_TAIL,
    TRANSCRIPT_LIMIT,
    WHOLE_LIMIT,
    Capture,
    Command,
    Completed,
    KeptWhole,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from keystone_action.gateway.upstreams import ModelAddress


class ProgramMissing(HarnessError):  # noqa: N818 - the agent's own doing, where it ran a turn before
    """The agent's program is not in the sandbox."""


PROMPT_VARIABLE_LIMIT = 100 << 10
"""Bytes: a longer prompt is in KEYSTONE_PROMPT_FILE only (spec 5.2; the kernel's limit for one variable is 128 KiB)."""


def agent_environment(
    *,
    prompt: str,
    prompt_file: Path,
    workspace: str,
    agent_directory: Path | None = None,
    services: Mapping[str, Address] | None = None,
    seed: int | None = None,
    model_variables: Mapping[str, str] | None = None,
    setup_env: Mapping[str, str] | None = None,
    agent_env: Mapping[str, str] | None = None,
    turn: int | None = None,
) -> dict[str, str]:
    """The variables, later ones winning: KEYSTONE_*, the seed, those of models, `setup.env`, `agent.env`.

    prompt_file and workspace as code inside the sandbox sees them. turn: of a conversation, counted from 1. Raises
    HarnessError for a variable that no process can be given (a NUL character, an empty name).
    """
    variables = {
        "KEYSTONE_PROMPT": prompt,
        "KEYSTONE_PROMPT_FILE": str(prompt_file),
        "KEYSTONE_WORKSPACE": workspace,
        **service_environment(services or {}),
        **({} if turn is None else {"KEYSTONE_TURN": str(turn)}),
    }
    if len(prompt_bytes(prompt)) > PROMPT_VARIABLE_LIMIT or "\0" in prompt:
        del variables["KEYSTONE_PROMPT"]
    if agent_directory is not None:
        variables["KEYSTONE_AGENT_DIR"] = str(agent_directory)
    if seed is not None:
        variables |= {"KEYSTONE_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32)}
    variables |= {**(model_variables or {}), **(setup_env or {}), **(agent_env or {})}
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise HarnessError(
                f"the environment variable {name!r} can't be given to a process",
                help="names hold no `=`, and neither names nor values hold NUL characters",
            )
    return variables


def service_environment(services: Mapping[str, Address]) -> dict[str, str]:
    """KEYSTONE_SERVICE_<NAME>_{HOST,PORT,URL}, names in upper case with dashes as `_`; what a service has not is
    left out."""
    variables: dict[str, str] = {}
    for name, address in services.items():
        prefix = f"KEYSTONE_SERVICE_{name.upper().replace('-', '_')}"
        known = {"HOST": address.host, "PORT": address.port, "URL": address.url}
        variables |= {f"{prefix}_{key}": str(value) for key, value in known.items() if value not in (None, "")}
    return variables


def prompt_bytes(prompt: str) -> bytes:
    """The prompt as it is written to a file or to stdin."""
    return prompt.encode("utf-8", "replace")


SHOWN_LIMIT = CAPTURE_HEAD + CAPTURE_TAIL
"""Bytes of an answer that are shown, from wherever it comes; a longer one is kept as a file."""
STDOUT, STDERR, ANSWER = "agent.stdout", "agent.stderr", "agent.output"
"""Names of these files, in a directory of ours."""


def record_run(completed: Completed, private: Path | None) -> AgentRun:
    """How the command ended, with its streams; no output yet. private: where `STDOUT` and `STDERR` are, None without
    them."""
    return AgentRun(
        exit_code=completed.exit_code,
        signal=completed.signal,
        timed_out=completed.timed_out,
        limit=completed.limit,
        duration_s=completed.duration_s,
        stdout=completed.stdout.text(),
        stderr=completed.stderr.text(),
        stdout_bytes=completed.stdout.total,
        stderr_bytes=completed.stderr.total,
        leftovers=completed.leftovers,
        advice=completed.advice,
        processes=completed.processes,
        processes_left_out=completed.processes_left_out,
        long_stdout=long_text(completed.stdout, private and private / STDOUT),
        long_stderr=long_text(completed.stderr, private and private / STDERR),
    )


def long_text(capture: Capture, file: Path | None) -> LongText | None:
    """The whole of what was kept, where that is not all shown. file: `KeptWhole.path`."""
    return LongText(capture.total, file, WHOLE_LIMIT) if capture.cut else None


def with_output(
    run: AgentRun,
    completed: Completed,
    source: Literal["stdout"] | AgentOutput,
    workspace: Path,
    private: Path | None,
) -> AgentRun:
    """The run with its answer; `problem` says why one that was asked for is missing. Blocks for a while where it is
    long."""
    if source == "stdout":
        return replace(run, output=run.stdout, long_output=run.long_stdout)
    if source.file is not None:
        return with_file(run, workspace, source.file, private)
    return _from_stdout_document(run, completed.stdout, private)


def with_document(run: AgentRun, data: bytes, what: str, private: Path | None) -> AgentRun:
    """The run with what an AgentResult document says; what names the document in `problem`."""
    try:
        result = parse_result(data)
    except MalformedResult as malformed:
        return replace(run, problem=f"{what} is malformed: {malformed}")
    output, long = keep_whole(result.output, private and private / ANSWER)
    return replace(
        run,
        output=output,
        long_output=long,
        tool_calls=result.tool_calls,
        token_usage=result.token_usage,
        reported=result.reported,
    )


def with_file(run: AgentRun, workspace: Path, path: str, private: Path | None) -> AgentRun:
    """The run with the text of a file of the workspace for its answer. Blocks for a while where it is long."""
    try:
        head, size = read_head_inside(workspace, path, limit=SHOWN_LIMIT)
        if size <= SHOWN_LIMIT:
            return replace(run, output=head.decode("utf-8", "replace"))
        copy = None if private is None else _copy_output(workspace, path, private / ANSWER)
    except PathProblem as problem:
        return replace(run, problem=f"the output file could not be read: {problem}")
    return replace(run, output=_shorten(head, size), long_output=LongText(size, copy, WHOLE_LIMIT))


def _copy_output(workspace: Path, path: str, copy: Path) -> Path:
    """Out of the reach of what checks do to the workspace."""
    with os.fdopen(open_inside(workspace, path), "rb") as source, copy.open("wb") as file:
        # Of one that is too long, nothing is ever read: its holes may have any size.
        if os.fstat(source.fileno()).st_size <= WHOLE_LIMIT:
            shutil.copyfileobj(source, file)
    return copy


def _from_stdout_document(run: AgentRun, stdout: Capture, private: Path | None) -> AgentRun:
    what = "the JSON document on stdout"
    try:
        data = stdout.head + stdout.tail if run.long_stdout is None else run.long_stdout.read(what)
    except TooMuchPrinted as problem:
        return replace(run, problem=str(problem))
    return with_document(run, data, what, private)


def keep_whole(text: str, file: Path | None) -> tuple[str, LongText | None]:
    """What is shown of a text, and where all of it is when that is not all. file: for a longer one; None keeps none."""
    data = text.encode()
    if len(data) <= SHOWN_LIMIT:
        return text, None
    if file is not None:
        file.write_bytes(data)
    return _shorten(data, len(data)), LongText(len(data), file, WHOLE_LIMIT)


def _shorten(data: bytes, size: int) -> str:
    return Capture(data[:SHOWN_LIMIT], b"", size).text()


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
    """One call of an agent."""

    prompt: str
    environment: Mapping[str, str]
    """Complete, as `agent_environment` makes it."""
    inputs: Inputs
    agent_directory: Path | None = None
    """Where the agent's own code is, as the sandbox sees it."""
    context: Mapping[str, Any] | None = field(default_factory=dict)
    """JSON values that a `python` agent gets beside the prompt; None where it gets none."""
    private: Path | None = None
    """A directory of ours for output that is too long for our memory. With None only the beginning and the end are
    kept, and a longer output can't be judged."""
    transcript: bool = False
    """Whether stdout is the declared trace: it is kept as a file of any length."""
    stop: asyncio.Event | None = None
    """Ends the agent once it is set."""
    names: Mapping[str, Any] = field(default_factory=dict)
    """What a request to an agent that is a service can name besides `turn` and `conversation`: `task` and `record`."""
    is_own_service: bool = False
    """Whether the agent is a container of the cell's."""
    has_ended: Callable[[], bool] | None = None
    """Whether this container has ended, once the engine had time to notice it. Blocks; raises HarnessError."""
    services: Mapping[str, str] = field(default_factory=dict)
    """The containers that are services and not the agent, by each of their hosts, and by `ADDRESS:PORT`."""
    gateways: Mapping[str, ModelAddress] = field(default_factory=dict)
    """Where models are reached, by the names of providers."""
    mcp_servers: Mapping[str, str] = field(default_factory=dict)
    """The URLs of MCP servers by name, for the client of a known agent."""
    deny_provider_tools: bool = False
    """Whether tools that a provider runs are refused."""
    system: str = ""
    """What `task.system` says; empty where it says nothing."""
    lists_processes: bool = False
    """Whether the run says which processes there were."""
    converses: bool = False
    """Whether this call is a turn of a conversation, so that another one may follow it."""
    turn: int = 1
    """The turn that it is, counted from 1."""
    earlier: tuple[AgentRun, ...] = ()
    """The runs of the turns before it, in order: the last one has the session to go on with."""
    history: tuple[AgentTurn, ...] = ()
    """The same turns, with what was said."""

    def command(self, agent: AgentBase, argv: Sequence[str], stdin: bytes | None = None) -> Command:
        """The agent's command with everything that all agents have in common."""
        if stdin is None:
            stdin = prompt_bytes(self.prompt) if agent.stdin == "prompt" else b""
        return Command(
            tuple(argv),
            env=self.environment,
            timeout=agent.timeout,
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


def write_prompt(inputs: Inputs, prompt: str, turn: int) -> Inputs:
    """What is said in a later turn, in a file of its own: that of the first turn is the task's prompt, for checks too.
    Raises HarnessError."""
    path = inputs.directory / f"prompt-{turn}.txt"
    try:
        path.write_bytes(prompt_bytes(prompt))
        path.chmod(0o644)
    except OSError as error:
        raise HarnessError(f"the prompt can't be written to {path}: {error.strerror or error}") from error
    return replace(inputs, prompt_file=path)


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
    """Raise ProgramMissing when the program did not exist: exit 3 by spec 5.1, never the agent's failure."""
    if not completed.not_found:
        return
    place = sandbox.find_hidden(program)
    if place is not None:
        raise ProgramMissing(f"the agent's program {sentence_on_hidden(program, place)}", help=ways_to_show(place))
    raise ProgramMissing(f"the agent's program {program} is not in this sandbox", help=help or _advice(program))


def _advice(program: str) -> str:
    if "/" in program:
        return f"{program} is looked for from the workspace, and must be executable"
    return (
        f"install {program} by setup.packages (without `base`: on this machine), name it by a path relative to the "
        "workspace, or set `base:` (in a case of Touchstone `container.image`) to an image that has it"
    )
