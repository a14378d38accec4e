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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.agents.presets.preset import load_preset
from keystone_action.system.environment import own_search_path

if TYPE_CHECKING:
    from keystone_action.agents.presets.preset import Preset

_SECONDS = 20.0
"""For a program to say its version: mini-swe-agent takes four on a slow machine."""
_PRINTED = 64 << 10
"""Bytes of what it prints that are looked at."""


@dataclass(frozen=True)
class FoundAgent:
    """An agent of a preset, as it is on this machine."""

    name: str
    """Of the preset."""
    path: Path | None
    """Its program, as PATH has it; None = it is not installed."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The environment of the person who asks, for package managers."""

    @property
    def preset(self) -> Preset:
        """What we know of it."""
        return load_preset(self.name)

    @cached_property
    def hidden(self) -> tuple[Path, ...]:
        """The folders with the program that the process sandbox hides, unless a spec shows them. Where it is not there:
        those that it will be in, once its package manager has installed it."""
        from keystone_action.sandbox.processes.policy import hidden_folders, only_hidden

        if self.path is not None:
            return hidden_folders(self.path)
        installer = shutil.which(self.preset.package.source, path=own_search_path())
        if installer is None:
            return ()
        if self.preset.package.source == "pip":
            return hidden_folders(Path(installer))
        return only_hidden([one / name for one in self._npm_prefix(installer) for name in ("bin", "lib/node_modules")])

    def _npm_prefix(self, npm: str) -> list[Path]:
        """Where npm installs programs for all folders, by its settings; nothing when it does not say."""
        settings = {name: text for name, text in self.environ.items() if name.lower().startswith("npm_config_")}
        with tempfile.TemporaryDirectory(prefix="keystone-doctor-", ignore_cleanup_errors=True) as cache:
            variables = {"PATH": own_search_path(), "HOME": self.environ.get("HOME", "/"), **settings}
            quietly = {"npm_config_cache": cache, "npm_config_update_notifier": "false"}
            printed = _ask([npm, "prefix", "--global"], {**variables, **quietly}, str(Path.cwd()))
        return [Path(line) for line in printed.split("\n") if line.startswith("/")][-1:]

    def ask_version(self) -> str:
        """As the program prints it; empty where it does not in time. It gets no variable of ours but PATH."""
        assert self.path is not None
        settings = {name: text for name, text in self.preset.environment.items() if "${" not in text}
        with tempfile.TemporaryDirectory(prefix="keystone-doctor-", ignore_cleanup_errors=True) as home:
            variables = {"PATH": own_search_path(), "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", **settings}
            printed = _ask([str(self.path), *self.preset.version], variables, home)
        return self.preset.version_in(printed)


def find_agent(name: str, environ: Mapping[str, str]) -> FoundAgent:
    """name: of a preset. environ: see FoundAgent."""
    path = shutil.which(load_preset(name).program, path=own_search_path())
    return FoundAgent(name, None if path is None else Path(path), environ)


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
