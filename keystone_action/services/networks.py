"""Networks of ours on the container engine: one for the services of a spec, one for each cell.

Names resolve by the engine's own DNS: a service's container has its name as alias in every network that it is in. We
reach containers by address. Where we run in a container ourselves (as an action does), our container joins each
network; elsewhere the engine's bridges are on our machine. Containers reach us (that is: mocks) at `host_address`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.services.engine import ask, labels
from keystone_action.services.own_container import own_container

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.networks import Network as EngineNetwork

_NAME_LENGTH = 63
_REMOVAL_TRIES = 5
_NO_POOL = re.compile(r"non-overlapping IPv4 address pool|predefined address pools have been fully subnetted")


@dataclass
class Network:
    """One network. subnet and gateway as the engine gave them; own_address: our own container's address in it, None
    where we run on the engine's machine. hosts: names of mocks, to be given as `extra_hosts` to every container that
    is made in it. shared: addresses of containers that other cells use too, which can't speak for this cell."""

    id: str
    name: str
    subnet: ipaddress.IPv4Network
    gateway: str
    internal: bool
    own_address: str | None = None
    hosts: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    @property
    def host_address(self) -> str:
        """Where containers of this network reach us."""
        return self.own_address or self.gateway

    def admits(self, address: str) -> bool:
        """Whether this is the address of a container that belongs to this network alone. Addresses of others are
        routed to us too: a container reaches the gateways of all bridges."""
        if address in self.shared or address in (self.gateway, self.own_address):
            return False
        try:
            return ipaddress.IPv4Address(address) in self.subnet
        except ValueError:
            return False


class Networks:
    """Makes and removes the networks of a run. client: the engine's. run_id: what they are labelled with."""

    def __init__(self, client: DockerClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._own_id: str | None = None
        self._looked = False
        self._open: dict[str, Network] = {}

    @asynccontextmanager
    async def cell(self, cell_id: str, *, internal: bool = False) -> AsyncIterator[Network]:
        """The network of one cell, removed at the end whatever is still in it. internal: no way out of it.
        Raises ServiceError."""
        import anyio

        network = await self.open(cell_id, internal=internal, cell=cell_id)
        try:
            yield network
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(network)

    async def open(self, suffix: str, *, internal: bool = False, cell: str = "") -> Network:
        """A new network `keystone-<run>-<suffix>`, joined by our own container. Raises ServiceError."""
        import anyio

        name = network_name(self._run_id, suffix)
        marks = labels(self._run_id, "network", **({"cell": cell} if cell else {}))

        def create() -> EngineNetwork:
            made = self._client.networks.create(
                name, driver="bridge", internal=internal, labels=marks, check_duplicate=True
            )
            made.reload()
            return made

        try:
            made = await ask(create, f"the network {name} can't be made")
        except ServiceError as error:
            raise _no_addresses(name) if _NO_POOL.search(error.message) else error from None
        config = made.attrs["IPAM"]["Config"][0]
        network = Network(
            id=str(made.id),
            name=name,
            subnet=ipaddress.IPv4Network(config["Subnet"]),
            gateway=str(config.get("Gateway", "")).split("/")[0] or str(next(_hosts(config["Subnet"]))),
            internal=internal,
        )
        self._open[network.id] = network
        try:
            await self._join(network)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close(network)
            raise
        return network

    async def _join(self, network: Network) -> None:
        if not self._looked:
            self._own_id = await ask(lambda: own_container(self._client), "our own container can't be looked up")
            self._looked = True
        if self._own_id is not None:
            network.own_address = await self.connect(network, self._own_id)

    async def connect(self, network: Network, container: str, alias: str | None = None) -> str:
        """Put a running container into a network under a name of its own; returns its address there. Raises
        ServiceError."""

        def join() -> str:
            engine_network = self._client.networks.get(network.id)
            engine_network.connect(container, aliases=[alias] if alias else None)
            return address_in(self._client.containers.get(container).attrs, network.name)

        return await ask(join, f"the network {network.name} can't be joined")

    async def disconnect(self, network: Network, container: str) -> None:
        """Take a container out again; harmless when it is not in, or the network is gone. Raises ServiceError."""
        from docker.errors import NotFound

        def leave() -> None:
            try:
                _disconnect(self._client.networks.get(network.id), container)
            except NotFound:
                return

        await ask(leave, f"the network {network.name} can't be left")

    async def close(self, network: Network) -> None:
        """Remove a network, whatever is still in it. Raises ServiceError when the engine does not answer or does not
        let go of it."""
        await ask(lambda: remove_network(self._client, network.id), f"the network {network.name} can't be removed")
        self._open.pop(network.id, None)

    async def close_all(self) -> None:
        """Remove what is still open. Never raises: what stays is found by its label."""
        import anyio

        async def quietly(network: Network) -> None:
            try:
                await self.close(network)
            except ServiceError:
                return

        async with anyio.create_task_group() as group:
            for network in list(self._open.values()):
                group.start_soon(quietly, network)


def network_name(run_id: str, suffix: str) -> str:
    """`keystone-<run>-<suffix>` of letters, digits and `_.-`, at most 63 characters; what was lost is told apart by a
    hash."""
    wanted = f"keystone-{run_id}-{suffix}"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted)
    if plain == wanted and len(plain) <= _NAME_LENGTH:
        return plain
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_LENGTH - 9]}-{digest}"


def address_in(attributes: dict[str, Any], network: str) -> str:
    """A container's address in a network, from what the engine says of the container. Raises ServiceError."""
    joined = attributes["NetworkSettings"]["Networks"].get(network) or {}
    address = str(joined.get("IPAddress") or "")
    if not address:
        raise ServiceError(f"a container has no address in the network {network}: it does not run any more")
    return address


def remove_network(client: DockerClient, network_id: str) -> None:
    """Remove a network with everything in it disconnected. Harmless when it is gone. Raises docker's errors."""
    from docker.errors import APIError, NotFound

    for attempt in range(_REMOVAL_TRIES):
        try:
            network = client.networks.get(network_id)
            for container in network.attrs.get("Containers") or {}:
                _disconnect(network, container)
            network.remove()
        except NotFound:
            return
        except APIError:
            # A container that is just starting appears as an endpoint only after our look.
            if attempt == _REMOVAL_TRIES - 1:
                raise
        else:
            return


def _disconnect(network: EngineNetwork, container: str) -> None:
    from docker.errors import APIError

    try:
        network.disconnect(container, force=True)
    except APIError as error:
        if error.status_code != 404 and "not connected" not in str(error.explanation):
            raise


def _hosts(subnet: str) -> Any:
    return iter(ipaddress.IPv4Network(subnet).hosts())


def _no_addresses(name: str) -> ServiceError:
    return ServiceError(
        f"the network {name} can't be made: the container engine has no address range left (about 30 networks are "
        "its default)",
        help="Remove networks that nobody uses (`docker network prune`), run fewer cells at a time "
        "(`max_concurrency`), or give the engine more `default-address-pools`.",
    )
