"""What all sandboxes of a run on one engine share: the client, threads to wait in, and what was found out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio

from keystone_action.engine.calls import engine_errors
from keystone_action.engine.container import ContainerRun, ContainerStopped, Mount, remove_container
from keystone_action.engine.images import PROBING_USER, Image, remove_image
from keystone_action.engine.own_container import HostPaths, find_host_paths
from keystone_action.engine.records import OWNER, labels
from keystone_action.errors import SandboxError
from keystone_action.files.paths import real_path
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox import trees
from keystone_action.sandbox.users import Users
from keystone_action.system.command import Completed

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

TransferMode = Literal["auto", "bind", "copy"]
T = TypeVar("T")


@dataclass
class SharedEngine:
    """What all sandboxes of a provider share. Closed once, at the end."""

    client: EngineClient
    own_client: bool
    run_id: str
    root: Path
    """Where HOME and TMPDIR lie."""
    threads: ThreadPoolExecutor
    mode: TransferMode = "auto"
    paths: HostPaths = field(default_factory=lambda: HostPaths(None))
    foreign_users: bool = False
    """The engine maps users: a number inside is not the same outside."""
    owner: str = field(default_factory=lambda: secrets.token_hex(8))
    """Marks our containers among all of the run."""
    users: Users | None = None
    layers: dict[str, asyncio.Lock] = field(default_factory=dict)
    """By the content of a setup: held while its image is made."""
    found_layers: dict[str, Image] = field(default_factory=dict)
    """By the content of a setup: its image, which needs no second look."""
    setups_not_kept: set[str] = field(default_factory=set)
    """Setups whose image, as it turned out, can't be found again."""
    runs: set[ContainerRun] = field(default_factory=set)
    sandbox_count: int = 0
    closed: bool = False

    @property
    def labels(self) -> dict[str, str]:
        """Of every container."""
        return labels(self.run_id, "sandbox", owner=self.owner)

    def begin(self, mode: TransferMode) -> None:
        """Blocks. Raises SandboxError."""
        self.mode = mode
        with engine_errors("can't ask the Docker engine what it is"):
            options = self.client.facts().get("SecurityOptions") or []
        self.foreign_users = any("name=userns" in option or "name=rootless" in option for option in options)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxError(f"can't make {self.root} for sandboxes: {error.strerror}") from error
        self.root = real_path(self.root)
        self.root.chmod(0o711)
        if mode != "copy":
            self.paths = find_host_paths(self.client)
        self.users = Users() if os.geteuid() == 0 else None

    async def thread(self, function: Callable[[], T]) -> T:
        """Call it where it may block; waits for its end even when cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await future
            raise

    async def execute(self, run: ContainerRun) -> Completed:
        """A container's life. When cancelled, it is over and removed before this returns."""
        if self.closed:
            raise SandboxError("the sandboxes of this run have been closed")
        self.runs.add(run)
        future = asyncio.get_running_loop().run_in_executor(self.threads, run.execute)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            run.stop()
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await future
            raise
        except ContainerStopped:
            raise SandboxError("the sandbox was closed while a command ran in it") from None
        finally:
            self.runs.discard(run)

    def source(self, image: Image, path: Path) -> str | None:
        """Where the engine's machine has this directory of ours; None = nowhere, as a trial showed. Blocks."""
        if self.mode == "copy" or self.foreign_users:
            return None
        found = self.paths.source(path)
        if found is None:
            return None
        mount, source = found
        if mount not in self.paths.verified:
            self.paths.verified[mount] = _is_shared(image, path, source)
        return source if self.paths.verified[mount] else None

    def learn(self, image: Image) -> None:
        """Find out what every sandbox of this image will want to know, and whether the engine sees our files, of one
        container. Blocks. Raises SandboxError."""
        found = None if self.mode == "copy" or self.foreign_users else self.paths.source(self.root)
        if found is not None and found[0] not in self.paths.verified:
            mount, source = found
            self.paths.verified[mount] = _is_shared(image, self.root, source)
        if not image.learned:
            image.learn()

    def insist(self, image: Image) -> None:
        """Where bind mounts were insisted on, raises SandboxError when there can't be any. Blocks."""
        if self.mode == "bind" and self.source(image, self.root) is None:
            raise SandboxError(
                f"the Docker engine does not see our files in {self.root}",
                help="leave the choice to us (mode `auto`): files are copied then",
            )

    async def close(self) -> None:
        """End and remove every container and every cell's image of ours. Raises SandboxError when a container stays."""
        if self.closed:
            return
        self.closed = True
        for run in list(self.runs):
            run.stop()
        loop = asyncio.get_running_loop()
        try:
            left = await loop.run_in_executor(self.threads, self._containers)
            await asyncio.gather(
                *(loop.run_in_executor(self.threads, remove_container, self.client, one) for one in left)
            )
            await loop.run_in_executor(self.threads, self._remove_images)
        finally:
            self.threads.shutdown(wait=False)
            if self.own_client:
                self.client.close()

    def _containers(self) -> list[str]:
        with engine_errors("can't list our containers"):
            found = self.client.list_containers({"label": f"{OWNER}={self.owner}"}, all=True)
            return [str(container["Id"]) for container in found]

    def _remove_images(self) -> None:
        with engine_errors("can't list our images"):
            found = self.client.list_images({"label": f"{OWNER}={self.owner}"})
        # The newest first: others may be made of an older one.
        for image in sorted(found, key=lambda image: int(image["Created"]), reverse=True):
            remove_image(self.client, str(image["Id"]))


def _is_shared(image: Image, directory: Path, source: str) -> bool:
    """Whether a container that mounts `source` reads there what we write, and we what it writes, and whose."""
    user = PROBING_USER if os.geteuid() == 0 else os.geteuid()
    nonce = uuid.uuid4().hex
    name = f".keystone-trial-{nonce}"
    trial = directory / name
    try:
        trial.mkdir(mode=0o700)
        (trial / "nonce").write_text(f"{nonce}\n")
        if os.geteuid() == 0:
            trees.give(trial, user)
        mount = Mount(f"{source}/{name}", "/keystone-trial")
        ask = image.ask if image.learned else image.learn
        answers = ask("N/keystone-trial", user=user, mounts=(mount,))
        answer = trial / "answer"
        return f"N{nonce}" in answers and answer.read_text() == f"{nonce}\n" and answer.stat().st_uid == user
    except (OSError, SandboxError):
        return False
    finally:
        remove_tree(trial)
