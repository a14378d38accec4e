"""`type: command`: a text for `sh -c`, or a list that is executed as it is."""

from __future__ import annotations

from keystone_action.agents.base import Task, run_program
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import Sandbox
from keystone_action.spec.agents import CommandAgent


async def run_command(agent: CommandAgent, sandbox: Sandbox, task: Task) -> AgentRun:
    """Run it. `sh -c` that ends 127 is an agent that failed; raises HarnessError when a list's program is missing."""
    argv = ("/bin/sh", "-c", agent.command) if isinstance(agent.command, str) else tuple(agent.command)
    return await run_program(agent, sandbox, task, argv)
