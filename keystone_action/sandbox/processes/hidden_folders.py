"""Which folders a spec must show, by `resources.readable`, so that a program of this machine runs in a sandbox."""

from __future__ import annotations

from pathlib import Path

from keystone_action.files.paths import is_within, real_path
from keystone_action.sandbox.processes.policy import may_execute, system_rules


def hidden_folders(program: Path) -> tuple[Path, ...]:
    """Those of the program that the sandbox hides, none within another; nothing when it sees all of them."""
    return only_hidden(_folders(program))


def only_hidden(folders: list[Path]) -> tuple[Path, ...]:
    """Those of the folders that the sandbox hides, none within another."""
    rules = system_rules(())
    found: list[Path] = []
    for folder in sorted(folders, key=lambda one: len(one.parts)):
        if not may_execute(rules, folder) and not any(is_within(folder, one) for one in found):
            found.append(folder)
    return tuple(found)


def _folders(program: Path) -> list[Path]:
    """What it takes to run a program: its own folder, where it really is, and what npm or pip put beside it."""
    real = real_path(program)
    places = [real_path(program.parent)]
    if "node_modules" in real.parts:
        return [*places, Path(*real.parts[: real.parts.index("node_modules") + 1])]
    if (real.parent.parent / "pyvenv.cfg").is_file():
        return [*places, real.parent.parent, real_path(real.parent / "python").parent.parent]
    return [*places, real.parent]
