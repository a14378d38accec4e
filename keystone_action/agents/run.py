"""What an agent is to the life of a cell: started in the sandbox with its environment, recorded however it ends."""

from __future__ import annotations

from dataclasses import replace

from keystone_action.agents.base import AgentCall, run_program
from keystone_action.agents.output import STDOUT
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.programs import sentence_on_hidden, started_program, ways_to_show
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.spec.models.agents import AgentBase, CliAgent, CommandAgent, NoneAgent, PresetAgent, PythonAgent

_NOT_RUN = (126, 127)
"""What a shell ends with when it could not run a program, or found none."""


async def run_agent(agent: AgentBase, sandbox: Sandbox, task: AgentCall) -> AgentRun:
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
        from keystone_action.agents.python import run_python

        return await run_python(agent, sandbox, task)
    if isinstance(agent, PresetAgent):
        from keystone_action.agents.preset_run import run_preset

        return await run_preset(agent, sandbox, task)
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
