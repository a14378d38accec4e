"""`keystone completion`: a script that teaches a shell our commands, options and what they take.

The script is static, so that nothing of ours starts at each key press; only behind `--filter` it asks `keystone plan`
for the ids of cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

_CELLS = "keystone plan --quiet 2>/dev/null | head -n 1000"
"""Ids of cells hold letters, digits, dots and dashes alone, so no shell finds anything in them to run."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for bash, zsh or fish."""
    import shtab

    files: Any = {
        "SPEC": shtab.glob("*.yaml", "*.yml"),
        "DIR": shtab.DIRECTORY,
        "BASE": shtab.DIRECTORY,
        "HEAD": shtab.DIRECTORY,
        "PATH": shtab.FILE,
        "GLOB": shtab.cmd(_CELLS),
    }
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in files:
            action.complete = files[action.metavar]  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
