"""Networks of ours on the container engine: one for the services of a spec, one for each cell.

Names resolve by the engine's own DNS: a service's container has its name as alias in every network that it is in. We
reach containers by address. Where we run in a container ourselves (as an action does), our container joins each
network; elsewhere the engine's bridges are on our machine. Containers reach us (that is: mocks) at `host_address`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.engine.calls import REMOVAL_SECONDS, Refused, ask_engine, ask_within, unless_refused
from keystone_action.engine.own_container import find_own_container
from keystone_action.engine.records import labels
from keystone_action.errors import ServiceError

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient
    from keystone_action.engine.records import Container, NetworkRecord

NO_FORWARDING = ("127.0.0.1",)
"""A name server for containers of internal networks: their own loopback, where nobody listens. The engine's DNS goes on
answering for aliases, and has nowhere to forward other names to; else names that an agent makes up would carry data
out, through the machine's name servers (CVE-2024-29018)."""
GATEWAY_OPEN = (
    "egress: deny leaves ports of this machine open: what listens on all of its addresses is reached by the agent at "
    "its network's gateway. Run in a container of the engine, as the action does, to close them."
)
DATAGRAMS_OPEN = (
    "egress: deny lets single datagrams through to the engine's machine, by broadcast, multicast or past the routes; "
    "what listens for them there gets them and can't answer. A cell without services and gateway has no network at all."
)
"""The bridge is an interface of the machine, with an address or without: a frame for all reaches it. Only a filter on
the machine, or in each container's namespace, would stop that, and the engine sets up neither."""
_INHIBIT = "com.docker.network.bridge.inhibit_ipv4"
"""With it the bridge has no address of the machine. Engines since 28 call it `gateway_mode_ipv4=isolated` as well."""
_NO_IPV6 = {"com.docker.network.enable_ipv6": "false"}
"""Engines can be set to give every network IPv6 unless it says otherwise."""
_ANSWER_SECONDS = 0.2
_NAME_LENGTH = 63
_REMOVAL_TRIES = 5
_ARP = Path("/proc/net/arp")
_DISCARD_PORT = 9
ADDRESS_PAUSES: Sequence[float] = (0.5, 1.0, 2.0, 4.0)
"""Seconds to wait before the second try, the third, … to get a range of addresses."""
_NO_POOL = re.compile(r"non-overlapping IPv4 address pool|predefined address pools have been fully subnetted")


@dataclass
class ContainerNetwork:
    """One network."""

    id: str
    name: str
    subnet: ipaddress.IPv4Network
    gateway: str
    """As the engine gave it; empty when the network has none."""
    internal: bool
    """No way leads out of it."""
    own_address: str | None = None
    """Our own container's address in it; None where we run on the engine's machine."""
    hosts: dict[str, str] = field(default_factory=dict)
    """Names of mocks and relays, given as `extra_hosts` to every container that is made in it."""
    aliases: dict[str, list[str]] = field(default_factory=dict)
    """Further names of services' containers, by the service's name."""
    shared: set[str] = field(default_factory=set)
    """Addresses of containers that other cells use, too: they can't speak for this cell."""
    gateway_open: bool = True
    """Whether the engine's machine has an address in it, at which the machine's own ports are reached."""

    @property
    def dns(self) -> tuple[str, ...]:
        """To be given as `dns` to every container that is made in it; empty = the machine's name servers."""
        return NO_FORWARDING if self.internal else ()

    @property
    def notice(self) -> str:
        """What this network does not enforce of `egress: deny`, for the report; empty where nothing is denied."""
        if not self.internal:
            return ""
        return GATEWAY_OPEN if self.gateway_open else DATAGRAMS_OPEN

    @property
    def host_address(self) -> str:
        """Where containers of this network reach us."""
        return self.own_address or self.gateway

    def admits(self, address: str) -> bool:
        """Whether this is the address of a container that belongs to this network alone. Others reach us too: a
        container reaches the gateways of all bridges."""
        if address in self.shared or address in (self.gateway, self.own_address):
            return False
        try:
            return ipaddress.IPv4Address(address) in self.subnet
        except ValueError:
            return False


