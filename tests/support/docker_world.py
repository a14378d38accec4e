"""What the tests of the Docker sandbox share: worlds in containers, and a look at what is left of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from socket import AF_INET, AF_UNIX, SHUT_RDWR, SOCK_STREAM, socket
from typing import Any
from unittest import mock

from support.docker_engine import missing
from support.process_world import run as run_bounded

from keystone_action.engine import images as docker_layers
from keystone_action.engine.images import Image, find_image
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.containers import sandboxes, shared
from keystone_action.sandbox.containers.sandbox import DockerSandbox
from keystone_action.sandbox.containers.sandboxes import DockerSandboxes, start_docker
from keystone_action.sandbox.own_programs import OwnPython
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.system.command import Command, CommandLimits, Completed

__all__ = ["IMAGE", "Proxy", "fresh", "images_go", "in_shell", "left", "place", "run_bounded", "shell", "world"]

IMAGE = "keystone-test-base:bookworm"


class HostOnly:
    """Stands where the process sandboxes would: remembers what it was asked for."""

    kind = "process"
    isolation: tuple[str, ...] = ("none",)
    limits = "watched"
    not_enforced: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.asked: list[Path] = []

    async def open(self, workspace: Path, **_: Any) -> Sandbox:
        raise AssertionError(f"the host was asked to open {workspace}")

    async def open_host(self, directory: Path, **_: Any) -> Sandbox:
        self.asked.append(directory)
        return object()  # type: ignore[return-value]

    def host_not_enforced(self) -> tuple[str, ...]:
        return ()

    async def host_python(self) -> OwnPython:
        raise AssertionError("nobody asked for our interpreter")

    async def close(self) -> None:
        raise AssertionError("the host's provider is not ours to close")


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory that other users may pass, as the run's is."""
    root = Path(tempfile.mkdtemp(prefix="keystone-docker-"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        remove_tree(root)


@contextlib.asynccontextmanager
async def world(
    engine: Any, limits: CommandLimits | None = None, *, mode: Any = "auto", run_id: str | None = None, **options: Any
) -> AsyncIterator[tuple[DockerSandboxes, DockerSandbox]]:
    """A provider, and one sandbox with a fresh workspace. Afterwards nothing of it may be left on the engine."""
    need_image(engine)
    run_id = run_id or f"test-{uuid.uuid4().hex}"
    with place() as root:
        options = {"image": IMAGE, "host": HostOnly(), "client": engine, "network": "none", **options}
        with _first_container_once():
            provider = await start_docker(run_id=run_id, root=root, mode=mode, **options)
        try:
            yield provider, await fresh(provider, limits)
        finally:
            await provider.close()
    assert left(engine, run_id) == []


_known: dict[tuple[int, str], Image] = {}
"""By the engine's client and the image's content."""
_shared: set[tuple[int, Path]] = set()
"""Where the engine sees what is ours, by its client."""


@contextlib.contextmanager
def _first_container_once() -> Iterator[None]:
    """Sandboxes that start meanwhile have a first container only if none of this process had it: what it tells of an
    image, and whether the engine sees our temporary files, stays as it is."""
    is_shared = shared._is_shared

    def found(client: Any, name: str, labels: Any) -> Image:
        image = find_image(client, name, labels)
        known = _known.setdefault((id(client), image.identifier), image)
        if known is image or not known.learned:
            return image
        told = {"_programs": set(known._programs), "_listed": set(known._listed), "_others": dict(known._others)}
        return dataclasses.replace(image, init=known.init, **told)

    def seen(image: Image, directory: Path, source: str) -> bool:
        place = (id(image.client), Path(source).parent)
        if place not in _shared and is_shared(image, directory, source):
            _shared.add(place)
        return place in _shared

    with mock.patch.object(sandboxes, "find_image", found), mock.patch.object(shared, "_is_shared", seen):
        yield


def need_image(engine: Any) -> None:
    from docker.errors import ImageNotFound

    try:
        engine.images.get(IMAGE)
    except ImageNotFound:
        missing(f"the engine has no image {IMAGE}; tests/images/build-base makes it")


async def fresh(provider: DockerSandboxes, limits: CommandLimits | None = None, **options: Any) -> DockerSandbox:
    """Another sandbox of the provider, on a new workspace."""
    workspace = provider.engine.root / f"workspace-{uuid.uuid4().hex}"
    workspace.mkdir()
    return await provider.open(workspace, limits=limits or CommandLimits(), **options)


@contextlib.contextmanager
def images_go(engine: Any) -> Iterator[str]:
    """Yields text that makes a setup new. The images that are kept of what is done meanwhile, here, go in the end."""
    made: list[str] = []
    commit = docker_layers._commit

    def remembering(*arguments: Any) -> str:
        made.append(commit(*arguments))
        return made[-1]

    docker_layers._commit = remembering
    try:
        yield uuid.uuid4().hex
    finally:
        docker_layers._commit = commit
        for image in reversed(made):
            docker_layers.remove_image(engine, image)


def shell(text: str, **options: Any) -> Command:
    return Command(("sh", "-c", text), **options)


def in_shell(
    engine: Any, text: str, limits: CommandLimits | None = None, *, mode: Any = "auto", **options: Any
) -> Completed:
    """Run this text in a fresh world."""

    async def main() -> Completed:
        async with world(engine, limits, mode=mode) as (_, sandbox):
            return await sandbox.run(shell(text, **options))

    result: Completed = run_bounded(main)
    return result


def left(engine: Any, run_id: str) -> list[str]:
    """Containers, networks and volumes of a run that the engine still has."""
    filters = {"label": f"keystone.run={run_id}"}
    containers = [one["Id"] for one in engine.api.containers(all=True, filters=filters)]
    networks = [one["Id"] for one in engine.api.networks(filters=filters)]
    volumes = [one["Name"] for one in engine.api.volumes(filters=filters).get("Volumes") or []]
    return containers + networks + volumes


class Proxy:
    """The engine over TCP; `cut` ends every connection and refuses new ones, as an engine that died."""

    def __init__(self) -> None:
        self._listener = socket(AF_INET, SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        self._ends: list[socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket(AF_UNIX, SOCK_STREAM)
                there.connect(self._engine)
                self._ends += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(SHUT_RDWR)


def _pump(source: socket, target: socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(SHUT_RDWR)


async def set_up(provider: DockerSandboxes, *commands: str, **options: Any) -> tuple[DockerSandboxes, DockerSandbox]:
    """A fresh sandbox that has run these commands, and the provider for its checks."""
    sandbox = await fresh(provider, options.pop("limits", None), environment=options.pop("environment", None))
    ready = await provider.with_commands(sandbox, commands, **{"networks": ("none",), **options})
    return ready, sandbox


def own_images(engine: Any, provider: DockerSandboxes) -> list[str]:
    filters = {"label": f"keystone.run={provider.engine.run_id}"}
    return [str(image["Id"]) for image in engine.api.images(filters=filters)]


def kept(ready: DockerSandboxes) -> bool:
    """Whether its image is one that is found again."""
    tags = ready.engine.client.inspect_image(ready.image.identifier)["RepoTags"]
    return any(tag.startswith("keystone-setup:") for tag in tags)
