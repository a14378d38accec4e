"""What an agent is to the life of a cell: started in the sandbox with its environment, recorded however it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keystone_action.agents.base import Inputs, Task, run_program
from keystone_action.agents.output import STDOUT
from keystone_action.errors import NotSupportedYet
from keystone_action.evidence.model import AgentRun
from keystone_action.sandbox.base import Sandbox
from keystone_action.spec.models.agents import AgentBase, CliAgent, CommandAgent, NoneAgent, PythonAgent


async def run_agent(
    agent: AgentBase,
    *,
    sandbox: Sandbox,
    prompt: str,
    environment: Mapping[str, str],
    inputs: Inputs,
    agent_directory: Path | None = None,
    context: Mapping[str, Any] | None = MappingProxyType({}),
    timeout: float | None = None,
    private: Path | None = None,
    transcript: bool = False,
) -> AgentRun:
    """Run an interpolated agent to its end; every process of it is gone when this returns.

    Parameters are those of `Task`. Raises HarnessError (a program that does not exist, a broken sandbox),
    NotSupportedYet for kinds that this version does not have.
    """
    task = Task(
        prompt=prompt,
        environment=environment,
        inputs=inputs,
        agent_directory=agent_directory,
        context=context,
        timeout=timeout,
        private=private,
        transcript=transcript,
    )
    run = await _run(agent, sandbox, task)
    return run if private is None or not transcript else replace(run, transcript=private / STDOUT)


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
