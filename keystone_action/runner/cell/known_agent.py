"""Which version of a known agent a cell runs: asked of its program in a sandbox of its own, once a run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from keystone_action.command import Command
from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import now
from keystone_action.spec.models.agents import PresetAgent

if TYPE_CHECKING:
    from keystone_action.runner.cell.under_way import CellUnderWay

_SECONDS = 60.0


async def record_version(under_way: CellUnderWay) -> None:
    """Write it into the audit log; null where the program does not tell. Nothing for other agents."""
    agent = under_way.agent
    if not isinstance(agent, PresetAgent):
        return
    from keystone_action.agents.presets.preset import load_preset

    program = agent.binary or load_preset(agent.type).program
    known, key = under_way.run.versions, (under_way.spec.id, under_way.image, program)
    if key not in known:
        known[key] = await _ask(under_way, agent, program)
    details = {"agent": agent.type, "program": program, "version": known[key]}
    under_way.audit.write("known_agent", details, ts=now())


async def _ask(under_way: CellUnderWay, agent: PresetAgent, program: str) -> str | None:
    """None where it does not tell. What it leaves behind is no part of the cell."""
    from keystone_action.agents.presets.preset import load_preset

    preset = load_preset(agent.type)
    place = under_way.roots.area / "version"
    place.mkdir()
    command = Command((program, *preset.version), env=under_way.check_environment, timeout=_SECONDS)
    with contextlib.suppress(HarnessError):
        sandbox = await under_way.provider.open(place, limits=under_way.limits, readable=under_way.readable)
        try:
            done = await sandbox.run(command)
        finally:
            await sandbox.close()
        return preset.version_in(done.stdout.text()) or None
    return None
