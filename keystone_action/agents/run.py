"""What an agent is to the life of a cell: started in the sandbox with its environment, recorded however it ends."""

from __future__ import annotations

from dataclasses import replace

from keystone_action.agents.base import Task, run_program
from keystone_action.agents.output import STDOUT
from keystone_action.errors import NotSupportedYet
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import Sandbox
from keystone_action.spec.models.agents import AgentBase, CliAgent, CommandAgent, NoneAgent, PythonAgent


async def run_agent(agent: AgentBase, sandbox: Sandbox, task: Task) -> AgentRun:
    """Run an interpolated agent to its end; every process of it is gone when this returns.

    Raises HarnessError (a program that does not exist, a broken sandbox), NotSupportedYet for kinds that this version
    does not have.
    """
    run = await _run(agent, sandbox, task)
    return run if task.private is None or not task.transcript else replace(run, transcript=task.private / STDOUT)


async def _run(agent: AgentBase, sandbox: Sandbox, task: Task) -> AgentRun:
    if isinstance(agent, NoneAgent):
        return AgentRun()
    if isinstance(agent, CommandAgent):
        from keystone_action.agents.command import run_command

        return await run_command(agent, sandbox, task)
    if isinstance(agent, CliAgent):
        return await run_program(agent, sandbox, task, (agent.binary, *agent.args))
    if isinstance(agent, PythonAgent):
        from keystone_action.agents.python import run_python

        return await run_python(agent, sandbox, task)
    raise NotSupportedYet(f"the agent type {getattr(agent, 'type', type(agent).__name__)}")
