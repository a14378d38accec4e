"""What all container services of a spec share: the engine, how images are pulled, and the network that they meet in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.engine.pulling import Pulling
from keystone_action.errors import ServiceError
from keystone_action.services.container.engine_container import KeptLogs

if TYPE_CHECKING:
    import anyio

    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.networks import ContainerNetwork, Networks
    from keystone_action.services.container.engine_container import ServiceContainer, ServiceContainerPlan


class GroupNetwork:
    """The network in which the containers live that cells share, made when the first of them starts."""

    def __init__(self, networks: Networks, name: str, *, internal: bool) -> None:
        self._networks = networks
        self._name = name
        self._internal = internal
        self._network: ContainerNetwork | None = None
        self._lock: anyio.Lock | None = None

    async def enter(self) -> ContainerNetwork:
        """The network. Raises ServiceError."""
        import anyio

        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            if self._network is None:
                self._network = await self._networks.open(self._name, internal=self._internal)
            return self._network

    async def leave(self) -> None:
        """Remove the network again, if it was made. Never raises: one that stays goes with the run's others."""
        if self._network is not None:
            with contextlib.suppress(ServiceError):
                await self._networks.close(self._network)
            self._network = None


@dataclass(frozen=True)
class ContainerHost:
    """What the container services of one spec have in common."""

    client: EngineClient
    run_id: str
    networks: Networks
    """The run's, which its maker closes after all services were stopped."""
    group: GroupNetwork
    pull: Pulling = field(default_factory=Pulling)
    logs: Path | None = None
    """A directory that gets what each container printed, as `<service>[-<cell id>].log`; None: nothing is kept."""
    mask: Callable[[str], str] = str
    """Takes secrets out of what is kept."""

    def container(self, plan: ServiceContainerPlan) -> ServiceContainer:
        """A container of this run, not started."""
        from keystone_action.services.container.engine_container import ServiceContainer

        kept = KeptLogs(self.logs, self.mask) if self.logs is not None else None
        return ServiceContainer(self.client, self.run_id, plan, kept_logs=kept)

    @asynccontextmanager
    async def sharing(self, network: ContainerNetwork | None, container: str, alias: str) -> AsyncIterator[None]:
        """For the block, a cell reaches a container that other cells use too. network: the cell's, if it has one. What
        can't be undone after it goes with the network. Raises ServiceError."""
        if network is None:
            yield
            return
        network.shared.add(await self.networks.connect(network, container, alias))
        import anyio

        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._disconnect(network, container)

    async def _disconnect(self, network: ContainerNetwork, container: str) -> None:
        with contextlib.suppress(ServiceError):
            await self.networks.disconnect(network, container)

    async def close(self) -> None:
        """Remove what the services of one definition had in common, after they have ended. Never raises."""
        await self.group.leave()


def make_host(
    *,
    client: EngineClient,
    run_id: str,
    networks: Networks,
    pull: Pulling | None = None,
    internal: bool = False,
    logs: Path | None = None,
    mask: Callable[[str], str] = str,
) -> ContainerHost:
    """A host for the services of one spec. logs, mask: see ContainerHost."""
    import secrets

    group = GroupNetwork(networks, f"services-{secrets.token_hex(4)}", internal=internal)
    return ContainerHost(client, run_id, networks, group, pull or Pulling(), logs, mask)
