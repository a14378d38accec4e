"""A known agent in a cell: which version of it runs, asked of its program in a sandbox of its own, once a run; and what
in the workspace steers it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import now
from keystone_action.spec.globs import Globs, PathMatcher
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.system.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keystone_action.runner.cell.running_cell import CellUnderWay

_SECONDS = 60.0
_SHOWN = 5
"""Paths that a notice names."""


async def record_version(under_way: CellUnderWay) -> None:
    """Write it into the audit log; null where the program does not tell. Nothing for other agents."""
    agent = under_way.agent
    if not isinstance(agent, PresetAgent):
        return
    known, key = under_way.run.versions, _key(under_way, agent)
    program = key[2]
    if key not in known:
        known[key] = await _ask(under_way, agent, program)
    details = {"agent": agent.type, "program": program, "version": known[key]}
    under_way.audit.write("known_agent", details, ts=now())


def why_no_question(under_way: CellUnderWay, agent: PresetAgent) -> str:
    """What a person may do where a known agent asked no model."""
    from keystone_action.agents.presets.preset import load_preset

    preset, advice = load_preset(agent.type), []
    if found := _files(under_way, preset.steered_by):
        advice.append(f"Files of the workspace steer it, try it without them: {_shown(found)}.")
    if _known_version(under_way, agent) != preset.seen:
        advice.append(f"Version {preset.seen} is known to work here: `{preset.install_command(preset.seen)}`.")
    return " ".join(advice) or "It is the version that is known to work here; what it printed is all that is known."


def _known_version(under_way: CellUnderWay, agent: PresetAgent) -> str | None:
    return under_way.run.versions.get(_key(under_way, agent))


def _key(under_way: CellUnderWay, agent: PresetAgent) -> tuple[str, str | None, str]:
    from keystone_action.agents.presets.preset import load_preset

    return under_way.spec.id, under_way.image, agent.binary or load_preset(agent.type).program


def tell_switched_off(under_way: CellUnderWay) -> None:
    """A notice of the settings in the workspace that a known agent is kept from reading."""
    agent = under_way.agent
    if not isinstance(agent, PresetAgent):
        return
    from keystone_action.agents.presets.preset import load_preset

    preset = load_preset(agent.type)
    if found := _files(under_way, preset.switched_off):
        under_way.notices.append(f"{preset.title}: settings of the workspace count for nothing: {_shown(found)}")


def _shown(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else "")


def _files(under_way: CellUnderWay, patterns: Sequence[str]) -> tuple[str, ...]:
    matches = PathMatcher(Globs(patterns, dot=True))
    return tuple(path for path in under_way.before if matches(path))


async def _ask(under_way: CellUnderWay, agent: PresetAgent, program: str) -> str | None:
    """None where it does not tell. What it leaves behind is no part of the cell."""
    from keystone_action.agents.presets.preset import load_preset

    preset = load_preset(agent.type)
    place = under_way.roots.area / "version"
    place.mkdir()
    command = Command((program, *preset.version), env=under_way.check_environment, timeout=_SECONDS)
    with contextlib.suppress(HarnessError):
        sandbox = await under_way.provider.open(
            place, limits=under_way.limits, readable=under_way.readable, areas=(under_way.roots.area,)
        )
        try:
            done = await sandbox.run(command)
        finally:
            await sandbox.close()
        return preset.version_in(done.stdout.text()) or None
    return None
