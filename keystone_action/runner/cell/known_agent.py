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
    from collections.abc import Iterable, Sequence

    from keystone_action.runner.cell.prepare import Prepared
    from keystone_action.runner.cell.running_cell import RunningCell

_SECONDS = 60.0
_SHOWN = 5
"""Paths that a notice names."""


async def record_version(prepared: Prepared) -> None:
    """Write it into the audit log; null where the program does not tell. Nothing for other agents."""
    running, agent = prepared.running, prepared.task.agent
    if not isinstance(agent, PresetAgent):
        return
    key = _key(running, agent)
    program = key[2]
    version = await running.run.versions.of(key, lambda: _ask(prepared, agent, program))
    details = {"agent": agent.type, "program": program, "version": version}
    prepared.connections.audit.write("known_agent", details, ts=now())


def why_no_question(running: RunningCell, agent: PresetAgent, before: Iterable[str]) -> str:
    """What a person may do where a known agent asked no model. before: paths of the workspace."""
    from keystone_action.agents.presets.preset import load_preset

    preset, advice = load_preset(agent.type), []
    if found := _files(before, preset.steered_by):
        advice.append(f"Files of the workspace steer it, try it without them: {_shown(found)}.")
    if running.run.versions.known(_key(running, agent)) != preset.seen:
        advice.append(f"Version {preset.seen} is known to work here: `{preset.install_command(preset.seen)}`.")
    return " ".join(advice) or "It is the version that is known to work here; what it printed is all that is known."


def _key(running: RunningCell, agent: PresetAgent) -> tuple[str, str | None, str]:
    from keystone_action.agents.presets.preset import load_preset

    return running.spec.id, running.image, agent.binary or load_preset(agent.type).program


def tell_switched_off(prepared: Prepared) -> None:
    """A notice of the settings in the workspace that a known agent is kept from reading."""
    agent = prepared.task.agent
    if not isinstance(agent, PresetAgent):
        return
    from keystone_action.agents.presets.preset import load_preset

    preset = load_preset(agent.type)
    if found := _files(prepared.before.entries, preset.switched_off):
        shown = f"{preset.title}: settings of the workspace count for nothing: {_shown(found)}"
        prepared.running.progress.note(shown)


def _shown(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else "")


def _files(paths: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    matches = PathMatcher(Globs(patterns, dot=True))
    return tuple(path for path in paths if matches(path))


async def _ask(prepared: Prepared, agent: PresetAgent, program: str) -> str | None:
    """None where it does not tell. What it leaves behind is not part of the cell."""
    from keystone_action.agents.presets.preset import load_preset

    preset, checks = load_preset(agent.type), prepared.checks
    place = checks.area / "version"
    place.mkdir()
    command = Command((program, *preset.version), env=checks.environment, timeout=_SECONDS)
    with contextlib.suppress(HarnessError):
        sandbox = await checks.provider.open(
            place, limits=checks.limits, readable=checks.readable, areas=(checks.area,)
        )
        try:
            done = await sandbox.run(command)
        finally:
            await sandbox.close()
        return preset.version_in(done.stdout.text()) or None
    return None
