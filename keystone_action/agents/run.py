"""How the life of a cell starts an agent: in the sandbox, with its environment, and recorded however it ends.

A known agent is started by the data of its preset, and led to the gateway of the cell. `type: python` names a
`module:Class` or a `module:function` of the author's `dir`, which `python_runner.py` calls in the sandbox. What
the call returns comes back through a file with a name that is made for this run, so that nothing that the agent prints
can be taken for it; the file is gone before the diff is made. An exception is an agent that failed: its traceback is on
stderr, its text is the run's `problem`, the exit code is 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from keystone_action.agents.presets.preset import LATEST, Preset, Resumption, load_preset, with_preset
from keystone_action.agents.program import (
    STDOUT,
    AgentCall,
    ProgramMissing,
    record_run,
    require_found,
    run_program,
    run_to_end,
    with_document,
    with_output,
)
from keystone_action.agents.result import RESULT_LIMIT
from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun, AgentTurn, TooMuchPrinted
from keystone_action.files.paths import PathMissing, PathProblem, open_inside, read_inside
from keystone_action.sandbox.programs import sentence_on_hidden, started_program, ways_to_show
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.spec.models.agents import (
    AgentBase,
    AgentOutput,
    CliAgent,
    CommandAgent,
    HttpAgent,
    LoopAgent,
    NoneAgent,
    PresetAgent,
    PythonAgent,
)
from keystone_action.system.command import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.spec.models.agents import PresetAgent

_NOT_RUN = (126, 127)
"""What a shell ends with when it could not run a program, or found none."""


async def call_agent(agent: AgentBase, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Run an interpolated agent to its end; every process of it is gone when this returns.

    Raises HarnessError: a program that does not exist, a broken sandbox.
    """
    run = await _run(agent, sandbox, task)
    return run if task.private is None or not task.transcript else replace(run, transcript=task.private / STDOUT)


