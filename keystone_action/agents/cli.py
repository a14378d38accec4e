"""`type: cli`: a program and its arguments, the original's form."""

from __future__ import annotations

from keystone_action.agents.base import Task, run_program
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import Sandbox
from keystone_action.spec.models.agents import CliAgent


async def run_cli(agent: CliAgent, sandbox: Sandbox, task: Task) -> AgentRun:
    """Run it, without a shell. Raises HarnessError when the program does not exist."""
    return await run_program(agent, sandbox, task, (agent.binary, *agent.args))
