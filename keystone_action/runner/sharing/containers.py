"""What the cells of a run share on a container engine: sandboxes by image, networks, and where images come from."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from keystone_action.errors import KeystoneError, SandboxError
from keystone_action.system import signals
from keystone_action.system.run_lock import keep_lock

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.networks import Networks
    from keystone_action.engine.pulling import Pulling
    from keystone_action.network.proxy import EgressProxy
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.sandbox.containers.sandboxes import DockerSandboxes
    from keystone_action.sandbox.protocol import SandboxProvider
    from keystone_action.services.container.host import ContainerHost

_HURRIED_SECONDS = 3.0
"""For each request once the run is being cancelled."""
_CUT_SECONDS = 4.4
"""Until then all of it has to be done: what is left is told, and found again by its label."""
_CLEANUP_SECONDS = 40.0
"""For removing all that a run made, where nothing hurries."""


class Containers:
    """The engine as one run uses it. root: a directory of ours for sandboxes, made here. host: runs the author's own
    scripts. logs: a directory for what services printed, secrets taken out by `mask`. `close` removes all that the run
    made on the engine, even if its makers are gone."""

    def __init__(
        self,
        client: EngineClient,
        run_id: str,
        *,
        root: Path,
        host: SandboxProvider,
        options: Options,
        progress: Progress,
        logs: Path,
        mask: Callable[[str], str],
    ) -> None:
        from keystone_action.engine.networks import Networks

        self.client, self.run_id = client, run_id
        self.networks: Networks = Networks(client, run_id)
        self._logs, self._mask = logs, mask
        self._root, self._host, self._options, self._progress = root, host, options, progress
        self._egress: EgressProxy | None = None
        self._providers: dict[str, DockerSandboxes] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def sandboxes(self, image: str) -> DockerSandboxes:
        """The sandboxes of an image, which is pulled for the first who asks. Raises HarnessError."""
        from keystone_action.engine.pulling import ensure_image
        from keystone_action.sandbox.containers.sandboxes import start_docker

        async with self._locks.setdefault(image, asyncio.Lock()):
            if image not in self._providers:
                await ensure_image(self.client, image, self.pulling())
                self._providers[image] = await start_docker(
                    image=image, run_id=self.run_id, root=self._root, host=self._host, client=self.client
                )
            return self._providers[image]

    def pulling(self) -> Pulling:
        """Where images come from."""
        from keystone_action.engine.pulling import Login, Pulling

        options = self._options
        login = None
        if options.images.registry_username and options.images.registry_password:
            login = Login(options.images.registry_username, options.images.registry_password)
        return Pulling(
            mirror=options.images.registry_mirror,
            login=login,
            user_logins=options.images.user_logins,
            on_progress=self._progress.note,
        )

    def service_host(self, *, internal: bool) -> ContainerHost:
        """For the services of one definition. internal: they have no way out of their networks."""
        from keystone_action.services.container.host import make_host

        return make_host(
            client=self.client,
            run_id=self.run_id,
            networks=self.networks,
            pull=self.pulling(),
            internal=internal,
            logs=self._logs,
            mask=self._mask,
        )

    def not_enforced(self) -> tuple[str, ...]:
        """Sentences of all sandboxes so far."""
        return tuple(dict.fromkeys(s for provider in self._providers.values() for s in provider.not_enforced))

    def hurry(self) -> None:
        """The run is being cancelled: no request of the engine may take longer than the rest of the time allows."""
        self.client.hurry(_HURRIED_SECONDS, cut_after=signals.seconds_left(_CUT_SECONDS))

    async def egress(self) -> EgressProxy:
        """The proxies of cells that may not reach everything, started for the first who asks. Raises ServiceError."""
        if self._egress is None:
            from keystone_action.network.proxy import EgressProxy

            self._egress = EgressProxy()
            self._egress.start()
        return self._egress

    async def close(self) -> None:
        """See the class. Never raises: what can't be removed now is told, and found again by its label."""
        with self.client.cut_after(_CLEANUP_SECONDS):
            await self._remove_all()
        with contextlib.suppress(OSError):
            self.client.close()

    async def _remove_all(self) -> None:
        from keystone_action.engine.sweep import sweep

        await asyncio.gather(*(self._quietly(provider.close()) for provider in self._providers.values()))
        if self._egress is not None:
            await asyncio.to_thread(self._egress.stop)
        await self.networks.close_all()
        try:
            swept = await sweep(self.client, self.run_id)
        except SandboxError as error:
            self._tell([error.message])
        else:
            self._tell(swept.problems)

    async def _quietly(self, closing: Any) -> None:
        with contextlib.suppress(KeystoneError):
            await closing

    def _tell(self, problems: Iterable[str]) -> None:
        for problem in problems:
            keep_lock(self.run_id, on_engine=True)
            self._progress.note(f"left on the Docker engine: {problem} (`keystone clean --run {self.run_id}`)")
