"""Files of the agent's workspace that steer its program: instructions, hooks, settings. What the workspace holds is the
agent's, and is not compared; what steers it decides how it works, so a change of that is said."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.gate.leaves import Finding, Level
from keystone_action.gate.named_files import COUNT_LIMIT, line_counts, same_content
from keystone_action.spec.globs import Globs, PathMatcher
from keystone_action.spec.loading.loader import LoadedSpec
from keystone_action.spec.models.agents import PresetAgent
from keystone_action.spec.walking import walk

_SHOWN = 10
"""Files that are named, and keys of each."""
_WITH_KEYS = (".json", ".jsonc", ".yaml", ".yml")


def steering_findings(before: LoadedSpec, after: LoadedSpec) -> Iterator[Finding]:
    """`changes what steers the agent: .claude/settings.json (hooks, env)`; nothing where nothing differs. Raises
    OSError."""
    old, new = _files(before), _files(after)
    changed = [
        f"{name} ({_difference(old.get(name), new.get(name))})"
        for name in sorted({*old, *new})
        if name not in old or name not in new or not same_content(old[name], new[name])
    ]
    if changed:
        more = f" and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
        yield Finding(Level.AROUND, f"changes what steers the agent: {', '.join(changed[:_SHOWN])}{more}")


@cache
def _of_any_agent() -> Globs:
    return Globs((one for name in preset_names() for one in load_preset(name).steered_by), dot=True)


def steering_paths(paths: Iterable[str], folder: str) -> Iterator[str]:
    """Those that steer any known agent whose workspace is this folder, all as paths of a repository."""
    matches, prefix = PathMatcher(_of_any_agent()), f"{folder}/" if folder not in ("", ".") else ""
    return (path for path in paths if path.startswith(prefix) and matches(path.removeprefix(prefix)))


def _files(loaded: LoadedSpec) -> dict[str, Path]:
    """By their paths in the workspace."""
    agent, workspace = loaded.spec.agent, loaded.spec.workspace
    if not isinstance(agent, PresetAgent) or workspace is None or "{{" in workspace:
        return {}
    top, found = loaded.directory / workspace, {}
    matches = PathMatcher(Globs(load_preset(agent.type).steered_by, dot=True))
    for folder, folders, files in walk(top):
        if ".git" in folders:
            folders.remove(".git")
        for name in sorted(files):
            path = Path(folder, name)
            relative = os.path.relpath(path, top)
            if matches(relative) and path.is_file():
                found[relative] = path
    return found


def _difference(old: Path | None, new: Path | None) -> str:
    """The keys that differ, else the lines."""
    known = [path for path in (old, new) if path is not None]
    tables = [_keys(path) for path in known]
    if all(table is not None for table in tables):
        was, now = (tables[0], tables[-1]) if len(tables) == 2 else ({}, tables[0])
        assert was is not None
        assert now is not None
        names = [name for name in {**was, **now} if was.get(name, ...) != now.get(name, ...)]
        if names:
            return ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])
    if old is None or new is None:
        return "added" if old is None else "deleted"
    return line_counts(old, new)


def _keys(path: Path) -> Mapping[str, Any] | None:
    """What a file of settings holds, by its first keys; None where it is no mapping, or can't be read as one."""
    import yaml

    if not path.name.endswith(_WITH_KEYS) or path.stat().st_size > COUNT_LIMIT:
        return None
    try:
        found = yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)  # JSON is YAML
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None
