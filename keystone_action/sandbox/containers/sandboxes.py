"""The Docker sandbox: each command runs in a fresh container of one image, unprivileged, limited by the engine.

DockerSandboxes ── DockerSandbox ── Run ── one container
                        └ Transfer: bind mounts (`MountedDirectory`) or archives (`CopiedDirectory`)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from keystone_action.engine.connect import connect
from keystone_action.engine.images import PROBING_USER, Image, find_image, remove_image
from keystone_action.errors import SandboxError
from keystone_action.files.paths import real_path
from keystone_action.sandbox.containers.sandbox import WORKSPACE_LINK, DockerSandbox
from keystone_action.sandbox.containers.setup import (
    OPEN_NETWORK,
    SetupCommands,
    run_setup_commands,
    with_packages_layer,
)
from keystone_action.sandbox.containers.shared import SharedEngine, TransferMode
from keystone_action.sandbox.containers.transfer import ContainerPlaces, CopiedDirectory, MountedDirectory, Transfer
from keystone_action.sandbox.protocol import Home, Sandbox, SandboxProvider
from keystone_action.system.command import CommandLimits

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.sandbox.own_programs import OwnPython

_THREADS = 512
"""More than containers that one engine is asked to run at once: each occupies one."""


async def start_docker(
    *,
    image: str,
    run_id: str,
    root: Path,
    host: SandboxProvider,
    client: EngineClient | None = None,
    network: str | None = None,
    extra_hosts: Mapping[str, str] | None = None,
    mode: TransferMode = "auto",
) -> DockerSandboxes:
    """The sandboxes of a run in containers of one image, which the engine has to have.

    run_id: the label by which everything is found again. root: a directory of ours for HOME, TMPDIR and trials. host:
    runs the author's own scripts; it stays the caller's. client: None = by the environment.
    network: a network of the engine, `none`, or None for `bridge`. extra_hosts: name → address. mode: `bind` insists
    on bind mounts, `copy` does without, `auto` finds out whether the engine sees our files.
    Raises SandboxError: no engine, no such image, no `sh` in it, no bind mounts though insisted on.
    """
    used = client if client is not None else await asyncio.to_thread(connect, os.environ)
    engine = SharedEngine(used, client is None, run_id, root, ThreadPoolExecutor(_THREADS, "keystone-docker"))
    try:
        await engine.thread(partial(engine.begin, mode))
        found = await engine.thread(partial(find_image, used, image, engine.labels))
        await engine.thread(partial(engine.learn, found))
        await engine.thread(partial(engine.insist, found))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await engine.close()
        raise
    return DockerSandboxes(engine, found, host, network=network or "bridge", extra_hosts=extra_hosts or {}, owner=True)


class DockerSandboxes:
    """Makes the sandboxes of a run in containers of one image."""

    kind = "docker"
    isolation: tuple[str, ...] = ("container",)
    limits = "enforced"

    def __init__(
        self,
        engine: SharedEngine,
        image: Image,
        host: SandboxProvider,
        *,
        network: str,
        extra_hosts: Mapping[str, str],
        dns: Sequence[str] = (),
        owner: bool,
    ) -> None:
        self.engine = engine
        self.image = image
        self._host = host
        self._network = network
        self._extra_hosts = dict(extra_hosts)
        self._dns = tuple(dns)
        self._owner = owner
        self._own_image = False
        self._sandboxes: set[DockerSandbox] = set()

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """What the engine does not do for us, in sentences."""
        return ("resources.disk is watched, not enforced: a container is stopped once it is seen above its limit",)

    def with_network(
        self, network: str, extra_hosts: Mapping[str, str] | None = None, *, dns: Sequence[str] = ()
    ) -> DockerSandboxes:
        """The same on another network; closing it closes only what it opened. dns: addresses of name servers, in place
        of the machine's."""
        return DockerSandboxes(
            self.engine, self.image, self._host, network=network, extra_hosts=extra_hosts or {}, dns=dns, owner=False
        )

    async def with_packages(
        self,
        packages: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        network: str = OPEN_NETWORK,
        timeout: float | None = None,
    ) -> DockerSandboxes:
        """The same in an image where these packages are installed, by apt, apk or pip as the image has it.

        Made once, on a network where installers find their registries, and found again by its content. env: for the
        installers alone. timeout: seconds for all. Raises HarnessError with the end of both streams; SandboxError.
        """
        image = await with_packages_layer(
            self.engine, self.image, packages, env or {}, network=network, timeout=timeout
        )
        return self._in(image)

    async def with_commands(
        self,
        sandbox: DockerSandbox,
        commands: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        networks: Sequence[str] = (OPEN_NETWORK,),
        extra_hosts: Mapping[str, str] | None = None,
        dns: Sequence[str] = (),
        timeout: float | None = None,
        fingerprint: Callable[[], str] | None = None,
        secrets: Collection[str] = (),
    ) -> DockerSandboxes:
        """Run commands as root in a sandbox of this provider that has run nothing yet: each by `sh -c` in its
        workspace, all in one container, the first that fails being the last. Returns the same in an image where their
        changes to the system are; the sandbox goes on in it too. Closing it removes an image that is this cell's own.

        env: under the sandbox's HOME, TMPDIR and LANG, over its environment. networks: of the engine; the container is
        in all of them. timeout: seconds for all. fingerprint: equal for workspaces of equal content; with it, commands
        that leave workspace, HOME and TMPDIR as they were are run once for all cells and runs, and their image is found
        again. Leave it out where services or fixtures can decide what they do. secrets: values that no image may keep
        that is found again. resources.disk is not watched.
        Raises HarnessError with the end of both streams for a command that fails; SandboxError.
        """
        if not commands:
            return self._in(self.image)
        made = await run_setup_commands(
            self.engine,
            sandbox,
            SetupCommands(
                tuple(commands),
                env or {},
                tuple(networks),
                extra_hosts or {},
                tuple(dns),
                timeout,
                fingerprint,
                secrets,
            ),
        )
        provider = self._in(made.image)
        provider._own_image = made.own
        # The image is removed after the containers that run in it, also when others close it.
        provider._sandboxes.add(sandbox)
        return provider

    def _in(self, image: Image) -> DockerSandboxes:
        return DockerSandboxes(
            self.engine,
            image,
            self._host,
            network=self._network,
            extra_hosts=self._extra_hosts,
            dns=self._dns,
            owner=False,
        )

    async def open(
        self,
        workspace: Path,
        *,
        limits: CommandLimits,
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        home: Home | None = None,
        areas: Sequence[Path] = (),  # noqa: ARG002 - a container sees what is mounted into it, and no neighbour's
    ) -> DockerSandbox:
        """See `SandboxProvider.open`. Bind mounts where the engine sees all of these directories, else copies."""
        engine = self.engine
        engine.sandbox_count += 1
        private = home.place if home else engine.root / f"private-{engine.owner}-{engine.sandbox_count}"
        places = ContainerPlaces(
            real_path(workspace), private, tuple(dict.fromkeys(map(real_path, readable))), home is not None
        )
        search_path = (environment or {}).get("PATH", "")

        def prepare() -> tuple[Transfer, bool]:
            self.image.list_programs([place for place in search_path.split(":") if not _is_below(place, places.all)])
            link = not self.image.exists("E", [WORKSPACE_LINK])[0]
            return self._transfer(places, limits), link

        transfer, link = await engine.thread(prepare)
        sandbox = DockerSandbox(
            self.image,
            places,
            transfer,
            engine.execute,
            self._sandboxes.discard,
            limits=limits,
            environment=environment or {},
            labels=engine.labels,
            network=self._network,
            extra_hosts=self._extra_hosts,
            dns=self._dns,
            link=link,
        )
        self._sandboxes.add(sandbox)
        return sandbox

    def _transfer(self, places: ContainerPlaces, limits: CommandLimits) -> Transfer:
        engine = self.engine
        sources = [engine.source(self.image, path.parent if path == places.private else path) for path in places.all]
        if None not in sources:
            named = [source for source in sources if source is not None]
            named[1] = f"{named[1]}/{places.private.name}"
            lease = engine.users.lease() if engine.users else None
            try:
                return MountedDirectory(
                    engine.client, places, named, lease.uid if lease else os.geteuid(), lease, limits.disk
                )
            except OSError as error:
                if lease is not None:
                    lease.release()
                raise SandboxError(f"can't prepare the sandbox of {places.workspace}: {error}") from error
        missing = list(_missing_parents(self.image, places.all))
        return CopiedDirectory(engine.client, places, missing, PROBING_USER, limits.disk)

    async def open_host(
        self,
        directory: Path,
        *,
        limits: CommandLimits,
        own: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        areas: Sequence[Path] = (),
    ) -> Sandbox:
        """See `SandboxProvider.open_host`: on the host, as processes."""
        return await self._host.open_host(
            directory, limits=limits, own=own, shared=shared, readable=readable, areas=areas
        )

    def host_not_enforced(self) -> tuple[str, ...]:
        """See `SandboxProvider.host_not_enforced`."""
        return self._host.host_not_enforced()

    async def host_python(self) -> OwnPython:
        """See `SandboxProvider.host_python`."""
        return await self._host.host_python()

    async def close(self) -> None:
        """See `SandboxProvider.close`. Twice does no harm. The host's provider stays open: it is the caller's."""
        try:
            for sandbox in list(self._sandboxes):
                await sandbox.close()
        finally:
            if self._owner:
                await self.engine.close()
            elif self._own_image and not self.engine.closed:
                # An engine may be slow at it: no reason for the cell to fail, and the end of the run tries again.
                with contextlib.suppress(SandboxError):
                    await self.engine.thread(partial(remove_image, self.engine.client, self.image.identifier))


def _is_below(path: str, places: Sequence[Path]) -> bool:
    return any(Path(path).is_relative_to(place) for place in places)


def _missing_parents(image: Image, places: Sequence[Path]) -> Iterator[str]:
    """Directories above these that the image lacks, each after the one it is in."""
    parents = {parent: None for place in places for parent in reversed(place.parents) if parent != parent.parent}
    # All at once, since each question takes a container; cells after the first lie in what they found missing.
    image.exists("D", [str(one) for one in parents if not any(image.lacks(str(above)) for above in one.parents)])
    lacking: set[Path] = set()
    for parent in parents:
        if parent.parent in lacking or not image.exists("D", [str(parent)])[0]:
            lacking.add(parent)
            yield str(parent)
