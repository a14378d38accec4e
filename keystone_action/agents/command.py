"""`type: command`: a text for `sh -c`, or a list that is executed as it is."""

from __future__ import annotations

from dataclasses import replace

from keystone_action.agents.base import Task, run_program
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import Sandbox
from keystone_action.sandbox.programs import first_word, hidden_by_sandbox, ways_to_show
from keystone_action.spec.models.agents import CommandAgent

_NOT_RUN = (126, 127)
"""What a shell ends with when it could not run a program, or found none."""


async def run_command(agent: CommandAgent, sandbox: Sandbox, task: Task) -> AgentRun:
    """Run it. `sh -c` that ends 127 is an agent that failed; raises HarnessError when a list's program is missing."""
    if not isinstance(agent.command, str):
        return await run_program(agent, sandbox, task, tuple(agent.command))
    run = await run_program(agent, sandbox, task, ("/bin/sh", "-c", agent.command))
    if run.exit_code not in _NOT_RUN:
        return run
    return replace(run, advice=_advice(agent.command, sandbox) or run.advice)


def _advice(command: str, sandbox: Sandbox) -> str:
    """Where the program is that a command starts with, when the sandbox hides it."""
    program = first_word(command)
    place = None if program is None else sandbox.hidden(program)
    if program is None or place is None:
        return ""
    return f"{hidden_by_sandbox(program, place)}; {ways_to_show(place)}"