async def _run(agent: AgentBase, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    if isinstance(agent, NoneAgent):
        return AgentRun()
    if isinstance(agent, CommandAgent):
        return await _run_command(agent, sandbox, task)
    if isinstance(agent, CliAgent):
        return await run_program(agent, sandbox, task, (agent.binary, *agent.args))
    if isinstance(agent, PythonAgent):
        return await run_python(agent, sandbox, task)
    if isinstance(agent, HttpAgent):
        from keystone_action.agents.http_agent import run_http

        return await run_http(agent, sandbox, task)
    if isinstance(agent, PresetAgent):
        return await run_preset(agent, sandbox, task)
    if isinstance(agent, LoopAgent):
        from keystone_action.agents.tool_loop import run_loop

        return await run_loop(agent, sandbox, task)
    raise TypeError(f"no way to run {type(agent).__name__}")


async def _run_command(agent: CommandAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """A text is for `sh -c`, a list is executed as it is. `sh -c` that ends 127 is an agent that failed; raises
    HarnessError when a list's program is missing."""
    if not isinstance(agent.command, str):
        return await run_program(agent, sandbox, task, tuple(agent.command))
    run = await run_program(agent, sandbox, task, ("/bin/sh", "-c", agent.command))
    if run.exit_code not in _NOT_RUN:
        return run
    return replace(run, advice=_advice(agent.command, sandbox) or run.advice)


def _advice(command: str, sandbox: Sandbox) -> str:
    """Where the program is that a command starts with, when the sandbox hides it."""
    program = started_program(command)
    place = None if program is None else sandbox.find_hidden(program)
    if program is None or place is None:
        return ""
    return f"{sentence_on_hidden(program, place)}; {ways_to_show(place)}"


_VERSION_SECONDS = 60.0
_HOME_FILES = "home"
_COPY_HOME_FILES = 'cp -R "$0"/. "$HOME"'


async def run_preset(agent: PresetAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Run a known agent. Raises HarnessError when its program is missing, or the gateway has no provider for it."""
    preset = load_preset(agent.type)
    talk = preset.conversation if task.converses else None
    if task.converses and talk is None:
        raise HarnessError(f"{preset.title} can't go on with a conversation")
    session = _session(talk, task)
    is_later = talk is not None and task.turn > 1
    if talk is not None and is_later and talk.session and not session:
        return AgentRun(exit_code=1, problem=f"{preset.title} named no session that this turn could go on with")
    command = preset.command(
        agent,
        task.gateways,
        deny_provider_tools=task.deny_provider_tools,
        prompt_file=task.inputs.prompt_file,
        environment={**sandbox.environment, **task.environment},
        mcp_servers=task.mcp_servers,
        turn=() if talk is None else talk.next if is_later else talk.first,
        session=session,
    )
    environment = {**command.environment, **task.environment}
    await _require(preset, agent.binary or preset.program, sandbox, environment.get("PATH"))
    if not is_later:
        await _require_version(preset, agent, sandbox, environment)
    before, place = [], task.inputs.directory
    if talk is not None and is_later:
        before.append(talk.clean_up(command.home_files))
    if command.home_files:
        place = _write(task.inputs.directory / _HOME_FILES, command.home_files)
        before.append(_COPY_HOME_FILES)
    argv = command.argv
    if before:
        argv = ("/bin/sh", "-c", " && ".join([*before, 'exec "$@"']), str(place), *argv)
    run = await run_program(with_preset(agent), sandbox, replace(task, environment=environment), argv)
    printed = talk is not None and talk.session == "printed" and not is_later
    return replace(run, session=talk.session_of(run.stdout) if talk is not None and printed else session)


def _session(talk: Resumption | None, task: AgentCall) -> str:
    """The id of the session that this turn begins or goes on with; empty where there is none, or none yet."""
    if task.earlier:
        known = task.earlier[-1].session
        return known if isinstance(known, str) else ""
    return str(uuid.UUID(bytes=secrets.token_bytes(16), version=4)) if talk and talk.session == "chosen" else ""


async def _require(preset: Preset, program: str, sandbox: Sandbox, search_path: str | None) -> None:
    """Raises ProgramMissing for a program that the sandbox has not."""
    if await anyio.to_thread.run_sync(sandbox.which, program, search_path) is not None:
        return
    place = sandbox.find_hidden(program)
    if place is not None:
        raise ProgramMissing(f"{preset.title}: {sentence_on_hidden(program, place)}", help=ways_to_show(place))
    install = f"`{preset.install_command()}`"
    raise ProgramMissing(
        f"{preset.title}: its program {program} is not in this sandbox",
        help=f"with `base:`, use an image that has it or install it by setup.commands: {install}; without, install it "
        f"on this machine: {install}, and show its folder by resources.readable where the sandbox hides that",
    )


async def _require_version(
    preset: Preset, agent: PresetAgent, sandbox: Sandbox, environment: Mapping[str, str]
) -> None:
    """Raises HarnessError for a program of another version than the spec names."""
    if agent.version in (None, LATEST):
        return
    program = agent.binary or preset.program
    asked = Command((program, *preset.version), env=environment, timeout=_VERSION_SECONDS)
    found = preset.version_in((await sandbox.run(asked)).stdout.text())
    if found != agent.version:
        raise HarnessError(
            f"{preset.title}: agent.version is {agent.version}, and {program} here is {found or 'of no known version'}",
            help=f"Install that one: `{preset.install_command(str(agent.version))}`.",
        )


def _write(place: Path, files: Mapping[str, str]) -> Path:
    """What HOME is to hold, where the sandbox can read it. Raises HarnessError."""
    try:
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            path.chmod(0o644)
        for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
    except OSError as error:
        raise HarnessError(f"the agent's settings can't be written to {place}: {error.strerror or error}") from error
    return place


PYTHON = "python3"
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")


async def run_python(agent: PythonAgent, sandbox: Sandbox, task: AgentCall) -> AgentRun:
    """Run it. The answer is what the call returned, unless `agent.output` names a file of the workspace.

    Raises HarnessError without a python3 in the sandbox, or without the agent's directory.
    """
    if task.agent_directory is None:
        raise HarnessError("a python agent needs `dir`, the directory that its module is in")
    result_name = f".keystone-result-{secrets.token_hex(8)}"
    call = {
        "entrypoint": agent.entrypoint,
        "directory": str(task.agent_directory),
        "input": task.prompt,
        "context": None if task.context is None else {**task.context, "history": _history(task.history)},
        "result": result_name,
        "stdin": agent.stdin == "prompt",
        "library": str(task.inputs.library),
    }
    stdin = json.dumps(call, default=str).encode()
    try:
        command = task.command(agent, (PYTHON, str(task.inputs.runner)), stdin)
        completed, shortage = await run_to_end(sandbox, command, task.stop)
        require_found(
            completed,
            PYTHON,
            sandbox,
            "a python agent runs under the sandbox's python3: install one, or set `base:` to an image",
        )
        run = replace(record_run(completed, task.private), shortage=shortage)
        if isinstance(agent.output, AgentOutput) and agent.output.file is not None:
            return with_output(run, completed, agent.output, sandbox.workspace, task.private)
        return _with_result(run, sandbox.workspace, result_name, task.private)
    finally:
        _remove(sandbox.workspace, result_name)


def _history(turns: Sequence[AgentTurn]) -> list[dict[str, str]]:
    """What was said before, and how the agent answered."""
    found = []
    for turn in turns:
        try:
            output = turn.whole_output()
        except TooMuchPrinted:
            output = turn.output
        found.append({"prompt": turn.prompt, "output": output})
    return found


def _with_result(run: AgentRun, workspace: Path, name: str, private: Path | None) -> AgentRun:
    try:
        data = read_inside(workspace, name, limit=RESULT_LIMIT)
    except PathMissing:
        return replace(run, problem="the agent ended without returning a result; its stderr may say why")
    except PathProblem as problem:
        return replace(run, problem=f"the agent's result could not be read: {problem}")
    raised = _read_exception(data) if run.exit_code else None
    if raised is not None:
        return replace(run, problem=f"the agent raised {raised}")
    return with_document(run, data, "the agent's result", private)


def _read_exception(data: bytes) -> str | None:
    """The exception, when the runner wrote down one, and what to do where its name alone tells."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        document = json.loads(data)
        found, missing = document.get("raised"), document.get("missing")
        if not isinstance(found, str):
            return None
        absent = isinstance(missing, str) and _MODULE.fullmatch(missing)
        advice = (
            f"; install {missing} for the sandbox's python3, or put it into the agent's own folder" if absent else ""
        )
        return found.encode("utf-8", "replace").decode() + advice
    return None


def _remove(workspace: Path, name: str) -> None:
    with contextlib.suppress(PathProblem, OSError):
        directory = open_inside(workspace, ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)
