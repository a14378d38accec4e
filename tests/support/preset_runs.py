"""Agents of presets in the process sandbox, behind the gateway, in front of a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.context import kept
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import Asked, provider
from support.worlds import world_of

from keystone_action.agents.base import AgentCall, write_inputs
from keystone_action.agents.environment import agent_environment
from keystone_action.agents.run import run_agent
from keystone_action.evidence.model import AgentRun
from keystone_action.evidence.trace import Trace
from keystone_action.gateway.addresses import ModelAddress, agent_variables
from keystone_action.gateway.application import Settings
from keystone_action.gateway.ledger import Ledger
from keystone_action.gateway.server import Gateways
from keystone_action.gateway.trace import trace_of
from keystone_action.gateway.upstreams import DEFAULT_BASES, Upstream
from keystone_action.spec.models.agents import PresetAgent

REAL, WORTHLESS = "sk-real-key-of-ours-0001", "keystone-worthless-key-of-the-cell"


@dataclass
class PresetRun:
    """What became of it. files: of the workspace. asked: by the provider behind the gateway. model: what it said."""

    run: AgentRun
    files: dict[str, str]
    asked: list[Asked]
    model: ScriptedModel
    ledger: Ledger

    @property
    def trace(self) -> Trace:
        """The gateway's."""
        return trace_of(self.ledger.exchanges, self.ledger.spent)

    @property
    def results(self) -> list[str]:
        """What the tools gave back."""
        return [call.result for call in self.trace.tool_calls or ()]

    @property
    def bodies(self) -> list[str]:
        """Of all requests, their texts as people read them."""
        return [json.dumps(asked.document, ensure_ascii=False) for asked in self.asked if asked.body]


@dataclass
class Play:
    """What a test has played. turns: of the model, told the workspace. readable: besides what all agents get."""

    turns: Callable[[str], Sequence[Turn]] = lambda _workspace: [Turn(text="Done.")]
    prompt: str = "Write hello.txt."
    readable: Sequence[Path] = ()
    deny_provider_tools: bool = False
    files: dict[str, str] = field(default_factory=dict)
    gateways: bool = True
    offers_tools: bool = True


def play(agent: PresetAgent, one: Play) -> PresetRun:
    """Run it to its end."""
    return kept().call(_play(agent, one))


async def _play(agent: PresetAgent, one: Play) -> PresetRun:
    ledger, gateways = Ledger(), Gateways()
    gateways.start()
    try:
        async with world_of(await kept().sandboxes()) as world:
            model = ScriptedModel(one.turns(str(world.workspace)), one.offers_tools)
            with provider(model.answer) as behind:
                upstreams = {
                    name: Upstream(name, name, behind.url + ("/v1" if name == "openai" else ""), REAL)
                    for name in DEFAULT_BASES
                }
                settings = Settings(WORTHLESS, upstreams, ledger, deny_tools_of_provider=one.deny_provider_tools)
                opened = await gateways.open(settings)
                root = f"http://127.0.0.1:{opened.port}"
                addresses = {
                    name: ModelAddress(f"{root}/{name}" + ("/v1" if name == "openai" else ""), WORTHLESS)
                    for name in (upstreams if one.gateways else ())
                }
                run, files = await _run(agent, one, world, addresses)
        assert gateways.defects == ()
        return PresetRun(run, files, behind.asked, model, ledger)
    finally:
        gateways.stop()


async def _run(
    agent: PresetAgent, one: Play, world: Any, addresses: dict[str, ModelAddress]
) -> tuple[AgentRun, dict[str, str]]:
    inputs = write_inputs(world.area / "task", one.prompt, agent, bytes)
    world.workspace.mkdir()
    for name, text in one.files.items():
        (world.workspace / name).write_text(text)
        (world.workspace / name).chmod(0o755)
    private = world.area / "private"
    private.mkdir()
    sandbox = await world.open(inputs.directory, *one.readable)
    environment = agent_environment(
        prompt=one.prompt,
        prompt_file=inputs.prompt_file,
        workspace=sandbox.workspace_inside,
        agent_env={**agent_variables(addresses, {name: name for name in addresses}), **agent.env},
    )
    task = AgentCall(
        prompt=one.prompt,
        environment=environment,
        inputs=inputs,
        private=private,
        transcript=True,
        gateways=addresses,
        deny_provider_tools=one.deny_provider_tools,
    )
    try:
        run = await run_agent(agent, sandbox, task)
        return run, {path.name: path.read_text() for path in world.workspace.iterdir() if path.is_file()}
    finally:
        await sandbox.close()
