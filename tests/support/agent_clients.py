"""The programs of known agents at the versions that their presets are known of, from npm and PyPI, kept in a cache that
users of sandboxes can enter; once they are there, no network is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_line import ENVIRONMENT
from support.released import locked, missing
from support.scripted_models import Turn

from keystone_action.agents.presets.preset import load_preset

IMAGE = "keystone-test-agents:1"
_LABEL = "keystone.test.inputs"
_SEARCH: Mapping[str, str] = {"claude-code": "WebSearch", "gemini": "google_web_search"}
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_BESIDE: Mapping[str, Sequence[str]] = {"mini-swe-agent": ["litellm==1.106.2"]}
"""Pinned besides the program itself."""

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Client:
    """A program. api, model: what it is run with; path: where its requests arrive, below the provider's base. command:
    the call of its tool for commands, None where it has no such tool."""

    kind: str
    api: str
    model: str
    path: str
    command: Callable[[str], Call] | None = None

    def runs(self, command: str) -> Turn:
        """The model has it run a command."""
        assert self.command is not None
        return Turn(calls=[self.command(command)], read=1200, cached=300, written=33)

    def searches(self, query: str) -> list[Turn]:
        """The model has it search by a tool of its own that asks the provider; nothing for one without such a tool."""
        name = _SEARCH.get(self.kind)
        return [Turn(calls=[(name, {"query": query})])] if name else []

    @property
    def ends(self) -> list[Turn]:
        """The model says that it is done."""
        submits = [self.runs(_SUBMIT)] if self.kind == "mini-swe-agent" else []
        return [*submits, Turn(text="All done.", read=1500, cached=1000, written=7)]


def _runs(name: str, argument: str, **more: str) -> Callable[[str], Call]:
    return lambda command: (name, {argument: command, **more})


_ALL = (
    Client(
        "claude-code", "anthropic", "claude-opus-4-5", "/v1/messages", _runs("Bash", "command"),
    ),
    Client("codex", "openai", "gpt-5", "/v1/responses", _runs("exec_command", "cmd")),
    Client(
        "gemini", "gemini", "gemini-2.5-pro", "/v1beta/models/gemini-2.5-pro:streamGenerateContent",
        _runs("run_shell_command", "command"),
    ),
    Client(
        "mini-swe-agent", "openai", "openai/gpt-5", "/v1/chat/completions", _runs("bash", "command"),
    ),
    Client(
        "opencode", "anthropic", "anthropic/claude-opus-4-5", "/v1/messages",
        _runs("bash", "command", description="Run it"),
    ),
    Client("aider", "openai", "openai/gpt-4o", "/v1/chat/completions"),
    Client("qwen-code", "openai", "gpt-5", "/v1/chat/completions", _runs("run_shell_command", "command")),
)  # fmt: skip
CLIENTS: Mapping[str, Client] = {client.kind: client for client in _ALL}


@dataclass(frozen=True)
class Installed:
    """folder: all that the program needs, besides node or python3 of the machine. program: in it."""

    folder: Path
    program: Path


def installed(kind: str) -> Installed:
    """The program of an agent, installed when it is not there yet."""
    preset = load_preset(kind)
    return _installed(kind, preset.package.source, _names(kind), preset.program)


def installed_from_npm(name: str, version: str) -> Installed:
    """A program of npm that has the name of its package."""
    return _installed(name, "npm", [f"{name}@{version}"], name)


def _installed(kind: str, source: str, names: Sequence[str], program: str) -> Installed:
    key = hashlib.sha256(" ".join([*names, sys.version]).encode()).hexdigest()[:16]
    place = _cache() / f"{kind}-{key}"
    with locked(f"client-{kind}"):
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            (_install_npm if source == "npm" else _install_pip)(place, names)
            (place / "complete").touch()
    programs = place / "node_modules" / ".bin" if source == "npm" else place / "bin"
    return Installed(place, programs / program)


def _names(kind: str) -> list[str]:
    return [*load_preset(kind).package.names(load_preset(kind).seen), *_BESIDE.get(kind, ())]


def _cache() -> Path:
    """Not in a home that only its owner can enter."""
    place = Path(tempfile.gettempdir()) / f"keystone-clients-{os.getuid()}"
    place.mkdir(mode=0o755, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        missing(f"{place} is somebody else's")
    return place


def _install_npm(place: Path, names: Sequence[str]) -> None:
    if shutil.which("npm") is None or shutil.which("node", path=ENVIRONMENT["PATH"]) is None:
        missing("node and npm are not there")
    place.mkdir()
    _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), *names)


def _install_pip(place: Path, names: Sequence[str]) -> None:
    """With a python3 that sandboxes can start."""
    uv, python = Path(sys.executable).with_name("uv"), shutil.which("python3", path=ENVIRONMENT["PATH"])
    if not uv.exists() or python is None:
        missing("uv, or a python3 for all users, is not there: run tools/bootstrap")
    _run(str(uv), "--quiet", "venv", "--python", os.path.realpath(python), str(place))
    _run(str(uv), "--quiet", "pip", "install", "--compile-bytecode", "--python", str(place), *names)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        missing(f"{words[-1]} can't be had ({''.join(last)})")


def image_with(kinds: Sequence[str], base: str) -> str:
    """An image with these programs on its PATH, made anew when they or the base have changed."""
    places = {kind: installed(kind) for kind in kinds}
    made_of = hashlib.sha256(f"{_of_image(base, '{{.Id}}')} {sorted(map(str, places.values()))}".encode()).hexdigest()
    with locked("client-image"):
        if _of_image(IMAGE, f'{{{{index .Config.Labels "{_LABEL}"}}}}') != made_of:
            _build_image(base, places, made_of)
    return IMAGE


def _build_image(base: str, places: Mapping[str, Installed], made_of: str) -> None:
    context, node = _cache(), shutil.which("node", path=ENVIRONMENT["PATH"])
    assert node is not None
    shutil.copy(node, context / "node")
    (context / ".dockerignore").write_text(
        "\n".join(["*", "!node", *(f"!{one.folder.name}" for one in places.values())])
    )
    programs = {"node": context / "node", **{load_preset(kind).program: one.program for kind, one in places.items()}}
    links = " && ".join(f"ln -s {place} /usr/local/bin/{name}" for name, place in programs.items())
    # At the same place as here: programs in an environment of Python name it.
    lines = [f"FROM {base}", f"LABEL {_LABEL}={made_of}", f"COPY . {context}", f"RUN {links}"]
    build = ["docker", "build", "--force-rm", "--quiet", "--tag", IMAGE, "--file", "-", str(context)]
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}  # the newer builder pulls a front end of its own
    subprocess.run(build, input="\n".join(lines).encode(), env=environment, timeout=900, check=True)


def _of_image(name: str, what: str) -> str:
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", what, name], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