class Networks:
    """Makes and removes the networks of a run. client: the engine's. run_id: what they are labelled with."""

    def __init__(self, client: EngineClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._own_id: str | None = None
        self._looked = False
        self._isolates: bool | None = None
        self._open: dict[str, ContainerNetwork] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def cell(self, cell_id: str, *, internal: bool = False, wait: bool = True) -> AsyncIterator[ContainerNetwork]:
        """The network of one cell, removed at the end with all that is in it. internal: no way out of it. wait: for
        the removal, too; else it goes on beside the next cell, until `close_all`. Raises ServiceError."""
        import anyio

        network = await self.open(cell_id, internal=internal, cell=cell_id)
        try:
            yield network
        finally:
            if wait:
                with anyio.CancelScope(shield=True):
                    await self.close(network)
            else:
                task = asyncio.create_task(self._quietly(network))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def open(self, suffix: str, *, internal: bool = False, cell: str = "") -> ContainerNetwork:
        """A new network `keystone-<run>-<suffix>`, joined by our own container. Raises ServiceError.

        An internal one has no address of the machine in it where we are a container among the others, and don't need
        it: what the engine's bridge would forward nowhere, the machine itself would still answer.
        """
        import anyio

        name = network_name(self._run_id, suffix)
        marks = labels(self._run_id, "network", cell=cell)
        own = await self._own()
        options = self._options(internal=internal, joined=own is not None)
        made, options = await self._create(name, marks, options, internal=internal)
        network = _describe_network(made, isolated=_INHIBIT in options)
        self._open[network.id] = network
        try:
            await self._enter(network, own)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close(network)
            raise
        return network

    def _options(self, *, internal: bool, joined: bool) -> dict[str, str]:
        if not internal:
            return {}
        return {**_NO_IPV6, **({_INHIBIT: "true"} if joined and self._isolates is not False else {})}

    async def _create(
        self, name: str, marks: dict[str, str], options: dict[str, str], *, internal: bool
    ) -> tuple[NetworkRecord, dict[str, str]]:
        """The network, and the options that the engine took."""

        def create() -> NetworkRecord:
            return self._client.create_network(name, internal=internal, labels=marks, options=options)

        try:
            return await self._create_network(create, name), options
        except ServiceError as error:
            if options and "option" in error.message:
                # Not every engine knows them, or ignores those that it doesn't.
                self._isolates = False
                return await self._create(name, marks, {}, internal=internal)
            raise

    async def _create_network(self, create: Callable[[], NetworkRecord], name: str) -> NetworkRecord:
        """Waits a moment where all address ranges are taken: those of other cells and runs come back."""
        import anyio

        pauses = iter(ADDRESS_PAUSES)
        while True:
            try:
                return await ask_engine(create, f"the network {name} can't be made")
            except ServiceError as error:
                if not _NO_POOL.search(error.message):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    there = await ask_engine(self._client.list_networks, "networks can't be listed")
                    raise _no_addresses(name, len(there)) from None
            await anyio.sleep(pause)

    async def _enter(self, network: ContainerNetwork, own: str | None) -> None:
        import anyio.to_thread

        if own is None:
            return
        network.own_address = await self.connect(network, own)
        if network.gateway_open or not network.gateway:
            return
        if self._isolates is None:
            # Asked once: every network of an engine is like the first.
            self._isolates = not await anyio.to_thread.run_sync(machine_answers, network.gateway)
        network.gateway_open = not self._isolates

    async def _own(self) -> str | None:
        if not self._looked:
            problem = "our own container can't be looked up"
            found = await ask_engine(lambda: find_own_container(self._client), problem)
            self._own_id = None if found is None else found.network
            self._looked = True
        return self._own_id

    async def connect(self, network: ContainerNetwork, container: str, alias: str | None = None) -> str:
        """Put a running container into a network under a name of its own; returns its address there. Raises
        ServiceError."""

        names = [alias, *network.aliases.get(alias, ())] if alias else []

        def join() -> str:
            self._client.join(network.id, container, aliases=names)
            return address_in(self._client.inspect_container(container), network.name)

        return await ask_engine(join, f"the network {network.name} can't be joined")

    @asynccontextmanager
    async def membership(self, name: str) -> AsyncIterator[None]:
        """Our own container is in a network of others as long as this lasts, so that what is in it is reached. Where
        it is in already, or we run on the engine's machine, nothing changes. Raises ServiceError."""
        import anyio

        own = await self._own()
        made = await ask_engine(lambda: self._enter_foreign(name, own), f"the network {name} can't be joined")
        try:
            yield
        finally:
            if made:
                with anyio.CancelScope(shield=True), contextlib.suppress(ServiceError):
                    await ask_within(lambda: self._leave_foreign(name, own), "leaving a network", REMOVAL_SECONDS)

    def _enter_foreign(self, name: str, own: str | None) -> bool:
        """Whether it was joined now. Raises what the client raises."""
        network = self._client.inspect_network(name)["Id"]
        if own is None or name in self._client.inspect_container(own)["NetworkSettings"]["Networks"]:
            return False
        self._client.join(network, own)
        return True

    def _leave_foreign(self, name: str, own: str | None) -> None:
        if own is not None:
            self._client.leave(name, own)

    async def disconnect(self, network: ContainerNetwork, container: str) -> None:
        """Take a container out again; harmless when it is not in, or the network is gone. Raises ServiceError."""
        await ask_engine(lambda: self._client.leave(network.id, container), f"the network {network.name} can't be left")

    async def close(self, network: ContainerNetwork) -> None:
        """Remove a network, even if containers are in it. Raises ServiceError when the engine does not answer (in time)
        or does not let go of it."""
        problem = f"the network {network.name} can't be removed"
        await ask_within(lambda: remove_network(self._client, network.id), problem, REMOVAL_SECONDS)
        self._open.pop(network.id, None)

    async def close_all(self) -> None:
        """Remove what is still open. Never raises: what stays is found by its label."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(self._quietly(network) for network in list(self._open.values())))

    async def _quietly(self, network: ContainerNetwork) -> None:
        with contextlib.suppress(ServiceError):
            await self.close(network)


def network_name(run_id: str, suffix: str) -> str:
    """`keystone-<run>-<suffix>` of letters, digits and `_.-`, at most 63 characters; what was lost is told apart by a
    hash."""
    wanted = f"keystone-{run_id}-{suffix}"
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted)
    if plain == wanted and len(plain) <= _NAME_LENGTH:
        return plain
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_LENGTH - 9]}-{digest}"


def address_in(container: Container, network: str) -> str:
    """A container's address in a network, from what the engine says of the container. Raises ServiceError."""
    joined = container["NetworkSettings"]["Networks"].get(network) or {}
    address = str(joined.get("IPAddress") or "")
    if not address:
        raise ServiceError(f"a container has no address in the network {network}: it does not run any more")
    return address


def remove_network(client: EngineClient, network_id: str) -> None:
    """Remove a network with everything in it disconnected. Harmless when it is gone. Raises what the client
    raises."""
    for attempt in range(_REMOVAL_TRIES):
        try:
            with unless_refused(404):
                for container in client.inspect_network(network_id).get("Containers") or {}:
                    client.leave(network_id, container)
                client.remove_network(network_id)
        except Refused:
            # A container that is just starting appears as an endpoint only after our look.
            if attempt == _REMOVAL_TRIES - 1:
                raise
        else:
            return


def machine_answers(address: str) -> bool:
    """Whether somebody has this address in a network that we are in, asked by ARP. Blocking, 0.2 s at most."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.sendto(b"", (address, _DISCARD_PORT))
        except OSError:
            return False  # no route: there is no such neighbour
        while time.monotonic() < deadline:
            try:
                rows = _ARP.read_text(encoding="ascii").splitlines()
            except OSError:
                return True  # unknown, so the worse is assumed
            # IP address, HW type, flags (2: complete), HW address, mask, device
            if any(row.split()[:3:2] == [address, "0x2"] for row in rows):
                return True
            time.sleep(0.01)
    return False


def _describe_network(made: NetworkRecord, *, isolated: bool) -> ContainerNetwork:
    config = made["IPAM"]["Config"][0]
    gateway = str(config.get("Gateway", "")).split("/")[0]
    # Engines since 28 set no address aside for a gateway that a network does not have.
    if not gateway and not isolated:
        gateway = str(next(iter(ipaddress.IPv4Network(config["Subnet"]).hosts())))
    return ContainerNetwork(
        id=made["Id"],
        name=made["Name"],
        subnet=ipaddress.IPv4Network(config["Subnet"]),
        gateway=gateway,
        internal=bool(made.get("Internal")),
        gateway_open=not isolated,
    )


def _no_addresses(name: str, there: int) -> ServiceError:
    return ServiceError(
        f"the network {name} can't be made: the container engine has no address range left; it has {there} networks",
        help="Remove those that nobody uses (`keystone clean` ours, `docker network prune` all), run fewer cells at a "
        "time (`max_concurrency`), or give the engine more `default-address-pools`.",
    )
