"""Which known agents this machine has: where their programs are, and their versions, by asking them."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.agents.presets.preset import load_preset
from keystone_action.files.paths import is_within, real_path
from keystone_action.files.search_path import own_search_path

if TYPE_CHECKING:
    from keystone_action.agents.presets.preset import Preset

_SECONDS = 20.0
"""For a program to say its version: mini-swe-agent takes four on a slow machine."""
_PRINTED = 64 << 10
"""Bytes of what it prints that are looked at."""


@dataclass(frozen=True)
class FoundAgent:
    """An agent of a preset on this machine. path: of its program, as PATH has it; None = it is not there."""

    name: str
    path: Path | None

    @property
    def preset(self) -> Preset:
        """What we know of it."""
        return load_preset(self.name)

    @cached_property
    def hidden(self) -> tuple[Path, ...]:
        """The folders with the program that the process sandbox hides, unless a spec shows them."""
        from keystone_action.sandbox.processes.policy import may_execute, system_rules

        if self.path is None:
            return ()
        rules = system_rules(())
        found: list[Path] = []
        for folder in sorted(_folders(self.path), key=lambda one: len(one.parts)):
            if not may_execute(rules, folder) and not any(is_within(folder, one) for one in found):
                found.append(folder)
        return tuple(found)

    def ask_version(self) -> str:
        """As the program prints it; empty where it does not in time. It gets no variable of ours but PATH."""
        assert self.path is not None
        settings = {name: text for name, text in self.preset.environment.items() if "${" not in text}
        with tempfile.TemporaryDirectory(prefix="keystone-doctor-", ignore_cleanup_errors=True) as home:
            variables = {"PATH": own_search_path(), "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", **settings}
            printed = _ask([str(self.path), *self.preset.version], variables, home)
        return self.preset.version_in(printed)


def find_agent(name: str) -> FoundAgent:
    """name: of a preset."""
    path = shutil.which(load_preset(name).program, path=own_search_path())
    return FoundAgent(name, None if path is None else Path(path))


def _folders(program: Path) -> list[Path]:
    """What it takes to run a program: its own folder, where it really is, and what npm or pip put beside it."""
    real = real_path(program)
    places = [real_path(program.parent)]
    if "node_modules" in real.parts:
        return [*places, Path(*real.parts[: real.parts.index("node_modules") + 1])]
    if (real.parent.parent / "pyvenv.cfg").is_file():
        return [*places, real.parent.parent, real_path(real.parent / "python").parent.parent]
    return [*places, real.parent]


def _ask(argv: list[str], variables: Mapping[str, str], directory: str) -> str:
    """What a program prints first. It and its children are ended after that, or when its time is up."""
    try:
        process = subprocess.Popen(
            argv,
            env=dict(variables),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError:
        return ""
    assert process.stdout is not None
    try:
        printed = _read(process.stdout.fileno(), time.monotonic() + _SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    return printed.decode("utf-8", "replace")


def _read(descriptor: int, until: float) -> bytes:
    printed = b""
    while len(printed) < _PRINTED:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(descriptor, _PRINTED) if ready else b""
        if not piece:
            break
        printed += piece
    return printed
